/* What the history says that a slot may have meant, or must have meant, in an interval of the clock. */
#include "world.h"

#include <sys/socket.h>

uint32_t end_of(const struct event *event)
{
    return event->end ? event->end : FOREVER;
}

struct event *next_event(int *worker, int *number)
{
    for (; *worker < WORKERS; ++*worker, *number = 0)
        if (*number < world->worker[*worker].count)
            return &world->worker[*worker].history[(*number)++];
    return NULL;
}

/* A meaning may hold from the start of the change that made it to the end of the next one; it must hold from the end of the one to the start of the other. */
bool may_mean(int index, int slot, uint32_t from, uint32_t to, int object)
{
    const struct process *process = &world->process[index];
    int count = process->counts[slot];
    if (object == NONE && (count == 0 || process->changes[slot][0].end >= from))
        return true;
    for (int i = 0; i < count; i++) {
        const struct change *change = &process->changes[slot][i];
        uint32_t last = i + 1 < count ? change[1].end : FOREVER;
        if (change->object == object && change->start <= to && last >= from)
            return true;
    }
    return false;
}

int must_mean(int index, int slot, uint32_t from, uint32_t to)
{
    const struct process *process = &world->process[index];
    int count = process->counts[slot];
    for (int i = 0; i < count; i++) {
        const struct change *change = &process->changes[slot][i];
        uint32_t last = i + 1 < count ? change[1].start : FOREVER;
        if (change->end <= from && (last > to || last == FOREVER))
            return change->object;
    }
    return NONE;
}

bool may_be_about(const struct event *event, int slot, int object)
{
    return slot >= 0 && may_mean(event->process, slot, event->start, end_of(event), object);
}

bool is_about(const struct event *event, int slot, int object)
{
    return slot >= 0 && must_mean(event->process, slot, event->start, end_of(event)) == object;
}

/* A call holds what it works on, whatever becomes of its descriptor. */
static bool may_hold(const struct event *event, int object)
{
    switch (event->step.operation) {
    case POLL:
    case SELECT:
        for (int i = 0; i < event->step.count; i++)
            if (may_be_about(event, event->step.items[i], object))
                return true;
        return false;
    case SIGNAL:
        return false;
    case FORK:
        return true;
    default:
        return event->made == object || may_be_about(event, event->step.a, object)
            || (event->step.operation == CONTROL && may_be_about(event, event->step.b, object));
    }
}

/* How long a call may hold what it works on. A child has what was about to be moved to a slot until it has closed that, behind its first step. */
static uint32_t end_of_hold(const struct event *event)
{
    if (event->step.operation == FORK)
        return world->process[world->worker[event->step.a].process].changes[0][0].end;
    return end_of(event);
}

bool may_live(int object, uint32_t from, uint32_t to)
{
    for (int process = 0; process < PROCESSES; process++)
        for (int slot = 0; slot < SLOTS; slot++)
            if (world->process[process].counts[slot] && may_mean(process, slot, from, to, object))
                return true;
    EACH_EVENT(event)
        if (event->start <= to && end_of_hold(event) >= from && may_hold(event, object))
            return true;
    return false;
}

static bool must_live_in(int process, int object, uint32_t now)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (must_mean(process, slot, now, now) == object)
            return true;
    return false;
}

bool must_live(int object, uint32_t now)
{
    for (int process = 0; process < PROCESSES; process++)
        if (must_live_in(process, object, now))
            return true;
    return false;
}

/* Finds for each accepted connection the one that was opened from its port. */
void match_connections(void)
{
    int count = world->objects < OBJECTS ? world->objects : OBJECTS;
    for (int accepted = 0; accepted < count; accepted++) {
        struct object *near = &world->object[accepted];
        if (near->kind != STREAM || near->opener || near->port == 0 || near->peer != NONE)
            continue;
        for (int opened = 0; opened < count; opened++) {
            struct object *far = &world->object[opened];
            if (far->opener && far->port == near->port && far->peer == NONE) {
                near->peer = opened;
                far->peer = accepted;
                break;
            }
        }
    }
}
