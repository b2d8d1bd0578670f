/* Waiting for events: epoll level, edge, one-shot, exclusive; poll and select; sets that hold descriptors of all kinds. */
#include "harness.h"
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

static int set_with(int fd, unsigned events)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK(set >= 0);
    struct epoll_event event = { .events = events, .data.u64 = 0x1122334455667788u };
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    return set;
}

static int modify(int set, int fd, unsigned events)
{
    struct epoll_event event = { .events = events, .data.u64 = 0x1122334455667788u };
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

/* The events of the one descriptor in a set; 0 after `timeout` milliseconds without any. */
static unsigned events_of(int set, int timeout)
{
    struct epoll_event event[4];
    int count = epoll_wait(set, event, 4, timeout);
    CHECK(count >= 0 && count <= 1);
    if (count == 0)
        return 0;
    CHECK(event[0].data.u64 == 0x1122334455667788u);
    return event[0].events;
}

#define SOON 5000

STATEMENT(e1_level_reports_until_read)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN);
    EQUAL(events_of(set, 0), 0);
    write_all(pair.far, "0123456789", 10);
    char buffer[16];
    EQUAL(events_of(set, SOON), EPOLLIN);
    for (int i = 0; i < 5; i++)
        EQUAL(events_of(set, 0), EPOLLIN);
    EQUAL(read(pair.near, buffer, 5), 5);
    EQUAL(events_of(set, 0), EPOLLIN);
    EQUAL(read(pair.near, buffer, 16), 5);
    EQUAL(events_of(set, 0), 0);
    close(set);
    close_pair(&pair);
}

STATEMENT(e1_level_reports_writable_until_full)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLOUT);
    static char block[65536];
    EQUAL(events_of(set, SOON), EPOLLOUT);
    long long written = fill_up(pair.near);
    EQUAL(events_of(set, 0), 0);
    while (written > 0) {
        ssize_t count = read(pair.far, block, sizeof block);
        CHECK(count > 0);
        written -= count;
    }
    EQUAL(events_of(set, SOON), EPOLLOUT);
    EQUAL(events_of(set, 0), EPOLLOUT);
    close(set);
    close_pair(&pair);
}

static void *write_drops(void *argument)
{
    int fd = *(int *)argument;
    for (int i = 0; i < 3000; i++) {
        char drop = i;
        write_all(fd, &drop, 1);
        if (i % 7 == 0)
            sched_yield();
    }
    return NULL;
}

STATEMENT(e2_no_event_is_ahead_of_its_data)
{
    struct pair pair = make_pair();
    set_blocking(pair.near, false);
    int set = set_with(pair.near, EPOLLIN);
    pthread_t writer = start_thread(write_drops, &pair.far);
    for (int got = 0; got < 3000;) {
        CHECK(events_of(set, SOON) & EPOLLIN);
        char buffer[64];
        ssize_t count = read(pair.near, buffer, sizeof buffer);
        CHECK(count > 0);
        for (ssize_t i = 0; i < count; i++)
            EQUAL(buffer[i], (char)(got + i));
        got += count;
    }
    pthread_join(writer, NULL);
    close(set);
    close_pair(&pair);
}

STATEMENT(e2_no_listener_event_is_ahead_of_its_connection)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    set_blocking(listener, false);
    int set = set_with(listener, EPOLLIN);
    for (int i = 0; i < 200; i++) {
        int far = connect_far(&address);
        EQUAL(events_of(set, SOON), EPOLLIN);
        int near = accept(listener, NULL, NULL);
        CHECK(near >= 0);
        EQUAL(events_of(set, 0), 0);
        close(near);
        close(far);
    }
    close(set);
    close(listener);
}

STATEMENT(e3_edge_reports_once_per_arrival)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN | EPOLLET);
    EQUAL(events_of(set, 0), 0);
    char buffer[16];
    for (int i = 0; i < 3; i++) {
        write_all(pair.far, "0123456789", 10);
        EQUAL(events_of(set, SOON), EPOLLIN);
        EQUAL(events_of(set, 50), 0);
    }
    /* What is left unread makes no event; what comes after it does. */
    EQUAL(read(pair.near, buffer, 5), 5);
    EQUAL(events_of(set, 20), 0);
    write_all(pair.far, "x", 1);
    EQUAL(events_of(set, SOON), EPOLLIN);
    read_all(pair.near, (char[26]){ 0 }, 26);
    EQUAL(events_of(set, 20), 0);
    close(set);
    close_pair(&pair);
}

STATEMENT(e3_edge_reports_on_add_if_ready)
{
    struct pair pair = make_pair();
    write_all(pair.far, "x", 1);
    wait_for(pair.near, POLLIN);
    int set = set_with(pair.near, EPOLLIN | EPOLLET);
    EQUAL(events_of(set, 0), EPOLLIN);
    EQUAL(events_of(set, 0), 0);
    /* As does a modification. */
    EQUAL(modify(set, pair.near, EPOLLIN | EPOLLET), 0);
    EQUAL(events_of(set, 0), EPOLLIN);
    EQUAL(events_of(set, 0), 0);
    close(set);
    close_pair(&pair);
}

STATEMENT(e3_edge_reports_writable_after_full)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLOUT | EPOLLET);
    EQUAL(events_of(set, SOON), EPOLLOUT);
    EQUAL(events_of(set, 0), 0);
    static char block[65536];
    long long written = fill_up(pair.near);
    events_of(set, 0);
    while (written > 0) {
        ssize_t count = read(pair.far, block, sizeof block);
        CHECK(count > 0);
        written -= count;
    }
    EQUAL(events_of(set, SOON), EPOLLOUT);
    close(set);
    close_pair(&pair);
}

static void *write_one(void *argument)
{
    write_all(*(int *)argument, "x", 1);
    return NULL;
}

/* Adds, or re-arms, while a byte arrives; the event must come. */
static void race(unsigned events, bool rearm)
{
    for (int i = 0; i < 300; i++) {
        static struct pair pair;
        if (i % 50 == 0) {
            if (i > 0)
                close_pair(&pair);
            pair = make_pair();
        }
        int set = epoll_create1(0);
        struct epoll_event event = { .events = rearm ? EPOLLOUT | EPOLLONESHOT : events, .data.u64 = 0x1122334455667788u };
        if (rearm) {
            EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
            EQUAL(events_of(set, SOON), EPOLLOUT);
        }
        pthread_t writer = start_thread(write_one, &pair.far);
        for (volatile int spin = 0; spin < i * 97 % 5000; spin++)
            ;
        if (rearm)
            EQUAL(modify(set, pair.near, events), 0);
        else
            EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
        CHECK(events_of(set, SOON) & EPOLLIN);
        char byte;
        EQUAL(read(pair.near, &byte, 1), 1);
        pthread_join(writer, NULL);
        close(set);
    }
}

STATEMENT(e4_add_races_with_arrival)
{
    race(EPOLLIN, false);
    race(EPOLLIN | EPOLLET, false);
}

STATEMENT(e4_modify_races_with_arrival)
{
    race(EPOLLIN, true);
    race(EPOLLIN | EPOLLET, true);
    race(EPOLLIN | EPOLLONESHOT, true);
}

STATEMENT(e4_one_shot_reports_once_until_armed_again)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN | EPOLLONESHOT);
    write_all(pair.far, "x", 1);
    EQUAL(events_of(set, SOON), EPOLLIN);
    EQUAL(events_of(set, 0), 0);
    write_all(pair.far, "y", 1);
    EQUAL(events_of(set, 50), 0);
    EQUAL(modify(set, pair.near, EPOLLIN | EPOLLONESHOT), 0);
    EQUAL(events_of(set, 0), EPOLLIN);
    EQUAL(events_of(set, 0), 0);
    close(set);
    close_pair(&pair);
}

STATEMENT(e5_nested_sets_fire)
{
    struct pair pair = make_pair();
    int inner = set_with(pair.near, EPOLLIN);
    int outer = set_with(inner, EPOLLIN);
    EQUAL(events_of(outer, 0), 0);
    write_all(pair.far, "x", 1);
    EQUAL(events_of(outer, SOON), EPOLLIN);
    EQUAL(events_of(inner, 0), EPOLLIN);
    char byte;
    EQUAL(read(pair.near, &byte, 1), 1);
    EQUAL(events_of(outer, 0), 0);
    close(outer);
    close(inner);
    close_pair(&pair);
}

STATEMENT(e5_a_set_inside_poll_and_select_fires)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN);
    struct pollfd watched = { .fd = set, .events = POLLIN };
    EQUAL(poll(&watched, 1, 0), 0);
    write_all(pair.far, "x", 1);
    EQUAL(poll(&watched, 1, SOON), 1);
    EQUAL(watched.revents, POLLIN);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(set, &readable);
    struct timeval patience = { 5, 0 };
    EQUAL(select(set + 1, &readable, NULL, NULL, &patience), 1);
    CHECK(FD_ISSET(set, &readable));
    close(set);
    close_pair(&pair);
}

STATEMENT(e6_one_set_holds_descriptors_of_all_kinds)
{
    struct pair pair = make_pair();
    int event = eventfd(0, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0), ends[2];
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    int signals = signalfd(-1, &mask, 0);
    EQUAL(pipe(ends), 0);
    int fds[] = { pair.near, event, timer, signals, ends[0] };
    int set = epoll_create1(0);
    for (int i = 0; i < 5; i++) {
        struct epoll_event entry = { .events = EPOLLIN, .data.u32 = i };
        EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &entry), 0);
    }
    struct epoll_event got[8];
    EQUAL(epoll_wait(set, got, 8, 0), 0);
    for (int i = 0; i < 5; i++) {
        char buffer[256];
        switch (i) {
        case 0: write_all(pair.far, "x", 1); break;
        case 1: EQUAL(eventfd_write(event, 1), 0); break;
        case 2: EQUAL(timerfd_settime(timer, 0, &(struct itimerspec){ .it_value = { 0, 1000 } }, NULL), 0); break;
        case 3: EQUAL(kill(getpid(), SIGUSR2), 0); break;
        default: write_all(ends[1], "x", 1); break;
        }
        EQUAL(epoll_wait(set, got, 8, SOON), 1);
        EQUAL(got[0].data.u32, i);
        EQUAL(got[0].events, EPOLLIN);
        CHECK(read(fds[i], buffer, sizeof buffer) > 0);
        EQUAL(epoll_wait(set, got, 8, 0), 0);
    }
    /* All at once. */
    write_all(pair.far, "x", 1);
    eventfd_write(event, 1);
    write_all(ends[1], "x", 1);
    /* An event may be a moment behind what poll sees; that others are ready must not keep it out. */
    for (int tries = 0; epoll_wait(set, got, 8, SOON) != 3; tries++) {
        CHECK(tries < 100);
        pause_ms(1);
    }
    for (int i = 0; i < 5; i++)
        close(fds[i]);
    close(ends[1]);
    close(pair.far);
    close(set);
}

static void *write_later(void *argument)
{
    pause_ms(50);
    write_all(*(int *)argument, "x", 1);
    return NULL;
}

STATEMENT(e6_a_kernel_descriptor_wakes_a_sleeping_wait)
{
    struct pair pair = make_pair();
    int ends[2];
    EQUAL(pipe(ends), 0);
    int set = set_with(pair.near, EPOLLIN);
    struct epoll_event entry = { .events = EPOLLIN, .data.u64 = 7 }, got;
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &entry), 0);
    for (int i = 0; i < 2; i++) {
        pthread_t writer = start_thread(write_later, i ? &pair.far : &ends[1]);
        EQUAL(epoll_wait(set, &got, 1, -1), 1);
        EQUAL(got.data.u64 == 7, i == 0);
        pthread_join(writer, NULL);
        char byte;
        EQUAL(read(i ? pair.near : ends[0], &byte, 1), 1);
        struct pollfd both[2] = { { .fd = pair.near, .events = POLLIN }, { .fd = ends[0], .events = POLLIN } };
        writer = start_thread(write_later, i ? &pair.far : &ends[1]);
        EQUAL(poll(both, 2, -1), 1);
        CHECK(both[i ? 0 : 1].revents == POLLIN && both[i ? 1 : 0].revents == 0);
        pthread_join(writer, NULL);
        EQUAL(read(i ? pair.near : ends[0], &byte, 1), 1);
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(pair.near, &readable);
        FD_SET(ends[0], &readable);
        writer = start_thread(write_later, i ? &pair.far : &ends[1]);
        EQUAL(select((pair.near > ends[0] ? pair.near : ends[0]) + 1, &readable, NULL, NULL, NULL), 1);
        CHECK(FD_ISSET(i ? pair.near : ends[0], &readable) && !FD_ISSET(i ? ends[0] : pair.near, &readable));
        pthread_join(writer, NULL);
        EQUAL(read(i ? pair.near : ends[0], &byte, 1), 1);
    }
    close(set);
    close_pair(&pair);
}

STATEMENT(e6_a_signal_interrupts_every_wait)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN);
    /* None of these is restarted, whatever SA_RESTART says. */
    count_signal(SIGUSR1, SA_RESTART);
    struct pester *pester = pester_me(SIGUSR1, 30);
    struct epoll_event event;
    FAILS(epoll_wait(set, &event, 1, -1), EINTR);
    FAILS(epoll_pwait(set, &event, 1, -1, NULL), EINTR);
    struct pollfd watched = { .fd = pair.near, .events = POLLIN };
    FAILS(poll(&watched, 1, -1), EINTR);
    FAILS(ppoll(&watched, 1, NULL, NULL), EINTR);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(pair.near, &readable);
    FAILS(select(pair.near + 1, &readable, NULL, NULL, NULL), EINTR);
    FD_SET(pair.near, &readable);
    FAILS(pselect(pair.near + 1, &readable, NULL, NULL, NULL, NULL), EINTR);
    stop_pestering(pester);
    CHECK(signals_seen >= 6);
    close(set);
    close_pair(&pair);
}

STATEMENT(e6_a_mask_holds_while_waiting_and_no_longer)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN);
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    count_signal(SIGUSR1, 0);
    EQUAL(pthread_sigmask(SIG_BLOCK, &blocked, NULL), 0);
    struct epoll_event event;
    struct pollfd watched = { .fd = pair.near, .events = POLLIN };
    fd_set readable;
    FD_ZERO(&readable);
    /* Pending before the wait: taken in it, at once. */
    pthread_kill(pthread_self(), SIGUSR1);
    EQUAL(signals_seen, 0);
    FAILS(epoll_pwait(set, &event, 1, -1, &none), EINTR);
    EQUAL(signals_seen, 1);
    pthread_kill(pthread_self(), SIGUSR1);
    FAILS(ppoll(&watched, 1, NULL, &none), EINTR);
    EQUAL(signals_seen, 2);
    pthread_kill(pthread_self(), SIGUSR1);
    FD_SET(pair.near, &readable);
    FAILS(pselect(pair.near + 1, &readable, NULL, NULL, NULL, &none), EINTR);
    EQUAL(signals_seen, 3);
    /* And the other way round: blocked for the wait only. */
    EQUAL(pthread_sigmask(SIG_UNBLOCK, &blocked, NULL), 0);
    struct pester *pester = pester_me(SIGUSR1, 20);
    sigset_t all;
    sigfillset(&all);
    EQUAL(ppoll(&watched, 1, &(struct timespec){ 0, 100 * 1000000 }, &all), 0);
    EQUAL(epoll_pwait(set, &event, 1, 100, &all), 0);
    stop_pestering(pester);
    CHECK(signals_seen >= 4);
    close(set);
    close_pair(&pair);
}

STATEMENT(e8_timeouts_are_kept)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN);
    struct epoll_event event;
    struct pollfd watched = { .fd = pair.near, .events = POLLIN };
    fd_set readable;
    FD_ZERO(&readable);
    struct timeval tv = { 0, 100000 };
    struct timespec ts = { 0, 100000000 };
    long long start = now_ms();
    EQUAL(epoll_wait(set, &event, 1, 100), 0);
    CHECK(now_ms() - start >= 100);
    EQUAL(poll(&watched, 1, 100), 0);
    CHECK(now_ms() - start >= 200);
    EQUAL(ppoll(&watched, 1, &ts, NULL), 0);
    CHECK(now_ms() - start >= 300);
    FD_SET(pair.near, &readable);
    EQUAL(select(pair.near + 1, &readable, NULL, NULL, &tv), 0);
    CHECK(!FD_ISSET(pair.near, &readable));
    CHECK(now_ms() - start >= 400);
    FD_SET(pair.near, &readable);
    EQUAL(pselect(pair.near + 1, &readable, NULL, NULL, &ts, NULL), 0);
    CHECK(now_ms() - start >= 500);
    EQUAL(poll(NULL, 0, 100), 0);
    CHECK(now_ms() - start >= 600);
    close(set);
    close_pair(&pair);
}

STATEMENT(exclusive_wakes_one_and_loses_none)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    set_blocking(listener, false);
    int sets[2];
    for (int i = 0; i < 2; i++) {
        sets[i] = epoll_create1(0);
        struct epoll_event event = { .events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = 0x1122334455667788u };
        EQUAL(epoll_ctl(sets[i], EPOLL_CTL_ADD, listener, &event), 0);
    }
    /* An exclusive entry cannot be modified. */
    struct epoll_event event = { .events = EPOLLIN | EPOLLEXCLUSIVE };
    FAILS(epoll_ctl(sets[0], EPOLL_CTL_MOD, listener, &event), EINVAL);
    for (int i = 0; i < 20; i++) {
        int far = connect_far(&address);
        wait_for(listener, POLLIN);
        CHECK((events_of(sets[0], 0) | events_of(sets[1], 0)) & EPOLLIN);
        int near = accept(listener, NULL, NULL);
        CHECK(near >= 0);
        close(near);
        close(far);
    }
    EQUAL(epoll_ctl(sets[0], EPOLL_CTL_DEL, listener, NULL), 0);
    int far = connect_far(&address);
    EQUAL(events_of(sets[1], SOON), EPOLLIN);
    close(far);
    close(sets[0]);
    close(sets[1]);
    close(listener);
}

STATEMENT(end_of_stream_and_reset_are_events)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN | EPOLLRDHUP);
    EQUAL(shutdown(pair.far, SHUT_WR), 0);
    EQUAL(events_of(set, SOON), EPOLLIN | EPOLLRDHUP);
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    /* Both directions are over. */
    for (unsigned events = 0; !(events & EPOLLHUP);)
        events = events_of(set, SOON);
    struct pollfd watched = { .fd = pair.near, .events = POLLIN | POLLOUT | POLLRDHUP };
    EQUAL(poll(&watched, 1, 0), 1);
    EQUAL(watched.revents, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    close(set);
    close_pair(&pair);

    pair = make_pair();
    set = set_with(pair.near, EPOLLIN);
    struct linger linger = { 1, 0 };
    EQUAL(setsockopt(pair.far, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    close(pair.far);
    EQUAL(events_of(set, SOON), EPOLLIN | EPOLLERR | EPOLLHUP);
    char byte;
    FAILS(read(pair.near, &byte, 1), ECONNRESET);
    EQUAL(read(pair.near, &byte, 1), 0);
    close(set);
    close(pair.near);
}

STATEMENT(epoll_ctl_refuses_what_it_should)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN);
    struct epoll_event event = { .events = EPOLLIN };
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), EEXIST);
    EQUAL(epoll_ctl(set, EPOLL_CTL_DEL, pair.near, NULL), 0);
    FAILS(epoll_ctl(set, EPOLL_CTL_DEL, pair.near, NULL), ENOENT);
    FAILS(epoll_ctl(set, EPOLL_CTL_MOD, pair.near, &event), ENOENT);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
    FAILS(epoll_ctl(set, 99, pair.near, &event), EINVAL);
    FAILS(epoll_ctl(pair.near, EPOLL_CTL_ADD, pair.far, &event), EINVAL);
    FAILS(epoll_wait(set, &event, 0, 0), EINVAL);
    FAILS(epoll_wait(pair.near, &event, 1, 0), EINVAL);
    int near = pair.near;
    close_pair(&pair);
    FAILS(epoll_ctl(set, EPOLL_CTL_ADD, near, &event), EBADF);
    close(set);
    FAILS(epoll_wait(set, &event, 1, 0), EBADF);
}

STATEMENT(a_closed_descriptor_leaves_its_sets)
{
    struct pair pair = make_pair();
    int set = set_with(pair.near, EPOLLIN);
    write_all(pair.far, "x", 1);
    EQUAL(events_of(set, SOON), EPOLLIN);
    int near = pair.near;
    EQUAL(close(near), 0);
    EQUAL(events_of(set, 0), 0);
    /* A new socket with its number is a stranger to the set. */
    struct pair other = make_pair();
    EQUAL(dup2(other.near, near), near);
    write_all(other.far, "y", 1);
    wait_for(near, POLLIN);
    EQUAL(events_of(set, 0), 0);
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = 0x1122334455667788u };
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, near, &event), 0);
    EQUAL(events_of(set, 0), EPOLLIN);
    close(near);
    close(pair.far);
    close(set);
    close_pair(&other);
}

STATEMENT(many_ready_all_get_their_turn)
{
    enum { COUNT = 40 };
    struct pair pairs[COUNT];
    int set = epoll_create1(0);
    for (int i = 0; i < COUNT; i++) {
        pairs[i] = make_pair();
        struct epoll_event event = { .events = EPOLLIN, .data.u32 = i };
        EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].near, &event), 0);
        write_all(pairs[i].far, "x", 1);
    }
    for (int i = 0; i < COUNT; i++)
        wait_for(pairs[i].near, POLLIN);
    bool seen[COUNT] = { false };
    /* With room for 4 events a call, unread sockets must not keep the others out. */
    for (int calls = 0; calls < COUNT; calls++) {
        struct epoll_event events[4];
        int count = epoll_wait(set, events, 4, 0);
        EQUAL(count, 4);
        for (int i = 0; i < count; i++)
            seen[events[i].data.u32] = true;
    }
    for (int i = 0; i < COUNT; i++)
        CHECK(seen[i]);
    for (int i = 0; i < COUNT; i++)
        close_pair(&pairs[i]);
    close(set);
}

STATEMENT(poll_tells_of_bad_and_absent_descriptors)
{
    struct pair pair = make_pair();
    int gone = dup(pair.near);
    close(gone);
    struct pollfd watched[] = { { .fd = pair.near, .events = POLLOUT }, { .fd = -1, .events = POLLIN }, { .fd = gone, .events = POLLIN } };
    EQUAL(poll(watched, 3, -1), 2);
    EQUAL(watched[0].revents, POLLOUT);
    EQUAL(watched[1].revents, 0);
    EQUAL(watched[2].revents, POLLNVAL);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(gone, &readable);
    FD_SET(pair.near, &readable);
    FAILS(select(gone + 1, &readable, NULL, NULL, NULL), EBADF);
    close_pair(&pair);
}

STATEMENT(select_reports_each_direction)
{
    struct pair pair = make_pair();
    fd_set readable, writable, except;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_ZERO(&except);
    FD_SET(pair.near, &readable);
    FD_SET(pair.near, &writable);
    FD_SET(pair.near, &except);
    EQUAL(select(pair.near + 1, &readable, &writable, &except, NULL), 1);
    CHECK(!FD_ISSET(pair.near, &readable) && FD_ISSET(pair.near, &writable) && !FD_ISSET(pair.near, &except));
    write_all(pair.far, "x", 1);
    wait_for(pair.near, POLLIN);
    FD_SET(pair.near, &readable);
    EQUAL(select(pair.near + 1, &readable, &writable, &except, NULL), 2);
    CHECK(FD_ISSET(pair.near, &readable) && FD_ISSET(pair.near, &writable));
    close_pair(&pair);
}
