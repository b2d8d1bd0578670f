// Says back what it hears, on port 7 of 10.77.0.2, with the kernel at the other end of a TAP device: one thread for each shard.
//
//     cc -pthread -o echo echo.c $(pkg-config --cflags --libs millrace)
//     sudo ./echo [SHARDS] &
//     nc 10.77.0.2 7
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <millrace.h>

enum { EVENTS = 64, SHARDS = 8, LOOK_MS = 200 };

static volatile sig_atomic_t ended;

static void end(int signal)
{
    (void)signal;
    ended = 1;
}

static void fail(const char *what)
{
    fprintf(stderr, "echo: %s: %s %s\n", what, strerror(errno), mr_error_text());
    exit(1);
}

static void watch(int set, int operation, int fd, uint32_t events)
{
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = events;
    event.data.fd = fd;
    if (mr_epoll_ctl(set, operation, fd, &event) < 0)
        fail("mr_epoll_ctl");
}

// Moves what has come to where it leaves from, as far as there is room. Returns 0 when the connection is over.
static int say_back(int set, int fd)
{
    for (;;) {
        struct iovec heard[2], room[2];
        ssize_t len = mr_peek(fd, heard);
        if (len < 0 && errno == EAGAIN) {
            watch(set, EPOLL_CTL_MOD, fd, EPOLLIN);
            return 1;
        }
        if (len <= 0)
            return 0;
        // What is written here has to be one piece of what was heard: the first of each is as good as any.
        ssize_t fits = mr_reserve(fd, heard[0].iov_len, room);
        if (fits < 0 && errno == EAGAIN) {
            watch(set, EPOLL_CTL_MOD, fd, EPOLLOUT);
            return 1;
        }
        if (fits <= 0)
            return 0;
        size_t part = room[0].iov_len;
        memcpy(room[0].iov_base, heard[0].iov_base, part);
        if (mr_commit(fd, part) < 0 || mr_consume(fd, part) < 0)
            return 0;
    }
}

// Until the end, which a thread notices by itself: the signal comes to one of them.
static void serve(int set, int listener)
{
    struct epoll_event events[EVENTS];
    while (!ended) {
        int count = mr_epoll_wait(set, events, EVENTS, LOOK_MS);
        if (count < 0 && errno != EINTR)
            fail("mr_epoll_wait");
        for (int at = 0; at < count; at++) {
            int fd = events[at].data.fd;
            if (fd != listener) {
                if (!say_back(set, fd))
                    mr_close(fd);
                continue;
            }
            while ((fd = mr_accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
                watch(set, EPOLL_CTL_ADD, fd, EPOLLIN);
        }
    }
}

struct shard {
    int engine, number;
};

static void *run(void *argument)
{
    struct shard *shard = argument;
    int stack = mr_stack_open(shard->engine, shard->number);
    if (stack < 0)
        fail("mr_stack_open");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7)};
    int listener = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || mr_bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        mr_listen(listener, 1024) < 0)
        fail("a listener");
    int set = mr_epoll_create(0);
    watch(set, EPOLL_CTL_ADD, listener, EPOLLIN);
    if (shard->number == 0) {
        puts("ready");
        fflush(stdout);
    }
    serve(set, listener);
    mr_stack_close(stack, 100);
    return NULL;
}

int main(int count, char **words)
{
    const char *shards = count > 1 ? words[1] : "1";
    const char *settings[][2] = {
        {"link", "tap"}, {"host", "10.77.0.1/24"}, {"address", "10.77.0.2/24"}, {"shards", shards}};
    int engine = mr_engine_new();
    for (size_t at = 0; at < sizeof settings / sizeof *settings; at++)
        if (mr_engine_set(engine, settings[at][0], settings[at][1]) < 0)
            fail("the configuration");
    int number = atoi(shards);
    if (number > SHARDS || mr_engine_start(engine) < 0)
        fail("the start");
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    pthread_t threads[SHARDS];
    struct shard all[SHARDS];
    for (int at = 0; at < number; at++) {
        all[at] = (struct shard){engine, at};
        if (at > 0 && pthread_create(&threads[at], NULL, run, &all[at]) != 0)
            fail("a thread");
    }
    run(&all[0]);
    for (int at = 1; at < number; at++)
        pthread_join(threads[at], NULL);
    return 0;
}
