/* Datagram sockets of threads and processes: what they share, and what they say to each other. */
#include "harness.h"

static struct sockaddr *any(struct sockaddr_in *address)
{
    return (struct sockaddr *)address;
}

/* The next datagram is these bytes. */
static void expect(int fd, const char *bytes, size_t length)
{
    char got[16];
    wait_for(fd, POLLIN);
    EQUAL(recv(fd, got, sizeof got, 0), (ssize_t)length);
    CHECK(memcmp(got, bytes, length) == 0);
}

enum { THREADS = 4, SHARED = 2000 };
static int shared_socket;
static unsigned char taken_by[SHARED];
static int taken;

static void *take_some(void *unused)
{
    (void)unused;
    for (;;) {
        unsigned short number;
        ssize_t count = recv(shared_socket, &number, sizeof number, 0);
        EQUAL(count, sizeof number);
        if (number == SHARED)
            return NULL;
        __atomic_fetch_add(&taken_by[number], 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    }
}

/* Until no more than so many are on the way: more than a device or a socket holds would be lost. */
static void wait_for_takers(int sent, int on_the_way)
{
    while (sent - __atomic_load_n(&taken, __ATOMIC_RELAXED) > on_the_way)
        pause_ms(1);
}

STATEMENT(u6_threads_take_each_datagram_once)
{
    struct pair pair = datagram_pair();
    pthread_t threads[THREADS];
    shared_socket = pair.near;
    int room = 1 << 20;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    memset(taken_by, 0, sizeof taken_by);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(take_some, NULL);
    for (unsigned short number = 0; number < SHARED; number++) {
        EQUAL(send(pair.far, &number, sizeof number, 0), sizeof number);
        wait_for_takers(number + 1, 50);
    }
    wait_for_takers(SHARED, 0);
    unsigned short end = SHARED;
    for (int i = 0; i < THREADS; i++)
        EQUAL(send(pair.far, &end, sizeof end, 0), sizeof end);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARED; i++)
        EQUAL(taken_by[i], 1);
    close_pair(&pair);
}

static void *send_some(void *argument)
{
    for (int i = 0; i < SHARED / THREADS; i++) {
        unsigned short number = (intptr_t)argument * (SHARED / THREADS) + i;
        EQUAL(send(shared_socket, &number, sizeof number, 0), sizeof number);
        if (i % 20 == 0)
            pause_ms(1);
    }
    return NULL;
}

STATEMENT(u6_threads_send_each_datagram_once)
{
    struct pair pair = datagram_pair();
    pthread_t threads[THREADS];
    shared_socket = pair.near;
    int room = 1 << 20;
    EQUAL(setsockopt(pair.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    memset(taken_by, 0, sizeof taken_by);
    for (intptr_t i = 0; i < THREADS; i++)
        threads[i] = start_thread(send_some, (void *)i);
    for (int i = 0; i < SHARED; i++) {
        unsigned short number = 0;
        wait_for(pair.far, POLLIN);
        EQUAL(recv(pair.far, &number, sizeof number, 0), sizeof number);
        taken_by[number]++;
    }
    for (int i = 0; i < SHARED; i++)
        EQUAL(taken_by[i], 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    close_pair(&pair);
}

/* A connected client of a port of this host, in a thread of its own: asks, hears the answer, and learns when nobody is there any more. */
static void *ask_from_a_thread(void *argument)
{
    struct sockaddr_in *server = argument;
    char byte;
    for (int round = 0; round < 20; round++) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        EQUAL(connect(fd, any(server), sizeof *server), 0);
        EQUAL(send(fd, "?", 1, 0), 1);
        wait_for(fd, POLLIN);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        EQUAL(byte, '!');
        /* With another peer it is heard as well. */
        struct sockaddr_in other_end;
        int other = datagram_near(&other_end);
        EQUAL(connect(fd, any(&other_end), sizeof other_end), 0);
        struct sockaddr_in own;
        socklen_t length = sizeof own;
        EQUAL(getsockname(fd, any(&own), &length), 0);
        EQUAL(sendto(other, "y", 1, 0, any(&own), length), 1);
        wait_for(fd, POLLIN);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        EQUAL(byte, 'y');
        close(other);
        EQUAL(send(fd, "x", 1, 0), 1);
        wait_for(fd, POLLERR);
        FAILS(recv(fd, &byte, 1, 0), ECONNREFUSED);
        close(fd);
    }
    return NULL;
}

STATEMENT(u6_clients_in_threads_speak_with_a_server_of_their_host)
{
    struct sockaddr_in address, from;
    int server = datagram_near(&address);
    pthread_t threads[3];
    /* Each shard that answers has to know its neighbour before: who is not known yet gets only the last of a burst. */
    for (int i = 0; i < 8; i++) {
        char byte;
        socklen_t length = sizeof from;
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        EQUAL(connect(fd, any(&address), sizeof address), 0);
        EQUAL(send(fd, "?", 1, 0), 1);
        wait_for(server, POLLIN);
        EQUAL(recvfrom(server, &byte, 1, 0, any(&from), &length), 1);
        EQUAL(sendto(server, "!", 1, 0, any(&from), length), 1);
        wait_for(fd, POLLIN);
        EQUAL(recv(fd, &byte, 1, 0), 1);
        close(fd);
    }
    for (int i = 0; i < 3; i++)
        threads[i] = start_thread(ask_from_a_thread, &address);
    for (int i = 0; i < 60; i++) {
        char byte;
        socklen_t length = sizeof from;
        wait_for(server, POLLIN);
        EQUAL(recvfrom(server, &byte, 1, 0, any(&from), &length), 1);
        EQUAL(sendto(server, "!", 1, 0, any(&from), length), 1);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    close(server);
}

/* A socket that shares a port, bound in a thread of its own. */
static void *share_in_a_thread(void *argument)
{
    static const int on = 1;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
    EQUAL(bind(fd, any(argument), sizeof(struct sockaddr_in)), 0);
    return (void *)(intptr_t)fd;
}

STATEMENT(u6_a_reuseport_group_of_threads_loses_nothing)
{
    enum { MEMBERS = 3, SENDERS = 40 };
    struct sockaddr_in near, far;
    close(datagram_near(&near));
    int members[MEMBERS], senders[SENDERS], seen[SENDERS] = { 0 }, all = 0;
    for (int i = 0; i < MEMBERS; i++) {
        void *made;
        pthread_join(start_thread(share_in_a_thread, &near), &made);
        members[i] = (intptr_t)made;
    }
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = datagram_far(&far);
        EQUAL(connect(senders[i], any(&near), sizeof near), 0);
        char byte = i;
        EQUAL(send(senders[i], &byte, 1, 0), 1);
        pause_ms(1);
    }
    for (long long until = now_ms() + 5000; all < SENDERS && now_ms() < until; pause_ms(1))
        for (int i = 0; i < MEMBERS; i++) {
            char byte;
            while (recv(members[i], &byte, 1, 0) == 1) {
                CHECK(byte >= 0 && byte < SENDERS && !seen[(int)byte]++);
                all++;
            }
        }
    EQUAL(all, SENDERS);
    for (int i = 0; i < SENDERS; i++)
        close(senders[i]);
    for (int i = 0; i < MEMBERS; i++)
        close(members[i]);
}

STATEMENT(u6_a_child_shares_a_datagram_socket)
{
    struct pair pair = datagram_pair();
    pid_t child = fork_child();
    if (child == 0) {
        char got[8];
        wait_for(pair.near, POLLIN);
        if (recv(pair.near, got, sizeof got, 0) != 5 || memcmp(got, "child", 5))
            _exit(1);
        _exit(send(pair.near, "done", 4, 0) != 4);
    }
    EQUAL(send(pair.far, "child", 5, 0), 5);
    expect(pair.far, "done", 4);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    EQUAL(send(pair.far, "parent", 6, 0), 6);
    expect(pair.near, "parent", 6);
    int copy = dup(pair.near);
    CHECK(copy >= 0);
    close(pair.near);
    EQUAL(send(pair.far, "copy", 4, 0), 4);
    expect(copy, "copy", 4);
    pair.near = copy;
    close_pair(&pair);
}
