/*
 * Epoll sets that processes share, and looks that signals interrupt.
 *
 * shared_sets kept     a child puts its own socket into a set that it shares, and closes the set: the parent is told of the socket
 * shared_sets silent   a set in another one has nothing to report: a process that has closed the inner one is told nothing
 * shared_sets masked   a signal that ppoll blocks never ends it
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void need(int is_so, const char *what)
{
    if (!is_so) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        _exit(1);
    }
}

static struct sockaddr_in address;

static int listener(void)
{
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    need(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 8) == 0, "listen");
    need(getsockname(fd, (struct sockaddr *)&address, &length) == 0, "getsockname");
    return fd;
}

static int connected(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    need(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    return fd;
}

static void add(int set, int fd, uint32_t events)
{
    struct epoll_event event = {.events = events};
    need(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static char byte;

static void tell(int pipe_end)
{
    need(write(pipe_end, &byte, 1) == 1, "write");
}

static void hear(int pipe_end)
{
    need(read(pipe_end, &byte, 1) == 1, "read");
}

/* What a statement does in its child, which then stays until the parent ends it. */
static pid_t child_of(void (*act)(void), int *said)
{
    int ends[2];
    need(pipe(ends) == 0, "pipe");
    pid_t pid = fork();
    need(pid >= 0, "fork");
    if (pid == 0) {
        act();
        tell(ends[1]);
        pause();
        _exit(0);
    }
    *said = ends[0];
    return pid;
}

static int set, inner, listening;

static void put_in_and_close(void)
{
    add(set, connected(), EPOLLIN);
    close(set);
}

static void kept(void)
{
    int said;
    struct epoll_event event;
    listening = listener();
    set = epoll_create1(0);
    pid_t pid = child_of(put_in_and_close, &said);
    hear(said);
    /* Nothing is there, and the set forgets nothing. */
    need(epoll_wait(set, &event, 1, 0) == 0, "the set reports what is not there");
    int other = accept(listening, NULL, NULL);
    need(other >= 0 && write(other, &byte, 1) == 1, "write");
    need(epoll_wait(set, &event, 1, 10000) == 1, "the set does not report the child's socket");
    kill(pid, SIGKILL);
}

static void change_inner(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    need(epoll_ctl(inner, EPOLL_CTL_MOD, listening, &event) == 0, "epoll_ctl");
}

static void silent(void)
{
    int said;
    struct epoll_event event;
    listening = listener();
    set = epoll_create1(0);
    inner = epoll_create1(0);
    add(set, inner, EPOLLIN | EPOLLET | EPOLLONESHOT);
    add(inner, listening, EPOLLIN);
    pid_t pid = child_of(change_inner, &said);
    close(inner);
    hear(said);
    need(epoll_wait(set, &event, 1, 0) == 0, "the outer set reports an inner one that has nothing");
    int other = connected();
    need(other >= 0 && epoll_wait(set, &event, 1, 10000) == 1, "the outer set does not report the inner one");
    kill(pid, SIGKILL);
}

static atomic_int over;
static pid_t polling;

static void on_signal(int number)
{
    (void)number;
}

static void *send_signals(void *unused)
{
    while (!over)
        syscall(SYS_tgkill, getpid(), polling, SIGUSR1);
    return unused;
}

static void masked(void)
{
    pthread_t sender;
    sigset_t mask;
    struct pollfd polled = {.events = POLLIN};
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL);
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    polled.fd = set = epoll_create1(0);
    add(set, listener(), EPOLLIN);
    polling = syscall(SYS_gettid);
    need(pthread_create(&sender, NULL, send_signals, NULL) == 0, "pthread_create");
    for (int i = 0; i < 100000; i++) {
        int found = ppoll(&polled, 1, &(struct timespec){0}, &mask);
        need(found >= 0, "ppoll with the signal blocked");
        need(found == 0, "the set shows what is not there");
    }
    over = 1;
}

int main(int argc, char **argv)
{
    const char *statement = argc > 1 ? argv[1] : "";
    if (strcmp(statement, "kept") == 0)
        kept();
    else if (strcmp(statement, "silent") == 0)
        silent();
    else if (strcmp(statement, "masked") == 0)
        masked();
    else
        return 2;
    _exit(0);
}
