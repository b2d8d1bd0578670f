/* One set or one descriptor used by several threads at once, and ways round the usual calls. */
#include "harness.h"
#include <sys/syscall.h>

#define SOON 5000

static int wait_set;
static volatile int woken;

static void *wait_once(void *unused)
{
    (void)unused;
    struct epoll_event event;
    EQUAL(epoll_wait(wait_set, &event, 1, 10 * 1000), 1);
    woken = event.data.u32;
    return NULL;
}

STATEMENT(e4_add_wakes_a_sleeping_wait)
{
    struct pair pair = make_pair();
    wait_set = epoll_create1(0);
    write_all(pair.far, "x", 1);
    wait_for(pair.near, POLLIN);
    pthread_t thread = start_thread(wait_once, NULL);
    pause_ms(50);
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
    EQUAL(epoll_ctl(wait_set, EPOLL_CTL_ADD, pair.near, &event), 0);
    pthread_join(thread, NULL);
    EQUAL(woken, 7);
    close(wait_set);
    close_pair(&pair);
}

static int other_set;

static void *wait_for_the_end(void *unused)
{
    (void)unused;
    struct epoll_event event;
    EQUAL(epoll_wait(other_set, &event, 1, 20 * 1000), 1);
    EQUAL(event.data.u32, 9);
    return NULL;
}

STATEMENT(exclusive_wakes_one_that_wants_it)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    int end[2];
    EQUAL(pipe(end), 0);
    /* A listener is never writable: who waits for that is not the one to be told of a connection. */
    struct epoll_event event = { .events = EPOLLOUT | EPOLLEXCLUSIVE, .data.u32 = 8 };
    other_set = epoll_create1(0);
    EQUAL(epoll_ctl(other_set, EPOLL_CTL_ADD, listener, &event), 0);
    event = (struct epoll_event){ .events = EPOLLIN, .data.u32 = 9 };
    EQUAL(epoll_ctl(other_set, EPOLL_CTL_ADD, end[0], &event), 0);
    event = (struct epoll_event){ .events = EPOLLIN | EPOLLEXCLUSIVE, .data.u32 = 7 };
    wait_set = epoll_create1(0);
    EQUAL(epoll_ctl(wait_set, EPOLL_CTL_ADD, listener, &event), 0);
    pthread_t others = start_thread(wait_for_the_end, NULL);
    pthread_t thread = start_thread(wait_once, NULL);
    pause_ms(50);
    int far = connect_far(&address);
    pthread_join(thread, NULL);
    EQUAL(woken, 7);
    EQUAL(write(end[1], "x", 1), 1);
    pthread_join(others, NULL);
    close(far);
    close(end[0]);
    close(end[1]);
    close(other_set);
    close(wait_set);
    close(listener);
}

STATEMENT(e4_modify_wakes_a_sleeping_wait)
{
    struct pair pair = make_pair();
    wait_set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 };
    EQUAL(epoll_ctl(wait_set, EPOLL_CTL_ADD, pair.near, &event), 0);
    pthread_t thread = start_thread(wait_once, NULL);
    pause_ms(50);
    event = (struct epoll_event){ .events = EPOLLOUT, .data.u32 = 8 };
    EQUAL(epoll_ctl(wait_set, EPOLL_CTL_MOD, pair.near, &event), 0);
    pthread_join(thread, NULL);
    EQUAL(woken, 8);
    close(wait_set);
    close_pair(&pair);
}

enum { SERVED = 40, ROUNDS = 50 };
static struct pair served[SERVED];
static volatile int total;

/* Takes one-shot events of a common set, answers, and arms them again, until every message has been answered. */
static void *serve_common(void *unused)
{
    (void)unused;
    while (total < SERVED * ROUNDS) {
        struct epoll_event event;
        int count = epoll_wait(wait_set, &event, 1, 50);
        CHECK(count >= 0);
        if (count == 0)
            continue;
        int near = served[event.data.u32].near;
        char byte;
        EQUAL(recv(near, &byte, 1, MSG_DONTWAIT), 1);
        write_all(near, &byte, 1);
        __sync_fetch_and_add(&total, 1);
        event.events = EPOLLIN | EPOLLONESHOT;
        EQUAL(epoll_ctl(wait_set, EPOLL_CTL_MOD, near, &event), 0);
    }
    return NULL;
}

STATEMENT(many_threads_wait_in_one_set)
{
    wait_set = epoll_create1(0);
    for (int i = 0; i < SERVED; i++) {
        served[i] = make_pair();
        struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u32 = i };
        EQUAL(epoll_ctl(wait_set, EPOLL_CTL_ADD, served[i].near, &event), 0);
    }
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = start_thread(serve_common, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SERVED; i++)
            write_all(served[i].far, &(char){ round + i }, 1);
        for (int i = 0; i < SERVED; i++) {
            char byte;
            read_all(served[i].far, &byte, 1);
            EQUAL(byte, (char)(round + i));
        }
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < SERVED; i++)
        close_pair(&served[i]);
    close(wait_set);
}

static void *read_blocked(void *argument)
{
    char byte = 0;
    EQUAL(read(*(int *)argument, &byte, 1), 1);
    EQUAL(byte, 'x');
    return NULL;
}

STATEMENT(i2_close_does_not_end_a_blocked_read)
{
    /* The call holds the socket; only its number is gone. */
    struct pair pair = make_pair();
    pthread_t thread = start_thread(read_blocked, &pair.near);
    pause_ms(50);
    EQUAL(close(pair.near), 0);
    write_all(pair.far, "x", 1);
    pthread_join(thread, NULL);
    expect_end(pair.far);
    close(pair.far);
}

static void *reset_later(void *argument)
{
    struct linger linger = { 1, 0 };
    int fd = *(int *)argument;
    pause_ms(50);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    EQUAL(close(fd), 0);
    return NULL;
}

STATEMENT(a_reset_ends_blocked_calls)
{
    struct pair pair = make_pair();
    char byte;
    pthread_t thread = start_thread(reset_later, &pair.far);
    FAILS(read(pair.near, &byte, 1), ECONNRESET);
    pthread_join(thread, NULL);
    close(pair.near);
    pair = make_pair();
    fill_up(pair.near);
    static char block[1 << 20];
    signal(SIGPIPE, SIG_IGN);
    thread = start_thread(reset_later, &pair.far);
    ssize_t count = write(pair.near, block, sizeof block);
    CHECK(count > 0 || errno == ECONNRESET || errno == EPIPE);
    pthread_join(thread, NULL);
    close(pair.near);
}

STATEMENT(a_close_by_syscall_is_seen)
{
    /* libuv closes descriptors this way. */
    struct pair pair = make_pair();
    int number = pair.near;
    EQUAL(syscall(SYS_close, number), 0);
    expect_end(pair.far);
    int file;
    do
        file = open("/dev/zero", O_RDONLY);
    while (file < number);
    EQUAL(file, number);
    char byte = 1;
    EQUAL(read(file, &byte, 1), 1);
    EQUAL(byte, 0);
    EQUAL(write(file, &byte, 1), -1);
    EQUAL(errno, EBADF);
    close(file);
    close(pair.far);
}

STATEMENT(o2_waits_by_number_work)
{
    struct pair pair = make_pair();
    int set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = 3 };
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
    write_all(pair.far, "x", 1);
    wait_for(pair.near, POLLIN);
    struct timespec soon = { 5, 0 };
    struct pollfd polled = { .fd = pair.near, .events = POLLIN };
    EQUAL(syscall(SYS_ppoll, &polled, 1L, &soon, NULL, 8L), 1);
    EQUAL(polled.revents, POLLIN);
    EQUAL(syscall(SYS_epoll_pwait2, set, &event, 1, &soon, NULL, 8L), 1);
    EQUAL(event.data.u32, 3);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(pair.near, &readable);
    struct timeval patience = { 5, 0 };
    EQUAL(syscall(SYS_select, pair.near + 1, &readable, NULL, NULL, &patience), 1);
    sigset_t none;
    sigemptyset(&none);
    const struct {
        const sigset_t *signals;
        size_t length;
    } mask = { &none, 8 };
    FD_ZERO(&readable);
    FD_SET(pair.near, &readable);
    struct timespec later = { 5, 0 };
    EQUAL(syscall(SYS_pselect6, pair.near + 1, &readable, NULL, NULL, &later, &mask), 1);
    CHECK(FD_ISSET(pair.near, &readable));
    CHECK(FD_ISSET(pair.near, &readable));
    close(set);
    close_pair(&pair);
}

STATEMENT(o2_ranges_are_closed)
{
    struct pair pair = make_pair();
    EQUAL(close_range(pair.near, pair.near, 0), 0);
    expect_end(pair.far);
    FAILS(close(pair.near), EBADF);
    close(pair.far);
}

STATEMENT(streams_of_the_c_library_work)
{
    struct pair pair = make_pair();
    FILE *in = fdopen(dup(pair.near), "r"), *out = fdopen(pair.near, "w");
    CHECK(in && out);
    EQUAL(fileno(out), pair.near);
    EQUAL(fprintf(out, "one %d\n", 1), 6);
    EQUAL(fflush(out), 0);
    char buffer[16];
    read_all(pair.far, buffer, 6);
    CHECK(memcmp(buffer, "one 1\n", 6) == 0);
    write_all(pair.far, "first\nsecond\n", 13);
    CHECK(fgets(buffer, sizeof buffer, in) && strcmp(buffer, "first\n") == 0);
    CHECK(fgets(buffer, sizeof buffer, in) && strcmp(buffer, "second\n") == 0);
    EQUAL(fputs("last", out) >= 0, true);
    EQUAL(fclose(in), 0);
    /* Closing a stream writes what it holds, and closes the socket. */
    EQUAL(fclose(out), 0);
    read_all(pair.far, buffer, 4);
    CHECK(memcmp(buffer, "last", 4) == 0);
    expect_end(pair.far);
    close(pair.far);
}

STATEMENT(nothing_urgent_and_no_errors_wait)
{
    struct pair pair = make_pair();
    char byte;
    FAILS(recv(pair.near, &byte, 1, MSG_OOB), EINVAL);
    struct iovec part = { &byte, 1 };
    char control[64];
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    FAILS(recvmsg(pair.near, &message, MSG_ERRQUEUE), EAGAIN);
    close_pair(&pair);
}
