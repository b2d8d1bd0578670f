/*
 * An attacker that shares an engine with others. Each seed is a process, and its children, that attach to the engine as the
 * shim does, and then do what a process of its user can do: control messages and descriptors in any order, random bytes in the
 * region, floods of submissions, system calls on every descriptor that it was given, forks, limits, and death at any moment.
 *
 *   tenant FIRST COUNT BATCH
 *
 * It runs as user 65534, without the shim. Before the first seed and after each BATCH seeds no process of theirs runs: it says
 * "quiet DONE ATTACHED", how many have been run and how many of them could attach, and goes on when it reads a line. The environment names the engine and the program's token. Seeds may be run again: the same
 * seed does the same things, though other processes may run between them in another order.
 */
#define _GNU_SOURCE
#include "tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOBODY = 65534, DEPTH_MAX = 2, STEPS_MAX = 160 };

uint64_t next(struct tenant *tenant)
{
    uint64_t state = tenant->state;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return tenant->state = state;
}

uint64_t below(struct tenant *tenant, uint64_t limit)
{
    return limit ? (next(tenant) >> 11) % limit : 0;
}

/* A number that code may stumble over. */
uint64_t some_word(struct tenant *tenant)
{
    static const uint64_t edges[] = { 0, 1, 2, 3, 4, 7, 8, 63, 64, 255, 256, 1023, 1024, 1025, 4095, 4096, 65535, 65536, 1u << 20,
                                      0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, INT64_MAX, 1ull << 63, UINT64_MAX - 1,
                                      UINT64_MAX };
    switch (below(tenant, 4)) {
    case 0:
        return next(tenant);
    case 1:
        return next(tenant) >> below(tenant, 64);
    default:
        return edges[below(tenant, sizeof edges / sizeof *edges)];
    }
}

/* Keeps a descriptor to use it; the one whose place it takes is closed. */
void keep(struct tenant *tenant, int fd)
{
    if (fd < 0)
        return;
    if (tenant->descriptor_count < DESCRIPTORS) {
        tenant->descriptors[tenant->descriptor_count++] = fd;
        return;
    }
    int *place = &tenant->descriptors[below(tenant, DESCRIPTORS)];
    close(*place);
    *place = fd;
}

int some_descriptor(struct tenant *tenant)
{
    if (below(tenant, 4) == 0)
        return tenant->controls[below(tenant, CONTROLS)];
    return tenant->descriptor_count ? tenant->descriptors[below(tenant, tenant->descriptor_count)] : -1;
}

static void attack(struct tenant *tenant, unsigned steps);
static void limit_waits(void);

/* A child that goes on by itself, announced or not, whose end may be told or not. */
static void fork_something(struct tenant *tenant)
{
    if (tenant->depth >= DEPTH_MAX)
        return;
    uint64_t ticket = below(tenant, 3) ? announce(tenant) : 0;
    uint64_t state = next(tenant) | 1;
    unsigned steps = below(tenant, 24);
    pid_t child = fork();
    if (child == 0) {
        tenant->state = state;
        tenant->depth++;
        limit_waits();
        /* Its parent's connections are its parent's, and it uses them too. */
        if (below(tenant, 4))
            attach(tenant, below(tenant, 4) ? ticket : some_word(tenant));
        attack(tenant, steps);
        _exit(0);
    }
    if (below(tenant, 3))
        tell_of_fork(tenant, ticket, below(tenant, 8) ? child : (pid_t)some_word(tenant));
    if (child > 0 && below(tenant, 3) == 0)
        kill(child, SIGSTOP), kill(child, SIGCONT);
    if (child > 0 && below(tenant, 3) == 0)
        kill(child, SIGKILL);
}

static void end_somehow(struct tenant *tenant)
{
    switch (below(tenant, 12)) {
    case 0:
        raise(SIGKILL);
        break;
    case 1:
        execl("/bin/true", "true", (char *)NULL);
        break;
    case 2:
        abort();
    }
}

static void step(struct tenant *tenant)
{
    switch (below(tenant, 16)) {
    case 0: case 1: case 2: case 3:
        return say_something(tenant);
    case 4: case 5: case 6:
        return submit_something(tenant);
    case 7: case 8:
        return scribble(tenant);
    case 9: case 10: case 11: case 12:
        return call_something(tenant);
    case 13:
        return below(tenant, 3) ? use_futex(tenant) : flood(tenant);
    case 14:
        return below(tenant, 4) ? attack_engine_process(tenant) : set_limit(tenant);
    case 15:
        if (below(tenant, 3) == 0)
            fork_something(tenant);
    }
}

static void attack(struct tenant *tenant, unsigned steps)
{
    for (unsigned done = 0; done < steps; done++)
        step(tenant);
    end_somehow(tenant);
}

static void ignore(int signal)
{
    (void)signal;
}

/* What it does to itself ends it. */
static void fault(int signal)
{
    (void)signal;
    _exit(0);
}

/* Whatever waits is interrupted. */
static void limit_waits(void)
{
    struct sigaction ignored = { .sa_handler = ignore }, faulty = { .sa_handler = fault };
    sigaction(SIGALRM, &ignored, NULL);
    sigaction(SIGSEGV, &faulty, NULL);
    sigaction(SIGBUS, &faulty, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGIO, SIG_IGN);
    struct itimerval often = { { 0, 3000 }, { 0, 3000 } };
    setitimer(ITIMER_REAL, &often, NULL);
    struct rlimit cpu = { 2, 2 };
    setrlimit(RLIMIT_CPU, &cpu);
}

static void run_seed(const struct tenant *base, uint64_t seed, int report)
{
    struct tenant tenant = *base;
    tenant.state = (seed + 1) * 0x9e3779b97f4a7c15u | 1;
    next(&tenant), next(&tenant);
    int ends[2];
    /* A new process of a well-behaved program can attach as long as this one is the only one. */
    int attached = attach(&tenant, 0);
    if (write(report, attached == 0 ? "y" : "n", 1) != 1)
        _exit(1);
    close(report);
    limit_waits();
    keep(&tenant, open("/dev/null", O_RDWR));
    keep(&tenant, eventfd(0, EFD_NONBLOCK));
    keep(&tenant, memfd_create("tenant", MFD_ALLOW_SEALING));
    if (pipe(ends) == 0)
        keep(&tenant, ends[0]), keep(&tenant, ends[1]);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0)
        keep(&tenant, ends[0]), keep(&tenant, ends[1]);
    attack(&tenant, 8 + below(&tenant, STEPS_MAX));
    _exit(0);
}

static void pause_for(uint64_t microseconds)
{
    struct timespec time = { microseconds / 1000000, microseconds % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

/* Ends the processes of a seed, of which this one is the ancestor. */
static void end_all(pid_t first)
{
    kill(-first, SIGKILL);
    for (;;) {
        pid_t ended = waitpid(-1, NULL, WNOHANG);
        if (ended < 0 && errno == ECHILD)
            return;
        if (ended == 0)
            kill(-first, SIGKILL), pause_for(200);
    }
}

/* Whether the seed's first process could attach. */
static int try_seed(struct tenant *base, uint64_t seed)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return 0;
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        close(report[0]);
        /* Nothing of this process is the seed's to use. */
        close(0);
        run_seed(base, seed, report[1]);
    }
    if (child < 0)
        return 0;
    setpgid(child, child);
    close(report[1]);
    char attached = 'n';
    if (read(report[0], &attached, 1) != 1)
        attached = 'n';
    close(report[0]);
    /* Its end comes by itself, within a second, or at some moment. */
    base->state = (seed + 1) * 0xd1342543de82ef95u | 1;
    next(base), next(base);
    if (below(base, 2)) {
        pause_for(below(base, 30000));
        if (below(base, 3) == 0)
            kill(-child, SIGSTOP), pause_for(below(base, 5000)), kill(-child, SIGCONT);
    } else {
        siginfo_t ended = { 0 };
        /* It stays a zombie, so that its group's number is nobody else's. */
        for (int waited = 0; waited < 500 && ended.si_pid == 0; waited++)
            if (waitid(P_PID, child, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0)
                pause_for(1000);
    }
    end_all(child);
    return attached == 'y';
}

/* The program's token, 32 hexadecimal digits. */
static int read_token(uint8_t *token, const char *text)
{
    for (int at = 0; at < 16; at++)
        if (sscanf(text + 2 * at, "%2hhx", &token[at]) != 1)
            return -1;
    return 0;
}

int main(int argc, char **argv)
{
    const char *engine = getenv("MILLRACE_ENGINE"), *token = getenv("MILLRACE_TOKEN");

    /* OWNER:ALIAS:PATH, of which the path is what a stranger finds too. */
    for (int colons = 0; engine && colons < 2 && *engine != '/' && strchr(engine, ':'); colons++)
        engine = strchr(engine, ':') + 1;
    if (argc != 4 || !engine || !token || strlen(token) != 32)
        return fprintf(stderr, "tenant FIRST COUNT BATCH, by millrace run\n"), 2;
    struct tenant base = { .engine = engine, .controls = { -1, -1, -1, -1 } };
    if (read_token(base.token, token) < 0)
        return 2;
    if (getuid() == 0 && (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY)))
        return perror("becoming nobody"), 1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_CORE, &none);
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10), batch = strtoull(argv[3], NULL, 10);
    unsigned attached = 0;
    for (uint64_t done = 0;; attached += try_seed(&base, first + done++)) {
        if (done % batch == 0 || done == count) {
            char line[16];
            printf("quiet %lu %u\n", (unsigned long)done, attached);
            fflush(stdout);
            if (done == count || !fgets(line, sizeof line, stdin))
                return 0;
        }
    }
}
