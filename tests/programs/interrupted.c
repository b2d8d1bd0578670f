/*
 * Signals for a thread that blocks: a handler with SA_RESTART writes what the interrupted read then gets; one without ends epoll_wait, accept
 * and read. Prints a line for each.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile sig_atomic_t handled;
static int peer;
static pthread_t blocked;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s: errno %d, %d handled\n", __LINE__, #condition, errno, (int)handled); \
            exit(1); \
        } \
    } while (0)

static void handle(int signal)
{
    (void)signal;
    handled++;
    if (write(peer, "x", 1) != 1)
        _exit(9);
}

static void *interrupt(void *argument)
{
    /* The thread blocks by then. */
    usleep(500000);
    pthread_kill(blocked, SIGUSR1);
    return argument;
}

static pthread_t interrupting(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, interrupt, NULL) == 0);
    return thread;
}

int main(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof address;
    char byte;
    blocked = pthread_self();
    int listener = socket(AF_INET, SOCK_STREAM, 0), near = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 4) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    CHECK(connect(near, (struct sockaddr *)&address, sizeof address) == 0);
    peer = accept(listener, NULL, NULL);
    CHECK(peer >= 0);

    struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_t thread = interrupting();
    CHECK(read(near, &byte, 1) == 1 && handled == 1);
    pthread_join(thread, NULL);
    puts("read restarted");

    action.sa_flags = 0;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    int set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    thread = interrupting();
    CHECK(epoll_wait(set, &event, 1, -1) == -1 && errno == EINTR && handled == 2);
    pthread_join(thread, NULL);
    puts("epoll_wait interrupted");

    thread = interrupting();
    CHECK(accept(listener, NULL, NULL) == -1 && errno == EINTR && handled == 3);
    pthread_join(thread, NULL);
    puts("accept interrupted");
    return 0;
}
