/* Does one step after another, and writes down what came of it. */
#include "world.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static _Thread_local int self;

uint32_t tick(void)
{
    return atomic_fetch_add(&world->clock, 1) + 1;
}

int descriptor(int slot)
{
    return FIRST_FD + slot;
}

static void fail(const char *what)
{
    char text[200];
    snprintf(text, sizeof text, "setting up: %s: %s\n", what, strerror(errno));
    if (write(2, text, strlen(text)) < 0)
        _exit(3);
    _exit(2);
}

static void on_signal(int number)
{
    struct worker *worker = &world->worker[self];
    atomic_fetch_add(number == SIGUSR1 ? &worker->ended : &worker->restarted, 1);
}

static int new_object(enum kind kind, int peer)
{
    int object = atomic_fetch_add(&world->objects, 1);
    if (object >= OBJECTS)
        _exit(4);
    world->object[object] = (struct object){.kind = kind, .peer = peer, .listener = NONE, .made = tick()};
    return object;
}

/* A slot of this worker's process means something else since the event's start, or nothing. The process is locked. */
void place(struct event *event, int slot, int object)
{
    struct process *process = &world->process[event->process];
    int count = process->counts[slot];
    if (count == CHANGES)
        _exit(5);
    process->changes[slot][count] = (struct change){.start = event->start, .end = FOREVER, .object = object};
    process->counts[slot] = count + 1;
}

/* The change that `place` began has taken place. */
static void placed(struct event *event, int slot)
{
    struct process *process = &world->process[event->process];
    process->changes[slot][process->counts[slot] - 1].end = tick();
}

static int meaning(int process, int slot)
{
    int count = world->process[process].counts[slot];
    return count ? world->process[process].changes[slot][count - 1].object : NONE;
}

static bool has_room(int process, int slot)
{
    return world->process[process].counts[slot] < CHANGES - 2 && world->objects < OBJECTS - 2;
}

/* Moves a new descriptor to a slot of the calling worker. */
static int settle(struct event *event, int fd, int slot, int object)
{
    struct process *process = &world->process[event->process];
    pthread_mutex_lock(&process->lock);
    event->gone = meaning(event->process, slot);
    place(event, slot, object);
    event->made = object;
    int result = dup2(fd, descriptor(slot));
    int error = errno;
    close(fd);
    placed(event, slot);
    pthread_mutex_unlock(&process->lock);
    errno = error;
    return result;
}

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static uint16_t port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    if (name(fd, (struct sockaddr *)&address, &length) != 0)
        return 0;
    return ntohs(address.sin_port);
}

static uint16_t listener_port;

static int do_connect(struct event *event)
{
    if (!has_room(event->process, event->step.b))
        return 0;
    int fd = socket(AF_INET, SOCK_STREAM | event->step.flags, 0);
    if (fd < 0)
        return -1;
    int object = new_object(STREAM, NONE);
    struct sockaddr_in address = loopback(listener_port);
    int result = connect(fd, (struct sockaddr *)&address, sizeof address);
    int error = errno;
    world->object[object].opener = true;
    /* The port may be chosen behind a connect that does not block. */
    bool under_way = result == 0 || error == EINPROGRESS || error == EINTR;
    while (under_way && (world->object[object].port = port_of(fd, getsockname)) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    int settled = settle(event, fd, event->step.b, object);
    errno = settled < 0 ? errno : error;
    return settled < 0 ? -2 : result;
}

static int do_accept(struct event *event)
{
    if (!has_room(event->process, event->step.b))
        return 0;
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    int fd = accept(descriptor(event->step.a), (struct sockaddr *)&address, &length);
    if (fd < 0)
        return -1;
    int object = new_object(STREAM, NONE);
    world->object[object].port = ntohs(address.sin_port);
    return settle(event, fd, event->step.b, object);
}

static int do_close(struct event *event)
{
    struct process *process = &world->process[event->process];
    int slot = event->step.a;
    pthread_mutex_lock(&process->lock);
    event->gone = meaning(event->process, slot);
    bool changes = event->gone != NONE && has_room(event->process, slot);
    if (changes)
        place(event, slot, NONE);
    int result = event->gone == NONE || changes ? close(descriptor(slot)) : 0;
    int error = errno;
    if (changes)
        placed(event, slot);
    pthread_mutex_unlock(&process->lock);
    errno = error;
    return result;
}

static int do_dup2(struct event *event)
{
    struct process *process = &world->process[event->process];
    int from = event->step.a, to = event->step.b, result = 0, error = 0;
    pthread_mutex_lock(&process->lock);
    int object = meaning(event->process, from);
    if (has_room(event->process, to)) {
        if (object != NONE && from != to) {
            event->gone = meaning(event->process, to);
            event->made = object;
            place(event, to, object);
        }
        result = dup2(descriptor(from), descriptor(to));
        error = errno;
        if (object != NONE && from != to)
            placed(event, to);
    } else {
        event->step.a = event->step.b = NONE;
    }
    pthread_mutex_unlock(&process->lock);
    errno = error;
    return result;
}

static int do_send(struct event *event)
{
    struct record records[16];
    struct worker *worker = &world->worker[event->worker];
    event->record = worker->records;
    for (int i = 0; i < event->step.length; i++)
        records[i] = (struct record){.magic = MAGIC, .worker = event->worker, .number = worker->records + i};
    int fd = descriptor(event->step.a);
    size_t bytes = event->step.length * sizeof *records;
    int result = send(fd, records, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0 && errno == ENOTSOCK)
        result = write(fd, records, bytes);
    /* An eventfd takes a single number. */
    if (result < 0 && errno == EINVAL)
        result = write(fd, records, sizeof *records);
    worker->records += event->step.length;
    return result;
}

static int do_receive(struct event *event)
{
    uint8_t bytes[512];
    int fd = descriptor(event->step.a);
    int result;
    if (event->step.operation == READ)
        result = read(fd, bytes, event->step.length);
    else
        result = recv(fd, bytes, event->step.length, event->step.flags);
    int error = errno;
    if (result > 0) {
        event->data = atomic_fetch_add(&world->data_used, result);
        if (event->data + result > DATA)
            _exit(6);
        memcpy(world->data + event->data, bytes, result);
    }
    errno = error;
    return result;
}

static uint64_t token(const struct event *event)
{
    return (uint64_t)event->worker << 32 | event->number;
}

static int do_control(struct event *event)
{
    struct epoll_event wanted = {.events = event->step.events, .data.u64 = token(event)};
    return epoll_ctl(descriptor(event->step.a), event->step.flags, descriptor(event->step.b), &wanted);
}

static int do_wait(struct event *event)
{
    struct epoll_event events[ITEMS];
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    int result = epoll_pwait(descriptor(event->step.a), events, event->step.length, event->step.timeout, event->step.mask ? &mask : NULL);
    for (int i = 0; i < result; i++)
        event->items[event->count++] = (struct item){.slot = NONE, .events = events[i].events, .data = events[i].data.u64};
    return result;
}

static int do_poll(struct event *event)
{
    struct pollfd polled[ITEMS];
    const struct step *step = &event->step;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    struct timespec limit = {.tv_nsec = step->timeout * 1000000L};
    for (int i = 0; i < step->count; i++)
        polled[i] = (struct pollfd){.fd = descriptor(step->items[i]), .events = step->wanted[i]};
    int result = ppoll(polled, step->count, step->timeout < 0 ? NULL : &limit, step->mask ? &mask : NULL);
    for (int i = 0; i < step->count && result > 0; i++)
        if (polled[i].revents)
            event->items[event->count++] = (struct item){.slot = step->items[i], .events = (uint16_t)polled[i].revents};
    return result;
}

static int do_select(struct event *event)
{
    const struct step *step = &event->step;
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    for (int i = 0; i < step->count; i++) {
        FD_SET(descriptor(step->items[i]), &in);
        if (step->wanted[i] & EPOLLOUT)
            FD_SET(descriptor(step->items[i]), &out);
    }
    struct timeval limit = {.tv_usec = step->timeout * 1000L};
    int result = select(descriptor(SLOTS), &in, &out, NULL, step->timeout < 0 ? NULL : &limit);
    for (int slot = 0; slot < SLOTS && result > 0; slot++) {
        uint32_t events = (FD_ISSET(descriptor(slot), &in) ? EPOLLIN : 0) | (FD_ISSET(descriptor(slot), &out) ? EPOLLOUT : 0);
        if (events)
            event->items[event->count++] = (struct item){.slot = slot, .events = events};
    }
    return result;
}

static int do_arm(struct event *event)
{
    struct itimerspec soon = {.it_value.tv_nsec = 200000};
    return timerfd_settime(descriptor(event->step.a), 0, &soon, NULL);
}

static int do_nonblock(struct event *event)
{
    int fd = descriptor(event->step.a);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -1;
    return fcntl(fd, F_SETFL, event->step.flags ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

static int do_signal(struct event *event)
{
    struct worker *to = &world->worker[event->step.a];
    if (to->tid == 0)
        return 0;
    return syscall(SYS_tgkill, to->pid, to->tid, event->step.flags);
}

/* Forks a process that has what the event's process has at this moment, which is locked meanwhile. */
pid_t fork_into(struct event *event, int index)
{
    struct process *process = &world->process[event->process], *child = &world->process[index];
    pthread_mutex_lock(&process->lock);
    for (int slot = 0; slot < SLOTS; slot++) {
        child->changes[slot][0] = (struct change){.start = event->start, .end = FOREVER, .object = meaning(event->process, slot)};
        child->counts[slot] = 1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        child->pid = getpid();
        /* Sockets that another thread was about to move to a slot. */
        close_range(3, FIRST_FD - 1, 0);
        uint32_t now = tick();
        for (int slot = 0; slot < SLOTS; slot++)
            child->changes[slot][0].end = now;
    } else {
        /* It may not have run when all is over. */
        child->pid = pid;
        pthread_mutex_unlock(&process->lock);
    }
    return pid;
}

static int do_fork(struct event *event)
{
    struct worker *worker = &world->worker[event->step.a];
    pid_t pid = fork_into(event, worker->process);
    if (pid == 0) {
        work(worker);
        rest();
        _exit(0);
    }
    worker->pid = pid;
    return pid < 0 ? -1 : 1;
}

/* Keeps a process and its descriptors until all is over. */
void rest(void)
{
    while (!world->over)
        syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 50000000}, NULL);
}

static int (*const functions[])(struct event *) = {
    [SEND] = do_send,       [RECV] = do_receive,     [READ] = do_receive,   [ACCEPT] = do_accept,
    [CONNECT] = do_connect, [SHUTDOWN] = NULL,       [CLOSE] = do_close,    [DUP2] = do_dup2,
    [CONTROL] = do_control, [WAIT] = do_wait,        [POLL] = do_poll,      [SELECT] = do_select,
    [ARM] = do_arm,         [NONBLOCK] = do_nonblock, [SIGNAL] = do_signal, [FORK] = do_fork,
};

void perform(int index, const struct step *step)
{
    struct worker *worker = &world->worker[index];
    int number = worker->count;
    if (number == EVENTS)
        return;
    struct event *event = &worker->history[number];
    *event = (struct event){.step = *step, .worker = index, .number = number, .process = worker->process, .made = NONE, .gone = NONE};
    uint16_t ended = worker->ended, restarted = worker->restarted;
    event->start = tick();
    worker->count = number + 1;
    errno = 0;
    int result = step->operation == SHUTDOWN ? shutdown(descriptor(step->a), step->flags) : functions[step->operation](event);
    event->error = result < 0 ? errno : 0;
    event->result = result;
    event->ended = worker->ended - ended;
    event->restarted = worker->restarted - restarted;
    event->end = tick();
}

/* A thread of a program. */
void *work(void *argument)
{
    struct worker *worker = argument;
    self = (int)(worker - world->worker);
    worker->pid = getpid();
    worker->tid = syscall(SYS_gettid);
    for (int at = 0; at < worker->planned; at++)
        if (!worker->plan[at].dropped)
            perform(self, &worker->plan[at]);
    worker->done = true;
    return NULL;
}

static void keep(struct event *event, int fd, int slot, int object)
{
    if (fd < 0)
        fail("a descriptor");
    if (settle(event, fd, slot, object) < 0)
        fail("dup2");
}

static void connection(struct event *event, int listener, int near, int far)
{
    struct sockaddr_in address = loopback(listener_port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connect");
    int other = accept(listener, NULL, NULL);
    int one = new_object(STREAM, NONE), two = new_object(STREAM, one);
    world->object[one].peer = two;
    keep(event, fd, near, one);
    keep(event, other, far, two);
}

/* What is there when a program begins, in the first process. */
void set_up(void)
{
    struct event *event = &world->worker[0].history[0];
    *event = (struct event){.made = NONE, .gone = NONE};
    event->start = tick();
    for (int signal_number = SIGUSR1; signal_number <= SIGUSR2; signal_number += SIGUSR2 - SIGUSR1) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = signal_number == SIGUSR2 ? SA_RESTART : 0};
        sigaction(signal_number, &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = loopback(0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0)
        fail("listen");
    listener_port = port_of(listener, getsockname);
    connection(event, listener, 0, 1);
    connection(event, listener, 2, 3);
    connection(event, listener, 11, 12);
    keep(event, listener, 4, new_object(LISTENER, NONE));
    for (int i = 0; i < 3; i++)
        keep(event, epoll_create1(0), (const int[]){5, 6, 13}[i], new_object(SET, NONE));
    int ends[2];
    if (pipe(ends) != 0)
        fail("pipe");
    int in = new_object(PIPE_IN, NONE), out = new_object(PIPE_OUT, in);
    world->object[in].peer = out;
    keep(event, ends[0], 7, in);
    keep(event, ends[1], 8, out);
    keep(event, eventfd(0, EFD_NONBLOCK), 9, new_object(COUNTER, NONE));
    keep(event, timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 10, new_object(TIMER, NONE));
}
