/*
 * Wake-ups that threads of one program take from each other, a thousand times.
 *
 *   rounds echo ADDRESS PORT              connects as soon as somebody listens, and sends back what comes, until the other side closes
 *   rounds STATEMENT ADDRESS PORT ROUNDS [CORE]
 *
 *   readd        one thread takes a socket out of a set, another puts it in again and waits; then a byte comes
 *   sleeper      one thread sleeps in a set without sockets, another puts one in and looks into the set at once; then a byte comes
 *   interrupted  a signal handler ends accept, recv, poll, select and epoll_wait of a thread that sleeps in them
 *
 * With a CORE all threads stay on it. The statements listen and wait for the connection of an `echo`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How long a wake-up may take before it counts as lost, in ms. */
#define PATIENCE 10000

static int listener, connection, rounds;

static void fail(const char *what, int round)
{
    fprintf(stderr, "%s, round %d: %s\n", what, round, strerror(errno));
    exit(1);
}

static struct sockaddr_in address_of(char **words)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    if (inet_aton(words[0], &address.sin_addr) == 0)
        fail(words[0], 0);
    return address;
}

static void no_delay(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int echo(char **words)
{
    struct sockaddr_in address = address_of(words);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    /* The other side may not listen yet. */
    for (int left = PATIENCE / 5; connect(fd, (struct sockaddr *)&address, sizeof address) != 0; left--) {
        if (left == 0)
            fail("connect", 0);
        close(fd);
        usleep(5000);
        fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    no_delay(fd);
    char bytes[64];
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (send(fd, bytes, got, MSG_NOSIGNAL) != got)
            return 0;
    return 0;
}

static void accept_echo(char **words)
{
    struct sockaddr_in address = address_of(words);
    int on = 1;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 5) != 0)
        fail("listen", 0);
    connection = accept(listener, NULL, NULL);
    if (connection < 0)
        fail("accept", 0);
    no_delay(connection);
}

static void ask_for_a_byte(int round)
{
    if (send(connection, "x", 1, MSG_NOSIGNAL) != 1)
        fail("send", round);
}

static void take_the_byte(int round)
{
    char byte;
    if (recv(connection, &byte, 1, 0) != 1)
        fail("recv", round);
}

/* Not sched_yield: Linux 6.18 lets threads that yield in a loop keep everybody else from a core for seconds. */
static void pause_shortly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
}

/* What two threads do in turn: each waits until the word has its value, and then sets the next. */
static atomic_int turn;

static void wait_for_turn(int value)
{
    while (turn != value)
        pause_shortly();
}

static int shared_set;

static void *take_out(void *unused)
{
    for (int round = 0; round < rounds; round++) {
        wait_for_turn(2 * round + 1);
        if (epoll_ctl(shared_set, EPOLL_CTL_DEL, connection, NULL) != 0)
            fail("EPOLL_CTL_DEL", round);
        turn = 2 * round + 2;
    }
    return unused;
}

static void readd(void)
{
    struct epoll_event wanted = {.events = EPOLLIN}, got;
    pthread_t other;
    shared_set = epoll_create1(0);
    if (epoll_ctl(shared_set, EPOLL_CTL_ADD, connection, &wanted) != 0)
        fail("EPOLL_CTL_ADD", 0);
    pthread_create(&other, NULL, take_out, NULL);
    for (int round = 0; round < rounds; round++) {
        turn = 2 * round + 1;
        wait_for_turn(2 * round + 2);
        if (epoll_ctl(shared_set, EPOLL_CTL_ADD, connection, &wanted) != 0)
            fail("EPOLL_CTL_ADD", round);
        ask_for_a_byte(round);
        if (epoll_wait(shared_set, &got, 1, PATIENCE) != 1)
            fail("the byte is not reported", round);
        take_the_byte(round);
    }
    pthread_join(other, NULL);
}

/* The other thread, as the kernel calls it. */
static atomic_int sleeper;

static bool is_asleep(void)
{
    char name[64], line[200] = "";
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", sleeper);
    FILE *file = fopen(name, "re");
    if (file == NULL || fgets(line, sizeof line, file) == NULL)
        fail(name, 0);
    fclose(file);
    const char *state = strrchr(line, ')');
    return state != NULL && state[2] == 'S';
}

static void wait_until_it_sleeps(void)
{
    while (sleeper == 0 || !is_asleep())
        pause_shortly();
}

static void *sleep_in_set(void *unused)
{
    struct epoll_event got;
    if (epoll_wait(shared_set, &got, 1, PATIENCE) != 1)
        fail("the byte wakes nobody", turn);
    take_the_byte(turn);
    return unused;
}

static void *sleep_in_sets(void *unused)
{
    sleeper = syscall(SYS_gettid);
    for (int round = 0; round < rounds; round++) {
        wait_for_turn(2 * round + 1);
        sleep_in_set(NULL);
        turn = 2 * round + 2;
    }
    return unused;
}

static void sleep_and_look(void)
{
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLET | EPOLLONESHOT}, got;
    int ends[2];
    pthread_t other;
    if (pipe(ends) != 0)
        fail("pipe", 0);
    pthread_create(&other, NULL, sleep_in_sets, NULL);
    for (int round = 0; round < rounds; round++) {
        struct epoll_event never = {.events = EPOLLIN};
        shared_set = epoll_create1(0);
        epoll_ctl(shared_set, EPOLL_CTL_ADD, ends[0], &never);
        turn = 2 * round + 1;
        wait_until_it_sleeps();
        if (epoll_ctl(shared_set, EPOLL_CTL_ADD, connection, &wanted) != 0)
            fail("EPOLL_CTL_ADD", round);
        epoll_wait(shared_set, &got, 1, 0);
        ask_for_a_byte(round);
        wait_for_turn(2 * round + 2);
        close(shared_set);
    }
    pthread_join(other, NULL);
}

static atomic_int handled;

static void handle(int number)
{
    (void)number;
    handled++;
}

static int wait_in_poll(void)
{
    struct pollfd polled = {.fd = connection, .events = POLLIN};
    return poll(&polled, 1, -1);
}

static int wait_in_select(void)
{
    fd_set in;
    FD_ZERO(&in);
    FD_SET(connection, &in);
    return select(connection + 1, &in, NULL, NULL, NULL);
}

static int wait_in_set(void)
{
    struct epoll_event got;
    return epoll_wait(shared_set, &got, 1, -1);
}

static int wait_in_recv(void)
{
    char byte;
    return recv(connection, &byte, 1, 0);
}

static int wait_in_accept(void)
{
    return accept(listener, NULL, NULL);
}

static const struct {
    const char *name;
    int (*wait)(void);
} calls[] = {
    {"accept", wait_in_accept}, {"recv", wait_in_recv}, {"poll", wait_in_poll}, {"select", wait_in_select}, {"epoll_wait", wait_in_set},
};
#define CALLS (int)(sizeof calls / sizeof *calls)

static void *be_interrupted(void *unused)
{
    sleeper = syscall(SYS_gettid);
    for (int round = 0; round < rounds * CALLS; round++) {
        turn = 2 * round + 1;
        int result = calls[round % CALLS].wait();
        if (result != -1 || errno != EINTR)
            fail(calls[round % CALLS].name, round);
        wait_for_turn(2 * round + 2);
    }
    return unused;
}

/* A call that no signal ends keeps this one waiting; the alarm says which. */
static void give_up(int number)
{
    (void)number;
    static const char text[] = "a handler has run and the call sleeps on\n";
    if (write(2, text, sizeof text - 1) > 0)
        _exit(1);
    _exit(2);
}

static void interrupt(void)
{
    struct epoll_event wanted = {.events = EPOLLIN};
    struct sigaction action = {.sa_handler = handle};
    pthread_t other;
    sigaction(SIGUSR1, &action, NULL);
    signal(SIGALRM, give_up);
    shared_set = epoll_create1(0);
    epoll_ctl(shared_set, EPOLL_CTL_ADD, connection, &wanted);
    pthread_create(&other, NULL, be_interrupted, NULL);
    for (int round = 0; round < rounds * CALLS; round++) {
        wait_for_turn(2 * round + 1);
        wait_until_it_sleeps();
        alarm(PATIENCE / 1000);
        int before = handled;
        pthread_kill(other, SIGUSR1);
        while (handled == before)
            pause_shortly();
        turn = 2 * round + 2;
        /* It says that its call has returned by beginning the next. */
        while (turn == 2 * round + 2 && round + 1 < rounds * CALLS)
            pause_shortly();
    }
    pthread_join(other, NULL);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    if (strcmp(argv[1], "echo") == 0)
        return echo(argv + 2);
    rounds = argc > 4 ? atoi(argv[4]) : 1000;
    if (argc > 5) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(atoi(argv[5]), &cores);
        if (sched_setaffinity(0, sizeof cores, &cores) != 0)
            fail("sched_setaffinity", 0);
    }
    accept_echo(argv + 2);
    if (strcmp(argv[1], "readd") == 0)
        readd();
    else if (strcmp(argv[1], "sleeper") == 0)
        sleep_and_look();
    else if (strcmp(argv[1], "interrupted") == 0)
        interrupt();
    else
        return 2;
    printf("%s: %d rounds\n", argv[1], rounds);
    return 0;
}
