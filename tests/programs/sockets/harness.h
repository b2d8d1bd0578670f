/*
 * Statements about stream and datagram sockets, each a small function that ends the process with a message when it does not hold.
 *
 * Two ends are needed. The near one is on the stack under test. The far one is on the same stack (loopback), or, with a peer's
 * address given, on the kernel: its socket is then made by system calls that no library sees.
 */
#ifndef HARNESS_H
#define HARNESS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Adds a statement to the list. Its name is what the test is called. */
void add_statement(const char *name, void (*run)(void));

#define STATEMENT(name)                                                            \
    static void name(void);                                                        \
    __attribute__((constructor)) static void add_##name(void)                      \
    {                                                                              \
        add_statement(#name, name);                                                \
    }                                                                              \
    static void name(void)

/* Ends the process unless the condition holds. */
#define CHECK(condition)                                                           \
    do {                                                                           \
        if (!(condition))                                                          \
            broken(__FILE__, __LINE__, #condition);                                \
    } while (0)

/* Ends the process unless two integers are equal; shows both. */
#define EQUAL(got, expected)                                                       \
    do {                                                                           \
        long long got_ = (got), expected_ = (expected);                            \
        if (got_ != expected_)                                                     \
            unequal(__FILE__, __LINE__, #got, got_, expected_);                    \
    } while (0)

/* Ends the process unless the call gives -1 and this errno. */
#define FAILS(call, expected_errno)                                                \
    do {                                                                           \
        errno = 0;                                                                 \
        long long result_ = (call);                                                \
        int errno_ = errno;                                                        \
        if (result_ != -1 || errno_ != (expected_errno))                           \
            did_not_fail(__FILE__, __LINE__, #call, result_, errno_, expected_errno); \
    } while (0)

void broken(const char *file, int line, const char *condition) __attribute__((noreturn));
void unequal(const char *file, int line, const char *what, long long got, long long expected) __attribute__((noreturn));
void did_not_fail(const char *file, int line, const char *call, long long result, int got, int expected) __attribute__((noreturn));

/* A connection: `near` is on the stack under test. */
struct pair {
    int near, far;
};

/* Whether the far end is on the same stack. */
extern bool is_loopback;

/* The address of the stack under test, with this port (0: any). */
struct sockaddr_in near_address(int port);
/* An address at which the far end listens on this port; the same as the near one on loopback. */
struct sockaddr_in far_address(int port);

/* A listening socket on the stack under test, at a port of its own. */
int listen_near(struct sockaddr_in *address);
/* A socket of the far end that listens. */
int listen_far(struct sockaddr_in *address);
/* A socket of the far end; `connect_far` connects it. */
int socket_far(void);
int connect_far(const struct sockaddr_in *address);
/* As connect_far, without waiting for it; the descriptor does not block. */
int start_connect_far(const struct sockaddr_in *address);
/* Takes a connection on a socket of the far end. */
int accept_far(int listener);

/* A connection; the near end has accepted it, or connected, as the command line says. */
struct pair make_pair(void);
/* As make_pair; the near end has accepted. */
struct pair accepted_pair(void);
/* As make_pair; the near end has connected. */
struct pair connected_pair(void);
void close_pair(struct pair *pair);

/* A datagram socket of the stack under test, or of the far end, bound to a port of its own; tells which. */
int datagram_near(struct sockaddr_in *address);
int datagram_far(struct sockaddr_in *address);
/* One of the far end at this address, a group's for example; tells the port if that is 0. */
int datagram_far_at(struct sockaddr_in *address);
/* Two of them, connected to each other. */
struct pair datagram_pair(void);

void set_blocking(int fd, bool blocking);
/* Waits until `poll` says one of these events, for some seconds. */
void wait_for(int fd, short events);
/* Writes or reads all of it, whatever the mode of the descriptor. */
void write_all(int fd, const void *data, size_t length);
void read_all(int fd, void *data, size_t length);
/* Writes until neither end takes any more, and for a while after that; how much. Leaves the descriptor blocking. */
size_t fill_up(int fd);
/* The next read gives the end of the stream. */
void expect_end(int fd);
/* Fills with bytes of a sequence, or checks them; `at` is the place in the sequence. */
void fill(void *data, size_t length, uint64_t at);
bool matches(const void *data, size_t length, uint64_t at);

/* As fork; the child does not outlive its parent. */
pid_t fork_child(void);
/* A thread that runs `body(argument)`; joined by pthread_join. */
pthread_t start_thread(void *(*body)(void *), void *argument);
/* Lets `milliseconds` pass. */
void pause_ms(int milliseconds);
long long now_ms(void);
/* Handles a signal by counting it; `flags` as for sigaction. */
void count_signal(int signal, int flags);
extern volatile sig_atomic_t signals_seen;
/* Sends this thread a signal after some milliseconds, again and again until it is asked to stop. */
struct pester;
struct pester *pester_me(int signal, int milliseconds);
void stop_pestering(struct pester *pester);

/* Runs this program again as `command` with one more argument; for exec. */
extern const char *own_path;
void add_command(const char *name, int (*run)(const char *argument));

#endif
