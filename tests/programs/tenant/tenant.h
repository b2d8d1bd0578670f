/* A process that does to its engine what a process of its user can do, from a seed. See main.c. */
#ifndef TENANT_H
#define TENANT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { DESCRIPTORS = 64, CONTROLS = 4, SLOTS = 64, TICKETS = 16, POLLERS = 32, WORDS = 8 };

/* Kinds of request: crates/context/src/protocol.rs. */
enum kind {
    ATTACH = 1, FORK, FORKED, POLLER, POLLER_GONE, PROGRAM, SOCKETS, DOWN, HOLDS, DESCRIBE, SCALE, PASS, CLAIM, KINDS
};

/* What a process knows of its engine and may use against it. */
struct tenant {
    uint64_t state;           /* of the random numbers */
    const char *engine;       /* where its control socket is */
    uint8_t token[16];
    uint32_t version;
    pid_t engine_pid;
    int depth;                /* of forks since the seed's first process */
    int controls[CONTROLS];   /* connections to the control socket, -1 for none */
    int descriptors[DESCRIPTORS];
    unsigned descriptor_count;
    uint8_t *region;          /* NULL before the process is attached */
    size_t region_size;
    uint32_t slots, contexts, pollers, shards, process, context, own_contexts;
    uint64_t arena;
    uint64_t known_slots[SLOTS], tickets[TICKETS];
    uint32_t known_pollers[POLLERS];
    unsigned slot_count, ticket_count, poller_count;
};

/* main.c */
uint64_t next(struct tenant *tenant);
uint64_t below(struct tenant *tenant, uint64_t limit);
uint64_t some_word(struct tenant *tenant);
void keep(struct tenant *tenant, int fd);
int some_descriptor(struct tenant *tenant);

/* control.c */
int control_connect(const char *engine);
int attach(struct tenant *tenant, uint64_t ticket);
void say_something(struct tenant *tenant);
uint64_t announce(struct tenant *tenant);
void tell_of_fork(struct tenant *tenant, uint64_t ticket, pid_t child);

/* region.c */
void scribble(struct tenant *tenant);
void submit_something(struct tenant *tenant);
void flood(struct tenant *tenant);
void use_futex(struct tenant *tenant);

/* calls.c */
void call_something(struct tenant *tenant);
void set_limit(struct tenant *tenant);
void attack_engine_process(struct tenant *tenant);

#endif
