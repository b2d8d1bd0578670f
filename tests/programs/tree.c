/* A tree of processes that have connections in common. Each reads commands from a pipe of its own (DIRECTORY/N), so that a test can make, use and end them
 * in any order:
 *
 *   make N HOW       makes process N by one of the ways below; it says "up N PID"
 *   pass HOW         makes a child by vfork that closes everything and is gone before this one goes on
 *   accept C SEQ     accepts connection C
 *   write C BYTE SEQ writes a byte to it
 *   await C SEQ      waits until there is something to read from it
 *   close C SEQ      closes it
 *   end HOW          ends by exit, _exit or abort
 *
 * What has a SEQ says "done SEQ". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LISTENER = 99, CONNECTIONS = 100, CONNECTIONS_MAX = 8, COMMANDS = 90, STACK = 1 << 16 };

extern char **environ;
static const char *self, *directory;
static char new_name[16];
static void serve(const char *name);

static void check(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "tree %d: %s: %s\n", getpid(), what, strerror(errno));
    _exit(1);
}

static void say(const char *what, const char *name, int number) {
    char line[64];
    int len = number >= 0 ? snprintf(line, sizeof line, "%s %s %d\n", what, name, number)
                          : snprintf(line, sizeof line, "%s %s\n", what, name);
    check(write(1, line, len) == len, "saying");
}

static int as_child(void *unused) {
    (void)unused;
    serve(new_name);
    return 0;
}

static int as_next_program(void *arguments) {
    execv(self, arguments);
    _exit(1);
}

static void *fork_in_thread(void *unused) {
    (void)unused;
    if (fork() == 0) serve(new_name);
    return NULL;
}

static void fork_in_handler(int signal) {
    (void)signal;
    if (fork() == 0) serve(new_name);
}

static void *sleep_in_accept(void *unused) {
    (void)unused;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(listen(listener, 1) == 0, "listening");
    return (void *)(long)accept(listener, NULL, NULL);
}

static void *sleep_in_epoll(void *unused) {
    (void)unused;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET};
    int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(set, EPOLL_CTL_ADD, LISTENER, &event);
    return (void *)(long)epoll_wait(set, &event, 1, -1);
}

/* fork by the system call itself, which no library sees. */
static long fork_past_the_library(void) {
#ifdef __x86_64__
    long result;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_clone), "D"(SIGCHLD), "S"(0), "d"(0), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
#else
    return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#endif
}

/* Uses what it has of its parent's, so that it has shown itself before the parent goes on. */
static void touch_all(void) {
    int error;
    socklen_t len = sizeof error;
    for (int fd = LISTENER; fd < CONNECTIONS + CONNECTIONS_MAX; fd++) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
}

static void make(const char *name, const char *how) {
    snprintf(new_name, sizeof new_name, "%s", name);
    char *arguments[] = {(char *)self, (char *)directory, new_name, NULL};
    long pid = 1;
    if (!strcmp(how, "fork")) {
        pid = fork();
    } else if (!strcmp(how, "vfork")) {
        if ((pid = vfork()) == 0) {
            execv(self, arguments);
            _exit(1);
        }
    } else if (!strcmp(how, "spawn")) {
        pid_t child;
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addclose(&actions, COMMANDS);
        posix_spawn_file_actions_addopen(&actions, COMMANDS + 1, "/dev/null", O_RDONLY, 0);
        check(posix_spawn(&child, self, &actions, NULL, arguments, environ) == 0, "posix_spawn");
        posix_spawn_file_actions_destroy(&actions);
    } else if (!strcmp(how, "clone-call")) {
        pid = syscall(SYS_clone, CLONE_NEWIPC | SIGCHLD, 0, 0, 0, 0);
    } else if (!strcmp(how, "clone-net")) {
        pid = syscall(SYS_clone, CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0);
    } else if (!strcmp(how, "clone3-call")) {
        struct clone_args clone = {.exit_signal = SIGCHLD};
        pid = syscall(SYS_clone3, &clone, sizeof clone);
    } else if (!strcmp(how, "clone")) {
        char *stack = malloc(STACK);
        pid = clone(as_child, stack + STACK, SIGCHLD, NULL);
    } else if (!strcmp(how, "clone-vfork")) {
        char *stack = malloc(STACK);
        pid = clone(as_next_program, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, arguments);
    } else if (!strcmp(how, "past")) {
        if ((pid = fork_past_the_library()) == 0) touch_all();
    } else if (!strcmp(how, "double")) {
        if ((pid = fork()) == 0 && (pid = fork()) != 0) _exit(pid < 0);
    } else if (!strcmp(how, "daemon")) {
        if ((pid = fork()) == 0) check(daemon(1, 1) == 0, "daemon");
    } else if (!strcmp(how, "thread")) {
        pthread_t thread;
        check(pthread_create(&thread, NULL, fork_in_thread, NULL) == 0, "a thread");
        pthread_join(thread, NULL);
    } else if (!strcmp(how, "handler")) {
        signal(SIGUSR1, fork_in_handler);
        raise(SIGUSR1);
    } else if (!strcmp(how, "sleepers")) {
        pthread_t threads[2];
        check(pthread_create(&threads[0], NULL, sleep_in_accept, NULL) == 0, "a thread");
        check(pthread_create(&threads[1], NULL, sleep_in_epoll, NULL) == 0, "a thread");
        usleep(1000);
        pid = fork();
    } else {
        check(0, how);
    }
    check(pid >= 0, how);
    if (pid == 0) serve(new_name);
}

/* A child that is gone before its parent goes on. */
static void pass(const char *how) {
    if (vfork() == 0) {
        for (int fd = LISTENER; fd < CONNECTIONS + CONNECTIONS_MAX; fd++) {
            if (!strcmp(how, "close")) close(fd);
            if (!strcmp(how, "replace")) dup2(COMMANDS, fd);
        }
        _exit(0);
    }
}

static void command(char *line) {
    char *verb = strtok(line, " "), *first = strtok(NULL, " "), *second = strtok(NULL, " "), *third = strtok(NULL, " ");
    int fd = CONNECTIONS + atoi(first);
    char *sequence = second;
    if (!strcmp(verb, "make")) {
        make(first, second);
        return;
    } else if (!strcmp(verb, "pass")) {
        pass(first);
    } else if (!strcmp(verb, "end")) {
        if (!strcmp(first, "exit")) exit(0);
        if (!strcmp(first, "abort")) abort();
        _exit(0);
    } else if (!strcmp(verb, "accept")) {
        int accepted = accept(LISTENER, NULL, NULL);
        check(accepted >= 0, "accept");
        check(dup2(accepted, fd) == fd && close(accepted) == 0, "moving it");
    } else if (!strcmp(verb, "write")) {
        check(write(fd, second, 1) == 1, "write");
        sequence = third;
    } else if (!strcmp(verb, "await")) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        check(poll(&polled, 1, 10000) == 1, "poll");
    } else if (!strcmp(verb, "close")) {
        check(close(fd) == 0, "close");
    }
    say("done", sequence, -1);
}

static void serve(const char *name) {
    char path[256], own[16], line[128];
    int len = 0;
    sigset_t none;
    /* It may have been made in a signal handler. */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    snprintf(own, sizeof own, "%s", name);
    snprintf(path, sizeof path, "%s/%s", directory, own);
    /* Its own end for writing too, so that it never ends. */
    int pipe = open(path, O_RDWR | O_CLOEXEC);
    check(pipe >= 0 && dup2(pipe, COMMANDS) == COMMANDS && close(pipe) == 0, path);
    say("up", own, getpid());
    for (;;) {
        check(read(COMMANDS, line + len, 1) == 1, "a command");
        if (line[len] != '\n') {
            len++;
            continue;
        }
        line[len] = 0;
        len = 0;
        command(line);
    }
}

int main(int count, char **arguments) {
    self = "/proc/self/exe";
    char path[256];
    ssize_t len = readlink(self, path, sizeof path - 1);
    check(len > 0, self);
    path[len] = 0;
    self = path;
    directory = arguments[1];
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    if (count == 3) serve(arguments[2]);
    /* The first has no part in it: it stays until its standard input ends. */
    if (fork() > 0) {
        while (read(0, path, sizeof path) > 0) {}
        return 0;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[3]))};
    inet_aton(arguments[2], &address.sin_addr);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    check(listen(listener, 16) == 0, "listen");
    check(dup2(listener, LISTENER) == LISTENER && close(listener) == 0, "moving it");
    serve("0");
}
