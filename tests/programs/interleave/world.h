/*
 * Random threads and processes against an oracle.
 *
 * A seed makes a program of 2 to 8 threads in 1 to 3 processes that use sockets, epoll sets, poll, select, pipes, eventfds, timerfds, signals, dup2, close and
 * fork. Each operation is written into a history, with the value of a shared clock before and after it. The checker then looks for results that no order of
 * the operations explains. While the program runs, a controller looks for threads that sleep although what they wait for is there.
 *
 * Descriptors have fixed numbers: slot k of a process is descriptor FIRST_FD + k. Operations that change what a slot means take the process's lock, so that its
 * meanings are ordered; all other operations run beside them.
 */
#ifndef WORLD_H
#define WORLD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FIRST_FD 100
#define SLOTS 16
#define PROCESSES 5
/* Threads; the first is the controller, the last ones are those of processes that are forked on the way. */
#define WORKERS 11
#define OBJECTS 160
/* Operations that a plan has for one thread, and those that a history has room for. */
#define PLANNED 40
#define EVENTS 600
#define CHANGES 48
#define ITEMS 8
#define DATA (1 << 18)
#define NONE (-1)
#define FOREVER UINT32_MAX

enum kind { STREAM, LISTENER, SET, PIPE_IN, PIPE_OUT, COUNTER, TIMER };

enum operation {
    SEND,     /* a: slot, length: records */
    RECV,     /* a, length: bytes, flags: MSG_DONTWAIT or 0 */
    READ,     /* a, length */
    ACCEPT,   /* a: listener, b: where it goes */
    CONNECT,  /* a: listener, b: where it goes, flags: SOCK_NONBLOCK or 0 */
    SHUTDOWN, /* a, flags: how */
    CLOSE,    /* a */
    DUP2,     /* a to b */
    CONTROL,  /* a: set, b: slot, flags: EPOLL_CTL_*, events */
    WAIT,     /* a: set, length: room, timeout, mask */
    POLL,     /* items, timeout, mask */
    SELECT,   /* items, timeout */
    ARM,      /* a: timer */
    NONBLOCK, /* a, flags: on or off */
    SIGNAL,   /* a: worker, flags: signal */
    FORK,     /* a: worker of the child */
};

/* One step of a plan, and a random number for what is chosen when it is done. */
struct step {
    uint8_t operation, mask;
    int8_t a, b;
    uint8_t count;
    int8_t items[ITEMS];
    uint16_t wanted[ITEMS];
    int32_t flags, length, timeout;
    uint32_t events;
    bool dropped;
};

struct item {
    int8_t slot;
    uint32_t events;
    uint64_t data;
};

/* What was done, and what came of it. */
struct event {
    struct step step;
    _Atomic uint32_t start, end;
    uint16_t worker, number;
    int8_t process;
    int32_t result, error;
    /* Object that a slot got or lost by it; for CONNECT also if it failed. */
    int16_t made, gone;
    /* Handlers that ran meanwhile: without SA_RESTART, and with. */
    uint16_t ended, restarted;
    uint8_t count;
    struct item items[ITEMS];
    /* Where the bytes are that were read; the first record that was sent. */
    uint32_t data, record;
};

struct change {
    uint32_t start, end;
    int16_t object;
};

struct object {
    enum kind kind;
    int16_t peer;
    /* Of a connection that was opened on the way: its listener's object, and the opener's port. */
    int16_t listener;
    uint16_t port;
    bool opener;
    uint32_t made;
};

struct worker {
    struct step plan[PLANNED];
    int planned;
    int8_t process;
    /* 0 until it is started, then what the kernel calls it. */
    _Atomic int tid;
    _Atomic int pid;
    _Atomic bool done;
    _Atomic int count;
    struct event history[EVENTS];
    _Atomic uint16_t ended, restarted;
    uint32_t records;
};

struct process {
    _Atomic int pid;
    pthread_mutex_t lock;
    _Atomic int counts[SLOTS];
    struct change changes[SLOTS][CHANGES];
};

/* Shared by all processes of a seed, and by the driver, which looks at it after them. */
struct world {
    uint64_t seed, patience_us;
    _Atomic uint32_t clock;
    _Atomic bool over;
    _Atomic int objects;
    struct object object[OBJECTS];
    struct process process[PROCESSES];
    _Atomic int processes;
    struct worker worker[WORKERS];
    _Atomic uint32_t data_used;
    uint8_t data[DATA];
    /* What the controller or the checker found; none: empty. */
    char violation[400];
};

extern struct world *world;

struct record {
    uint16_t magic, worker;
    uint32_t number;
};
#define MAGIC 0x6d72

/* The clock, which every call moves. */
uint32_t tick(void);
int descriptor(int slot);

/* plan.c */
uint64_t draw(uint64_t *state);
unsigned below(uint64_t *state, unsigned limit);
void make_plan(uint64_t seed);

/* perform.c */
void set_up(void);
void perform(int worker, const struct step *step);
void *work(void *worker);
void place(struct event *event, int slot, int object);
pid_t fork_into(struct event *event, int process);
void rest(void);

/* control.c */
void control(void);

/* model.c */
bool may_mean(int process, int slot, uint32_t from, uint32_t to, int object);
/* The one object that it means all the time; else NONE. */
int must_mean(int process, int slot, uint32_t from, uint32_t to);
bool may_live(int object, uint32_t from, uint32_t to);
bool must_live(int object, uint32_t now);
uint32_t end_of(const struct event *event);
bool may_be_about(const struct event *event, int slot, int object);
bool is_about(const struct event *event, int slot, int object);
void match_connections(void);

/* ready.c */
bool may_be_ready(int object, uint32_t bits, uint32_t from, uint32_t to);
bool must_be_readable(int object, uint32_t now);
bool may_be_at_end(int object, uint32_t to);
bool may_be_shut(int object, int how, uint32_t to);
bool may_be_reset(int object, uint32_t to);
/* Whether a set must report the registration that this call made; a registration that it must report. */
bool is_pending(const struct event *control, uint32_t now);
const struct event *must_report(int set, uint32_t now);
/* Whether a call that has not returned has to. */
bool must_return(const struct event *event, uint32_t now);
bool may_block(const struct step *step);
struct event *registration(uint64_t token);
/* Every event of the history, in turn. */
struct event *next_event(int *worker, int *number);
#define EACH_EVENT(name)                                                                        \
    for (int each_worker_ = 0, each_number_ = 0; each_worker_ >= 0; each_worker_ = -1)          \
        for (struct event *name; (name = next_event(&each_worker_, &each_number_)) != NULL;)

/* check.c */
void check(void);
void check_streams(void);
__attribute__((format(printf, 2, 3))) void violation(const struct event *event, const char *format, ...);

/* print.c */
void print_history(void);


#endif
