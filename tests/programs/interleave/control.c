/*
 * Runs a program's threads. Whenever nobody moves, it looks whether one of those who sleep would have to go on, and if none has to, it wakes one: by a signal,
 * or by data. In the end it looks whether the sets report what they have to, and whether all bytes have come.
 */
#include "world.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Looks without a step of anybody, 100 us apart, until a moment counts as quiet. */
#define QUIET 4
#define LOOK_US 100

static uint64_t random_state;

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
}

static void sleep_us(unsigned us)
{
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = us * 1000L}, NULL);
}

static void start_threads(int process)
{
    for (int i = 1; i < WORKERS; i++) {
        pthread_t thread;
        struct worker *worker = &world->worker[i];
        if (worker->planned && worker->process == process && pthread_create(&thread, NULL, work, worker) != 0)
            _exit(2);
    }
}

static void start_processes(void)
{
    int processes = world->processes;
    struct event event = {.process = 0};
    for (int process = 1; process < processes; process++) {
        event.start = tick();
        if (fork_into(&event, process) == 0) {
            start_threads(process);
            rest();
            _exit(0);
        }
    }
    start_threads(0);
}

/* The operation that a worker is at; none: it has ended, or is between two, or not there. */
static struct event *at_work(struct worker *worker)
{
    int count = worker->count;
    if (count == 0 || worker->done || worker->history[count - 1].end)
        return NULL;
    return &worker->history[count - 1];
}

static bool is_expected(const struct worker *worker)
{
    return worker->planned && !worker->done && (worker->process < world->processes || worker->pid);
}

static bool all_done(void)
{
    for (int i = 1; i < WORKERS; i++)
        if (is_expected(&world->worker[i]))
            return false;
    return true;
}

/* Events that the controller's signals have met asleep. */
static const struct event *kicked[WORKERS];

static bool is_asleep(const struct worker *worker)
{
    char name[64], line[200] = "";
    snprintf(name, sizeof name, "/proc/%d/task/%d/stat", worker->pid, worker->tid);
    FILE *file = fopen(name, "re");
    if (!file)
        return false;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    for (size_t at = 0; at + 2 < length; at++)
        if (line[at] == ')')
            return line[at + 2] == 'S';
    return false;
}

static void kick_by_signal(int index, const struct event *event)
{
    struct worker *worker = &world->worker[index];
    uint8_t operation = event->step.operation;
    bool any_ends = operation == WAIT || operation == POLL || operation == SELECT;
    int number = any_ends && (event->step.mask || below(&random_state, 2)) ? SIGUSR2 : SIGUSR1;
    if (!is_asleep(worker))
        return;
    if (at_work(worker) == event && syscall(SYS_tgkill, worker->pid, worker->tid, number) == 0)
        kicked[index] = event;
}

static void kick_by_data(void)
{
    static const int8_t slots[] = {0, 1, 2, 3, 11, 12, 8, 9};
    struct step step = {.operation = SEND, .a = slots[below(&random_state, sizeof slots)], .length = 1 + below(&random_state, 4)};
    if (below(&random_state, 8) == 0)
        step = (struct step){.operation = ARM, .a = 10};
    perform(0, &step);
}

/* One who has to go on and does not, or all who may sleep. */
struct sleepers {
    const struct event *stuck;
    int count, workers[WORKERS];
};

static struct sleepers look(void)
{
    struct sleepers found = {0};
    uint32_t now = world->clock;
    match_connections();
    for (int i = 1; i < WORKERS; i++) {
        const struct event *event = at_work(&world->worker[i]);
        if (!event)
            continue;
        if (kicked[i] == event || must_return(event, now))
            found.stuck = event;
        else
            found.workers[found.count++] = i;
    }
    return found;
}

static void wake_one(const struct sleepers *sleepers)
{
    if (sleepers->count == 0)
        return;
    int index = sleepers->workers[below(&random_state, sleepers->count)];
    const struct event *event = at_work(&world->worker[index]);
    if (below(&random_state, 2) && world->worker[0].count < EVENTS / 2)
        kick_by_data();
    else if (event)
        kick_by_signal(index, event);
}

static void report_stuck(const struct event *event)
{
    if (!event) {
        violation(NULL, "nobody moves, and nobody sleeps");
        return;
    }
    int object = must_mean(event->process, event->step.a, event->start, world->clock);
    const struct event *why = event->step.operation == WAIT && object != NONE ? must_report(object, world->clock) : NULL;
    if (kicked[event->worker] == event)
        violation(event, "a handler ran and the call sleeps on");
    else if (why)
        violation(event, "sleeps although worker %d, operation %d registered what is ready", why->worker, why->number);
    else
        violation(event, "sleeps although it has to return");
}

static void attend(void)
{
    uint32_t seen = 0;
    int looks = 0;
    uint64_t since = now_us();
    while (!all_done()) {
        uint32_t now = world->clock;
        if (now != seen) {
            seen = now;
            looks = 0;
            since = now_us();
        }
        sleep_us(LOOK_US);
        if (++looks < QUIET || world->clock != seen)
            continue;
        struct sleepers sleepers = look();
        uint64_t waited = now_us() - since;
        if (!sleepers.stuck && sleepers.count > 0) {
            wake_one(&sleepers);
        } else if (waited > world->patience_us) {
            report_stuck(sleepers.stuck);
            return;
        }
    }
}

/* Whether the controller has reported a registration since that step of its own. */
static bool has_reported(const struct event *control, int since)
{
    const struct worker *worker = &world->worker[0];
    uint64_t token = (uint64_t)control->worker << 32 | control->number;
    for (int number = since; number < worker->count; number++)
        for (int i = 0; i < worker->history[number].count; i++)
            if (worker->history[number].items[i].data == token)
                return true;
    return false;
}

/* A registration that the set has to report and has not. */
static const struct event *missing(int set, int since)
{
    EACH_EVENT(event)
        if (event->step.operation == CONTROL && is_about(event, event->step.a, set) && is_pending(event, world->clock) && !has_reported(event, since))
            return event;
    return NULL;
}

/* Whether the last wait tells nothing that the history needs: nobody sends any more, and all of it has been reported since. */
static bool is_repetition(const struct event *wait, int since)
{
    struct worker *worker = &world->worker[0];
    bool nothing_new = true;
    worker->count--;
    for (int i = 0; i < wait->count; i++) {
        const struct event *control = registration(wait->items[i].data);
        nothing_new &= control && !(control->step.events & EPOLLONESHOT) && has_reported(control, since);
    }
    worker->count++;
    return nothing_new;
}

static void look_into_set(int slot)
{
    struct worker *worker = &world->worker[0];
    struct step step = {.operation = WAIT, .a = slot, .length = ITEMS};
    int set = must_mean(0, slot, world->clock, world->clock);
    if (set == NONE || world->object[set].kind != SET)
        return;
    int since = worker->count;
    uint64_t from = now_us();
    const struct event *left;
    while ((left = missing(set, since)) != NULL) {
        if (now_us() - from > world->patience_us) {
            int bytes = -1;
            ioctl(descriptor(left->step.b), FIONREAD, &bytes);
            violation(left, "its set, slot %d, does not report it in the end; %d bytes are there", slot, bytes);
            return;
        }
        perform(0, &step);
        if (is_repetition(&worker->history[worker->count - 1], since)) {
            worker->count--;
            sleep_us(LOOK_US);
        }
    }
}

static void drain(int slot)
{
    struct worker *worker = &world->worker[0];
    struct step step = {.operation = RECV, .a = slot, .length = 512, .flags = MSG_DONTWAIT};
    uint64_t from = now_us();
    for (;;) {
        int object = must_mean(0, slot, world->clock, world->clock);
        if (object == NONE || world->object[object].kind != STREAM)
            return;
        bool more = must_be_readable(object, world->clock);
        if (worker->count == EVENTS)
            worker->count--;
        perform(0, &step);
        const struct event *last = &worker->history[worker->count - 1];
        if (!more || last->result == 0 || (last->result < 0 && last->error != EAGAIN))
            return;
        if (last->result < 0) {
            if (now_us() - from > world->patience_us) {
                violation(last, "bytes that were written do not come");
                return;
            }
            worker->count--;
            sleep_us(LOOK_US);
        }
    }
}

void control(void)
{
    random_state = ~world->seed;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_up();
    for (int at = 0; at < world->worker[0].planned; at++)
        if (!world->worker[0].plan[at].dropped)
            perform(0, &world->worker[0].plan[at]);
    start_processes();
    attend();
    match_connections();
    for (int slot = 0; slot < SLOTS && !world->violation[0]; slot++)
        look_into_set(slot);
    for (int slot = 0; slot < SLOTS && !world->violation[0]; slot++)
        drain(slot);
    world->over = true;
}
