// What the tests have in common: checks, and two hosts on one wire in a time of their own. C and C++.
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "millrace.h"

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno,       \
                    mr_error_text());                                                                  \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

// A call that fails with -1 and this number.
#define FAILS(call, number)                                                                            \
    do {                                                                                               \
        errno = 0;                                                                                     \
        CHECK((call) == -1 && errno == (number));                                                      \
    } while (0)

// Two stacks of this thread; what one sends the other gets, in `now`, which nobody but `run` moves.
struct pair {
    int stacks[2];
    uint64_t now;
    // Packets to lose, from now on.
    int lose;
};

void pair_open(struct pair *pair);
void pair_close(struct pair *pair);
// Carries packets until there are none.
void carry(struct pair *pair);
// Lets so many milliseconds pass, with everything that happens in them.
void run(struct pair *pair, int ms);
struct sockaddr_in at(const char *address, int port);
// A connection: the client's end in the first stack, the server's in the second, both not waiting.
void connected(struct pair *pair, int ends[2]);

void test_chance(void);
void test_connections(void);
void test_datagrams(void);
void test_events(void);
void test_lending(void);
void test_messages(void);
void test_misuse(void);
void test_options(void);
void test_packets(void);
void test_refusals(void);
void test_threads(void);
void test_waiting(void);

#endif
