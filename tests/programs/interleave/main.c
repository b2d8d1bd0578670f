/*
 * interleave FROM TO             runs the programs of these seeds; the first whose results nothing explains is printed, and ends it with status 1
 * interleave -n COUNT FROM TO    each that often
 * interleave -p MS ...           a thread that has to go on may sleep so long
 * interleave -s SEED             looks for the smallest part of a program that still fails
 * interleave -k TEXT             runs one that has been made smaller, as -s prints it: SEED:WORKER.STEP,...
 */
#include "world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct world *world;

/* How often a part of a program is run until it counts as one that does not fail. */
#define TRIES 60

/* How long a thread may sleep that has to go on, in ms. */
static unsigned patience = 6000;

static void clear(void)
{
    madvise(world, sizeof *world, MADV_REMOVE);
    world->patience_us = patience * 1000;
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    for (int i = 0; i < PROCESSES; i++)
        pthread_mutex_init(&world->process[i].lock, &shared);
}

/* The plan is in the world. Whether it violates anything. */
static bool run(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        control();
        _exit(0);
    }
    int status;
    while (waitpid(pid, &status, 0) != pid)
        ;
    for (int i = 1; i < PROCESSES; i++)
        if (world->process[i].pid)
            kill(world->process[i].pid, SIGKILL);
    if (status != 0)
        violation(NULL, "the first process ended with status %#x", status);
    if (!world->violation[0])
        check();
    return world->violation[0] != 0;
}

struct part {
    uint64_t seed;
    bool kept[WORKERS][PLANNED];
};

static bool run_part(const struct part *part)
{
    clear();
    make_plan(part->seed);
    for (int i = 0; i < WORKERS; i++)
        for (int at = 0; at < PLANNED; at++)
            world->worker[i].plan[at].dropped = !part->kept[i][at];
    return run();
}

static void print_part(const struct part *part)
{
    printf("%llu:", (unsigned long long)part->seed);
    for (int i = 0; i < WORKERS; i++)
        for (int at = 0; at < PLANNED; at++)
            if (part->kept[i][at])
                printf("%d.%d,", i, at);
    printf("\n");
}

static struct part read_part(const char *text)
{
    struct part part = {0};
    char *at;
    part.seed = strtoull(text, &at, 10);
    while (*at && at[1]) {
        unsigned worker = strtoul(at + 1, &at, 10), step = strtoul(at + 1, &at, 10);
        if (worker < WORKERS && step < PLANNED)
            part.kept[worker][step] = true;
    }
    return part;
}

static bool fails(const struct part *part)
{
    for (int i = 0; i < TRIES; i++)
        if (run_part(part))
            return true;
    return false;
}

static void report(const char *what)
{
    printf("%s: %s\n", what, world->violation);
    print_history();
    fflush(stdout);
}

/* Leaves out runs of steps, first long ones, as long as it fails without them. */
static void shrink(struct part *part)
{
    for (int length = PLANNED; length > 0; length /= 2) {
        for (int i = WORKERS - 1; i >= 0; i--) {
            for (int from = 0; from < PLANNED; from += length) {
                struct part less = *part;
                memset(&less.kept[i][from], 0, from + length > PLANNED ? PLANNED - from : length);
                if (memcmp(&less, part, sizeof less) == 0 || !fails(&less))
                    continue;
                *part = less;
                report("smaller");
                print_part(part);
            }
        }
    }
}

static struct part whole(uint64_t seed)
{
    struct part part = {.seed = seed};
    clear();
    make_plan(seed);
    for (int i = 0; i < WORKERS; i++)
        memset(part.kept[i], true, world->worker[i].planned);
    return part;
}

int main(int argc, char **argv)
{
    int option, times = 1;
    const char *kept = NULL, *shrunk = NULL;
    while ((option = getopt(argc, argv, "n:p:s:k:")) != -1) {
        if (option == 'n')
            times = atoi(optarg);
        else if (option == 'p')
            patience = atoi(optarg);
        else if (option == 's')
            shrunk = optarg;
        else if (option == 'k')
            kept = optarg;
        else
            return 2;
    }
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    uint64_t from = optind < argc ? strtoull(argv[optind], NULL, 10) : 0;
    uint64_t to = optind + 1 < argc ? strtoull(argv[optind + 1], NULL, 10) : from + 1;
    if (shrunk) {
        struct part part = strchr(shrunk, ':') ? read_part(shrunk) : whole(strtoull(shrunk, NULL, 10));
        shrink(&part);
        print_part(&part);
        return 0;
    }
    for (uint64_t seed = from; seed < to; seed++) {
        struct part part = kept ? read_part(kept) : whole(seed);
        for (int i = 0; i < times; i++) {
            if (run_part(&part)) {
                char what[64];
                snprintf(what, sizeof what, "seed %llu", (unsigned long long)part.seed);
                report(what);
                return 1;
            }
        }
    }
    printf("%llu programs, %d times each: nothing that the history does not explain\n", (unsigned long long)(to - from), times);
    return 0;
}
