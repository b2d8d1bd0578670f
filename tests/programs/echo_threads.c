/*
 * A server in one thread, on epoll, and two clients in threads of their own, which block and wait for answers by every call: what a debugger or a
 * checker of memory and threads is put on. Both ends are on the stack under test, at 127.0.0.1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLIENTS 2
#define CONNECTIONS 2
#define ROUNDS 10
#define MESSAGE 4096

static struct sockaddr_in address;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            perror(#condition); \
            exit(1); \
        } \
    } while (0)

static void watch(int set, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* A breakpoint's place. */
__attribute__((noinline)) static int answer(int fd)
{
    char buffer[MESSAGE];
    ssize_t len = read(fd, buffer, sizeof buffer);
    CHECK(len >= 0);
    if (len > 0)
        CHECK(write(fd, buffer, len) == len);
    return len > 0;
}

static void *serve(void *argument)
{
    int listener = *(int *)argument;
    int set = epoll_create1(0);
    watch(set, listener);
    for (int closed = 0; closed < CLIENTS * CONNECTIONS;) {
        struct epoll_event events[8];
        int count = epoll_wait(set, events, 8, 30000);
        /* A debugger that stops the thread interrupts the call. */
        CHECK(count > 0 || (count < 0 && errno == EINTR));
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                fd = accept(listener, NULL, NULL);
                CHECK(fd >= 0);
                watch(set, fd);
            } else if (!answer(fd)) {
                close(fd);
                closed++;
            }
        }
    }
    close(set);
    return NULL;
}

static void ask(int fd, int round)
{
    char sent[MESSAGE], got[MESSAGE];
    memset(sent, 'a' + round, sizeof sent);
    CHECK(send(fd, sent, sizeof sent, 0) == sizeof sent);
    for (size_t len = 0; len < sizeof got;) {
        struct pollfd polled = { .fd = fd, .events = POLLIN };
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(fd, &readable);
        if (round % 3 == 1)
            CHECK(poll(&polled, 1, 30000) == 1);
        if (round % 3 == 2)
            CHECK(select(fd + 1, &readable, NULL, NULL, NULL) == 1);
        ssize_t part = recv(fd, got + len, sizeof got - len, 0);
        CHECK(part > 0 || (part < 0 && errno == EINTR));
        len += part > 0 ? part : 0;
    }
    CHECK(memcmp(sent, got, sizeof got) == 0);
}

static void *call(void *argument)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct timeval time = { .tv_sec = 30 };
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        for (int round = 0; round < ROUNDS; round++)
            ask(fd, round);
        CHECK(close(fd) == 0);
    }
    return argument;
}

int main(void)
{
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(listener, 16) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    pthread_t server, clients[CLIENTS];
    CHECK(pthread_create(&server, NULL, serve, &listener) == 0);
    for (int i = 0; i < CLIENTS; i++)
        CHECK(pthread_create(&clients[i], NULL, call, NULL) == 0);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i], NULL);
    pthread_join(server, NULL);
    close(listener);
    puts("done");
    return 0;
}
