/*
 * A single-threaded epoll server as one writes it for the kernel: non-blocking sockets, level triggering, no library.
 *
 *   server MODE ADDRESS PORT [MICROSECONDS]
 *
 *   short   reads 64 bytes, answers 64 bytes, closes
 *   echo    answers what it reads, until the client closes
 *   sink    reads and forgets
 *   source  writes until the client closes
 *   hold    does nothing
 *
 * Prints "ready" when it listens. Ends on SIGTERM. With MICROSECONDS the kernel asks the device for so long before it lets the server sleep (Linux 6.9).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum mode { SHORT, ECHO, SINK, SOURCE, HOLD };

#define MESSAGE 64
#define BULK (256 * 1024)
#define EVENTS 512

/* struct epoll_params and EPIOCSPARAMS of <linux/eventpoll.h>, which Debian 12 does not have. */
struct polling {
    uint32_t microseconds;
    uint16_t budget;
    uint8_t prefer, unused;
};
#define SET_POLLING _IOW(0x8A, 0x01, struct polling)

static char buffer[BULK];
static enum mode mode;
static int set;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* What a short connection has received so far, by descriptor. */
static unsigned char *received;

static void accept_all(int listener)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN)
                return;
            if (errno == ECONNABORTED || errno == EINTR)
                continue;
            fail("accept4");
        }
        int one = 1;
        if (mode == ECHO && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0)
            fail("TCP_NODELAY");
        received[fd] = 0;
        struct epoll_event event = { .events = mode == SOURCE ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = fd };
        /* What waits is told once. */
        if (mode == HOLD)
            event.events |= EPOLLET;
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
            fail("epoll_ctl");
    }
}

/* One read and what follows from it; 0 when the connection is to be closed. */
static int serve(int fd, unsigned events)
{
    if (mode == HOLD)
        return !(events & (EPOLLERR | EPOLLHUP));
    if (mode == SOURCE) {
        if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
            return 0;
        ssize_t written = write(fd, buffer, BULK);
        return written > 0 || (written < 0 && errno == EAGAIN);
    }
    ssize_t got = read(fd, buffer, mode == SINK ? BULK : mode == SHORT ? MESSAGE : 4096);
    if (got < 0)
        return errno == EAGAIN;
    if (got == 0)
        return 0;
    switch (mode) {
    case SHORT:
        received[fd] += got;
        if (received[fd] < MESSAGE)
            return 1;
        if (write(fd, buffer, MESSAGE) != MESSAGE)
            perror("write");
        return 0;
    case ECHO:
        return write(fd, buffer, got) == got;
    default:
        return 1;
    }
}

int main(int argc, char **argv)
{
    static const char *names[] = { "short", "echo", "sink", "source", "hold" };
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: server short|echo|sink|source|hold ADDRESS PORT [MICROSECONDS]\n");
        return 2;
    }
    for (mode = SHORT; mode <= HOLD && strcmp(argv[1], names[mode]); mode++)
        ;
    if (mode > HOLD) {
        fprintf(stderr, "server: no mode \"%s\"\n", argv[1]);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    received = calloc(limit.rlim_max, 1);

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0)
        fail("socket");
    int one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
    if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) {
        fprintf(stderr, "server: \"%s\" is no IPv4 address\n", argv[2]);
        return 2;
    }
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0)
        fail("bind");
    if (listen(listener, 4096) < 0)
        fail("listen");
    set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) < 0)
        fail("epoll");
    if (argc == 5) {
        struct polling polling = { .microseconds = atoi(argv[4]), .budget = 8 };
        if (ioctl(set, SET_POLLING, &polling) < 0)
            fail("EPIOCSPARAMS");
    }
    puts("ready");
    fflush(stdout);

    static struct epoll_event events[EVENTS];
    for (;;) {
        int count = epoll_wait(set, events, EVENTS, -1);
        if (count < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener)
                accept_all(listener);
            else if (!serve(fd, events[i].events))
                close(fd);
        }
    }
}
