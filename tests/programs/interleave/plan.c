/* From a seed to a program. */
#include "world.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

unsigned below(uint64_t *state, unsigned limit)
{
    return (unsigned)(draw(state) >> 32) % limit;
}

/* Slots that are filled at the start: three connections, a listener, three sets, a pipe, an eventfd, a timer; the last ones are free. */
static const int8_t ends[] = {0, 1, 2, 3, 11, 12};
static const int8_t sets[] = {5, 6, 13};
static const int8_t targets[] = {0, 1, 2, 3, 0, 1, 2, 3, 11, 12, 4, 7, 9, 10, 14, 15, 6, 13};

#define PICK(state, from) ((from)[below(state, sizeof(from) / sizeof(*(from)))])

static int timeout(uint64_t *state)
{
    static const int timeouts[] = {0, 0, 1, 2, -1, -1, -1};
    return PICK(state, timeouts);
}

static uint32_t interest(uint64_t *state)
{
    static const uint32_t flags[] = {0, 0, 0, EPOLLET, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
    uint32_t events = PICK(state, flags);
    switch (below(state, 8)) {
    case 0:
        return events | EPOLLIN | EPOLLOUT;
    case 1:
        return events | EPOLLOUT;
    case 2:
        return events | EPOLLIN | EPOLLRDHUP;
    case 3:
        return (events & EPOLLET) | EPOLLIN | EPOLLEXCLUSIVE;
    default:
        return events | EPOLLIN;
    }
}

static void several(uint64_t *state, struct step *step)
{
    step->count = 1 + below(state, 4);
    for (int i = 0; i < step->count; i++) {
        step->items[i] = PICK(state, targets);
        step->wanted[i] = below(state, 8) ? EPOLLIN : EPOLLIN | EPOLLOUT;
    }
    step->timeout = timeout(state);
}

static void wait_for_something(uint64_t *state, struct step *step)
{
    unsigned which = below(state, 12);
    step->mask = below(state, 8) == 0;
    if (which < 8) {
        step->operation = WAIT;
        step->a = PICK(state, sets);
        step->length = 1 + below(state, ITEMS);
        step->timeout = timeout(state);
    } else if (which < 10) {
        step->operation = POLL;
        several(state, step);
    } else if (which < 11) {
        step->operation = SELECT;
        several(state, step);
    } else {
        step->operation = below(state, 2) ? RECV : READ;
        step->a = PICK(state, ends);
        step->length = 8 * (1 + below(state, 16));
    }
}

static void move_data(uint64_t *state, struct step *step)
{
    static const int8_t written[] = {0, 1, 2, 3, 0, 1, 2, 3, 11, 12, 14, 15, 8, 9};
    static const int8_t read_from[] = {0, 1, 2, 3, 0, 1, 2, 3, 11, 12, 14, 15, 7, 9, 10};
    unsigned which = below(state, 16);
    if (which < 8) {
        step->operation = SEND;
        step->a = PICK(state, written);
        step->length = 1 + below(state, 12);
    } else if (which < 15) {
        step->operation = RECV;
        step->a = PICK(state, read_from);
        step->length = 8 * (1 + below(state, 32));
        step->flags = MSG_DONTWAIT;
        if (step->a == 7 || step->a == 9 || step->a == 10)
            step->operation = READ;
    } else {
        step->operation = ARM;
        step->a = 10;
    }
}

static void control_set(uint64_t *state, struct step *step)
{
    static const int32_t operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD,
                                         EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CTL_DEL};
    step->operation = CONTROL;
    step->a = PICK(state, sets);
    step->b = PICK(state, targets);
    step->flags = PICK(state, operations);
    step->events = interest(state);
    if (step->flags == EPOLL_CTL_MOD)
        step->events &= ~(uint32_t)EPOLLEXCLUSIVE;
}

static void open_something(uint64_t *state, struct step *step)
{
    static const int8_t places[] = {14, 15, 14, 15, 3, 11};
    bool connects = below(state, 2);
    step->operation = connects ? CONNECT : ACCEPT;
    step->a = 4;
    step->b = PICK(state, places);
    step->flags = connects && below(state, 2) ? SOCK_NONBLOCK : 0;
}

static void destroy(uint64_t *state, struct step *step)
{
    static const int8_t copied[] = {0, 1, 2, 3, 11, 12, 14, 15, 5, 6, 9, 7};
    static const int8_t over[] = {14, 15, 14, 15, 1, 3, 12, 9};
    static const int8_t closed[] = {14, 15, 14, 15, 0, 1, 2, 3, 11, 12, 13, 9};
    static const int32_t how[] = {SHUT_WR, SHUT_WR, SHUT_RD, SHUT_RDWR};
    unsigned which = below(state, 8);
    if (which < 4) {
        step->operation = DUP2;
        step->a = PICK(state, copied);
        step->b = PICK(state, over);
    } else if (which < 7) {
        step->operation = CLOSE;
        step->a = PICK(state, closed);
    } else {
        step->operation = SHUTDOWN;
        step->a = PICK(state, ends);
        step->flags = PICK(state, how);
    }
}

/* What a thread of this program does: how often it waits, and how often it destroys. */
struct temper {
    unsigned waits, moves, controls, opens, destroys, signals;
};

static struct step one_step(uint64_t *state, struct temper temper, int workers)
{
    struct step step = {0};
    unsigned which = below(state, temper.waits + temper.moves + temper.controls + temper.opens + temper.destroys + temper.signals);
    if (which < temper.waits) {
        wait_for_something(state, &step);
    } else if ((which -= temper.waits) < temper.moves) {
        move_data(state, &step);
    } else if ((which -= temper.moves) < temper.controls) {
        control_set(state, &step);
    } else if ((which -= temper.controls) < temper.opens) {
        open_something(state, &step);
    } else if ((which -= temper.opens) < temper.destroys) {
        destroy(state, &step);
    } else if (below(state, 4) == 0) {
        step.operation = NONBLOCK;
        step.a = PICK(state, ends);
        step.flags = below(state, 2);
    } else {
        step.operation = SIGNAL;
        step.a = 1 + below(state, workers);
        step.flags = below(state, 2) ? SIGUSR1 : SIGUSR2;
    }
    return step;
}

/* Threads that are there from the start are spread over the processes; a child that is forked on the way has one. */
void make_plan(uint64_t seed)
{
    uint64_t state = seed * 0x2545f4914f6cdd1d + 1;
    int workers = 2 + below(&state, 7);
    int processes = 1 + (below(&state, 2) ? below(&state, 3) : 0);
    int forks = below(&state, 3) ? 0 : 1 + below(&state, 2);
    bool gentle = below(&state, 2);
    int length = 6 + below(&state, PLANNED - 8);
    world->seed = seed;
    world->processes = processes;
    for (int i = 1; i <= workers + forks; i++) {
        struct worker *worker = &world->worker[i];
        struct temper temper = {2 + below(&state, 8), 6, 2 + below(&state, 8), 1, gentle ? 0 : 1, 1};
        worker->process = i <= workers ? (i - 1) % processes : processes + i - workers - 1;
        worker->planned = length;
        for (int at = 0; at < length; at++)
            worker->plan[at] = one_step(&state, temper, workers);
    }
    for (int i = 0; i < forks; i++) {
        struct worker *parent = &world->worker[1 + below(&state, workers)];
        int at = below(&state, parent->planned);
        parent->plan[at] = (struct step){.operation = FORK, .a = workers + 1 + i};
    }
    /* The controller's plan is what it does before the others begin: some registrations. */
    struct worker *first = &world->worker[0];
    first->planned = below(&state, 8);
    for (int at = 0; at < first->planned; at++) {
        control_set(&state, &first->plan[at]);
        first->plan[at].flags = EPOLL_CTL_ADD;
    }
}
