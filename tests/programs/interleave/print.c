/* The history as text, for those who look for the reason of a failure. */
#include "world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"send", "recv", "read", "accept", "connect", "shutdown", "close", "dup2", "epoll_ctl",
                                    "epoll_wait", "poll", "select", "arm", "nonblock", "signal", "fork"};

static void print_event(const struct event *event)
{
    const struct step *step = &event->step;
    printf("%6u %6u  p%d w%-2d #%-3d %-10s a=%d b=%d flags=%#x", event->start, event->end, event->process, event->worker, event->number,
           names[step->operation], step->a, step->b, (unsigned)step->flags);
    if (step->operation == CONTROL)
        printf(" events=%#x", step->events);
    if (step->operation == WAIT || step->operation == POLL || step->operation == SELECT)
        printf(" timeout=%d%s", step->timeout, step->mask ? " masked" : "");
    for (int i = 0; i < step->count; i++)
        printf(" %d/%#x", step->items[i], step->wanted[i]);
    if (event->end)
        printf(" -> %d%s%s", event->result, event->error ? " " : "", event->error ? strerrorname_np(event->error) : "");
    else
        printf(" -> sleeps");
    for (int i = 0; i < event->count; i++)
        printf(" [%d w%u#%u %#x]", event->items[i].slot, (unsigned)(event->items[i].data >> 32), (unsigned)event->items[i].data, event->items[i].events);
    if (event->made != NONE || event->gone != NONE)
        printf(" made=%d gone=%d", event->made, event->gone);
    if ((step->operation == ACCEPT || step->operation == CONNECT) && event->made != NONE)
        printf(" port=%d peer=%d", world->object[event->made].port, world->object[event->made].peer);
    if (event->ended || event->restarted)
        printf(" handlers=%d+%d", event->ended, event->restarted);
    printf("\n");
}

static int by_start(const void *one, const void *other)
{
    const struct event *const *left = one, *const *right = other;
    return ((*left)->start > (*right)->start) - ((*left)->start < (*right)->start);
}

void print_history(void)
{
    static const struct event *all[WORKERS * EVENTS];
    size_t count = 0;
    EACH_EVENT(event)
        all[count++] = event;
    qsort(all, count, sizeof *all, by_start);
    for (size_t i = 0; i < count; i++)
        print_event(all[i]);
}
