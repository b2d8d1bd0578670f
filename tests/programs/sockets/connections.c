/* How connections begin and end. */
#include "harness.h"
#include <sys/resource.h>

STATEMENT(connect_without_blocking)
{
    struct sockaddr_in address;
    int listener = listen_far(&address);
    int near = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int result = connect(near, (struct sockaddr *)&address, sizeof address);
    CHECK(result == 0 || errno == EINPROGRESS);
    wait_for(near, POLLOUT);
    int error = -1;
    socklen_t length = sizeof error;
    EQUAL(getsockopt(near, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    EQUAL(error, 0);
    if (result < 0)
        EQUAL(connect(near, (struct sockaddr *)&address, sizeof address), 0);
    FAILS(connect(near, (struct sockaddr *)&address, sizeof address), EISCONN);
    int far = accept_far(listener);
    write_all(near, "x", 1);
    char byte;
    read_all(far, &byte, 1);
    close(near);
    close(far);
    close(listener);
}

/* An address of the far end at which nobody listens. */
static struct sockaddr_in nobody(void)
{
    struct sockaddr_in address;
    int listener = listen_far(&address);
    close(listener);
    return address;
}

STATEMENT(connect_is_refused)
{
    struct sockaddr_in address = nobody();
    int near = socket(AF_INET, SOCK_STREAM, 0);
    FAILS(connect(near, (struct sockaddr *)&address, sizeof address), ECONNREFUSED);
    /* The socket may be used for another try. */
    struct sockaddr_in good;
    int listener = listen_far(&good);
    EQUAL(connect(near, (struct sockaddr *)&good, sizeof good), 0);
    close(near);
    close(listener);

    near = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connect(near, (struct sockaddr *)&address, sizeof address) < 0 && errno == EINPROGRESS) {
        struct pollfd watched = { .fd = near, .events = POLLOUT };
        EQUAL(poll(&watched, 1, 5000), 1);
        CHECK((watched.revents & (POLLERR | POLLHUP)) == (POLLERR | POLLHUP));
        int error = 0;
        socklen_t length = sizeof error;
        EQUAL(getsockopt(near, SOL_SOCKET, SO_ERROR, &error, &length), 0);
        EQUAL(error, ECONNREFUSED);
        EQUAL(getsockopt(near, SOL_SOCKET, SO_ERROR, &error, &length), 0);
        EQUAL(error, 0);
    } else {
        EQUAL(errno, ECONNREFUSED);
    }
    close(near);
}

STATEMENT(bind_gives_and_refuses_addresses)
{
    struct sockaddr_in address, taken = near_address(0), elsewhere = near_address(0);
    socklen_t length = sizeof address;
    int listener = listen_near(&address);
    CHECK(address.sin_port != 0);
    taken.sin_port = address.sin_port;
    int near = socket(AF_INET, SOCK_STREAM, 0);
    FAILS(bind(near, (struct sockaddr *)&taken, sizeof taken), EADDRINUSE);
    CHECK(inet_pton(AF_INET, "203.0.113.7", &elsewhere.sin_addr) == 1);
    FAILS(bind(near, (struct sockaddr *)&elsewhere, sizeof elsewhere), EADDRNOTAVAIL);
    FAILS(bind(near, (struct sockaddr *)&taken, 4), EINVAL);
    struct sockaddr_in any = near_address(0);
    EQUAL(bind(near, (struct sockaddr *)&any, sizeof any), 0);
    FAILS(bind(near, (struct sockaddr *)&any, sizeof any), EINVAL);
    EQUAL(getsockname(near, (struct sockaddr *)&any, &length), 0);
    CHECK(any.sin_port != 0 && any.sin_port != address.sin_port);
    close(near);
    close(listener);
    /* A listener's port is free again at once. */
    near = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(bind(near, (struct sockaddr *)&taken, sizeof taken), 0);
    EQUAL(listen(near, 1), 0);
    close(near);
}

STATEMENT(a_bound_client_keeps_its_port)
{
    struct sockaddr_in address, own = near_address(0), seen;
    socklen_t length = sizeof own;
    int listener = listen_far(&address);
    int near = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(bind(near, (struct sockaddr *)&own, sizeof own), 0);
    EQUAL(getsockname(near, (struct sockaddr *)&own, &length), 0);
    EQUAL(connect(near, (struct sockaddr *)&address, sizeof address), 0);
    int far = accept_far(listener);
    EQUAL(getpeername(far, (struct sockaddr *)&seen, &length), 0);
    CHECK(seen.sin_port == own.sin_port && seen.sin_addr.s_addr == own.sin_addr.s_addr);
    close(near);
    close(far);
    close(listener);
}

STATEMENT(reuseaddr_serves_a_restart)
{
    /* A server that closed first leaves TIME-WAIT behind; with SO_REUSEADDR its successor listens at once. */
    struct sockaddr_in address = near_address(0);
    socklen_t length = sizeof address;
    int one = 1;
    for (int round = 0; round < 3; round++) {
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        EQUAL(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
        EQUAL(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
        EQUAL(listen(listener, 16), 0);
        EQUAL(getsockname(listener, (struct sockaddr *)&address, &length), 0);
        int far = connect_far(&address);
        int near = accept(listener, NULL, NULL);
        close(near);
        expect_end(far);
        close(far);
        close(listener);
    }
}

STATEMENT(reuseport_lets_two_listen)
{
    struct sockaddr_in address = near_address(0);
    socklen_t length = sizeof address;
    int one = 1, listeners[2];
    for (int i = 0; i < 2; i++) {
        listeners[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        EQUAL(setsockopt(listeners[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
        EQUAL(bind(listeners[i], (struct sockaddr *)&address, sizeof address), 0);
        EQUAL(listen(listeners[i], 64), 0);
        EQUAL(getsockname(listeners[i], (struct sockaddr *)&address, &length), 0);
    }
    int taken[2] = { 0 };
    for (int i = 0; i < 40; i++) {
        int far = connect_far(&address);
        struct pollfd watched[2] = { { .fd = listeners[0], .events = POLLIN }, { .fd = listeners[1], .events = POLLIN } };
        EQUAL(poll(watched, 2, 5000), 1);
        int which = watched[1].revents != 0;
        int near = accept(listeners[which], NULL, NULL);
        CHECK(near >= 0);
        taken[which]++;
        close(near);
        close(far);
    }
    CHECK(taken[0] > 0 && taken[1] > 0);
    close(listeners[0]);
    close(listeners[1]);
}

STATEMENT(listen_without_bind_takes_a_port)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(listen(listener, 1), 0);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    EQUAL(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    CHECK(address.sin_port != 0);
    EQUAL(address.sin_addr.s_addr, INADDR_ANY);
    int value;
    length = sizeof value;
    EQUAL(getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &value, &length), 0);
    EQUAL(value, 1);
    struct sockaddr_in there = near_address(ntohs(address.sin_port));
    int far = connect_far(&there);
    int near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    /* A listener is no connection. */
    FAILS(connect(listener, (struct sockaddr *)&there, sizeof there), EISCONN);
    char byte;
    FAILS(read(listener, &byte, 1), ENOTCONN);
    FAILS(send(listener, "x", 1, MSG_NOSIGNAL), EPIPE);
    close(near);
    close(far);
    close(listener);
}

STATEMENT(an_unconnected_socket_moves_nothing)
{
    int near = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    FAILS(read(near, &byte, 1), ENOTCONN);
    FAILS(send(near, "x", 1, MSG_NOSIGNAL), EPIPE);
    FAILS(accept(near, NULL, NULL), EINVAL);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    FAILS(getpeername(near, (struct sockaddr *)&name, &length), ENOTCONN);
    struct pollfd watched = { .fd = near, .events = POLLIN | POLLOUT };
    EQUAL(poll(&watched, 1, 0), 1);
    EQUAL(watched.revents, POLLOUT | POLLHUP);
    FAILS(shutdown(near, SHUT_RDWR), ENOTCONN);
    close(near);
}

STATEMENT(half_closed_streams_flow_on)
{
    struct pair pair = make_pair();
    write_all(pair.near, "request", 7);
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    char buffer[8];
    read_all(pair.far, buffer, 7);
    expect_end(pair.far);
    FAILS(send(pair.near, "x", 1, MSG_NOSIGNAL), EPIPE);
    static char out[300000], in[300000];
    fill(out, sizeof out, 0);
    set_blocking(pair.far, false);
    size_t sent = 0, got = 0;
    while (got < sizeof in) {
        ssize_t count = sent < sizeof out ? write(pair.far, out + sent, sizeof out - sent) : 0;
        if (count > 0)
            sent += count;
        count = recv(pair.near, in + got, sizeof in - got, sent < sizeof out ? MSG_DONTWAIT : 0);
        CHECK(count > 0 || (count < 0 && errno == EAGAIN));
        if (count > 0)
            got += count;
    }
    CHECK(matches(in, sizeof in, 0));
    close(pair.far);
    expect_end(pair.near);
    close(pair.near);
}

STATEMENT(shutdown_in_each_order)
{
    char byte;
    /* Reading first. */
    struct pair pair = make_pair();
    EQUAL(shutdown(pair.near, SHUT_RD), 0);
    EQUAL(read(pair.near, &byte, 1), 0);
    write_all(pair.near, "x", 1);
    read_all(pair.far, &byte, 1);
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    expect_end(pair.far);
    close_pair(&pair);
    /* Both at once, and again. */
    pair = make_pair();
    EQUAL(shutdown(pair.near, SHUT_RDWR), 0);
    EQUAL(read(pair.near, &byte, 1), 0);
    FAILS(send(pair.near, "x", 1, MSG_NOSIGNAL), EPIPE);
    expect_end(pair.far);
    close_pair(&pair);
    /* Writing twice. */
    pair = make_pair();
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    expect_end(pair.far);
    write_all(pair.far, "y", 1);
    read_all(pair.near, &byte, 1);
    close_pair(&pair);
    /* What has arrived before SHUT_RD can still be read. */
    pair = make_pair();
    write_all(pair.far, "z", 1);
    wait_for(pair.near, POLLIN);
    EQUAL(shutdown(pair.near, SHUT_RD), 0);
    EQUAL(read(pair.near, &byte, 1), 1);
    EQUAL(read(pair.near, &byte, 1), 0);
    close_pair(&pair);
}

static void *shut_down_later(void *argument)
{
    pause_ms(50);
    EQUAL(shutdown(*(int *)argument, SHUT_RDWR), 0);
    return NULL;
}

STATEMENT(i2_shutdown_wakes_blocked_calls)
{
    struct pair pair = make_pair();
    char byte;
    pthread_t thread = start_thread(shut_down_later, &pair.near);
    EQUAL(read(pair.near, &byte, 1), 0);
    pthread_join(thread, NULL);
    close_pair(&pair);
    struct sockaddr_in address;
    int listener = listen_near(&address);
    thread = start_thread(shut_down_later, &listener);
    FAILS(accept(listener, NULL, NULL), EINVAL);
    pthread_join(thread, NULL);
    close(listener);
}

STATEMENT(closing_unread_data_resets)
{
    struct pair pair = make_pair();
    write_all(pair.far, "unread", 6);
    wait_for(pair.near, POLLIN);
    close(pair.near);
    char byte;
    wait_for(pair.far, POLLIN);
    FAILS(read(pair.far, &byte, 1), ECONNRESET);
    close(pair.far);
}

STATEMENT(writing_to_who_has_gone_fails)
{
    signal(SIGPIPE, SIG_IGN);
    struct pair pair = make_pair();
    close(pair.far);
    expect_end(pair.near);
    /* The first is answered by a reset, which the next learns of. */
    EQUAL(write(pair.near, "x", 1), 1);
    wait_for(pair.near, POLLERR | POLLHUP);
    FAILS(write(pair.near, "x", 1), EPIPE);
    close(pair.near);
    /* A reset that has been waiting is told once, then the pipe is broken. */
    pair = make_pair();
    struct linger linger = { 1, 0 };
    EQUAL(setsockopt(pair.far, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    close(pair.far);
    wait_for(pair.near, POLLERR);
    FAILS(write(pair.near, "x", 1), ECONNRESET);
    FAILS(write(pair.near, "x", 1), EPIPE);
    close(pair.near);
}

STATEMENT(the_end_is_told_even_after_a_reset)
{
    signal(SIGPIPE, SIG_IGN);
    struct pair pair = make_pair();
    EQUAL(write(pair.far, "last", 4), 4);
    EQUAL(shutdown(pair.far, SHUT_WR), 0);
    wait_for(pair.near, POLLRDHUP);
    struct linger linger = { 1, 0 };
    EQUAL(setsockopt(pair.far, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    close(pair.far);
    wait_for(pair.near, POLLERR);
    char bytes[8];
    EQUAL(read(pair.near, bytes, sizeof bytes), 4);
    EQUAL(read(pair.near, bytes, sizeof bytes), 0);
    EQUAL(read(pair.near, bytes, sizeof bytes), 0);
    FAILS(write(pair.near, "x", 1), EPIPE);
    close(pair.near);
}

STATEMENT(sigpipe_is_sent_unless_told_not_to)
{
    struct pair pair = make_pair();
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    count_signal(SIGPIPE, 0);
    FAILS(send(pair.near, "x", 1, MSG_NOSIGNAL), EPIPE);
    EQUAL(signals_seen, 0);
    FAILS(write(pair.near, "x", 1), EPIPE);
    EQUAL(signals_seen, 1);
    FAILS(send(pair.near, "x", 1, 0), EPIPE);
    EQUAL(signals_seen, 2);
    close_pair(&pair);
}

STATEMENT(o3_linger_zero_resets)
{
    struct pair pair = make_pair();
    struct linger linger = { 1, 0 }, got;
    socklen_t length = sizeof got;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_LINGER, &got, &length), 0);
    CHECK(got.l_onoff == 1 && got.l_linger == 0);
    close(pair.near);
    char byte;
    wait_for(pair.far, POLLIN);
    FAILS(read(pair.far, &byte, 1), ECONNRESET);
    close(pair.far);
}

struct late_reader {
    int fd;
    size_t length;
};

static void *read_late(void *argument)
{
    struct late_reader *reader = argument;
    pause_ms(100);
    char *buffer = malloc(reader->length);
    read_all(reader->fd, buffer, reader->length);
    free(buffer);
    return NULL;
}

STATEMENT(o3_linger_waits_until_all_has_arrived)
{
    struct pair pair = make_pair();
    struct linger linger = { 1, 10 };
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    /* More than the far end's buffer holds, so that close must wait for its reader. */
    size_t sent = fill_up(pair.near);
    struct late_reader reader = { pair.far, sent };
    long long start = now_ms();
    pthread_t thread = start_thread(read_late, &reader);
    EQUAL(close(pair.near), 0);
    CHECK(now_ms() - start >= 90);
    pthread_join(thread, NULL);
    expect_end(pair.far);
    close(pair.far);
}

STATEMENT(o4_a_backlog_queues_connections)
{
    struct sockaddr_in address;
    int listener = listen_near(&address), far[100];
    for (int i = 0; i < 100; i++) {
        far[i] = connect_far(&address);
        char byte = i;
        write_all(far[i], &byte, 1);
    }
    bool seen[100] = { false };
    for (int i = 0; i < 100; i++) {
        char byte;
        int near = accept(listener, NULL, NULL);
        CHECK(near >= 0);
        read_all(near, &byte, 1);
        CHECK(byte >= 0 && byte < 100 && !seen[(int)byte]);
        seen[(int)byte] = true;
        close(near);
    }
    for (int i = 0; i < 100; i++)
        close(far[i]);
    close(listener);
}

/* Waits until so many connections wait for accept, and sees that no more come to it. */
static void expect_waiting(int listener, unsigned waiting, unsigned backlog)
{
    struct tcp_info info;
    for (int look = 0, same = 0; same < 10; look++) {
        socklen_t length = sizeof info;
        EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
        EQUAL(info.tcpi_state, TCP_LISTEN);
        EQUAL(info.tcpi_sacked, backlog);
        CHECK(info.tcpi_unacked <= waiting);
        same = info.tcpi_unacked == waiting ? same + 1 : 0;
        CHECK(look < 1000);
        pause_ms(10);
    }
}

STATEMENT(o4_a_backlog_holds_one_more)
{
    struct sockaddr_in address;
    int listener = listen_near(&address), far[8];
    /* Not even 0 is none. */
    EQUAL(listen(listener, 0), 0);
    for (int i = 0; i < 3; i++)
        far[i] = start_connect_far(&address);
    expect_waiting(listener, 1, 0);
    /* Another backlog counts for those that come from now on. */
    EQUAL(listen(listener, 2), 0);
    for (int i = 3; i < 8; i++)
        far[i] = start_connect_far(&address);
    expect_waiting(listener, 3, 2);
    /* As room is made the others come again. */
    for (int i = 0; i < 8; i++) {
        wait_for(listener, POLLIN);
        int near = accept(listener, NULL, NULL);
        CHECK(near >= 0);
        write_all(near, "x", 1);
        close(near);
    }
    expect_waiting(listener, 0, 2);
    for (int i = 0; i < 8; i++) {
        char byte;
        wait_for(far[i], POLLIN);
        read_all(far[i], &byte, 1);
        close(far[i]);
    }
    close(listener);
}

STATEMENT(o4_a_backlog_is_bounded_by_the_system)
{
    struct sockaddr_in address;
    int listener = listen_near(&address), most;
    FILE *file = fopen("/proc/sys/net/core/somaxconn", "r");
    CHECK(file && fscanf(file, "%d", &most) == 1);
    fclose(file);
    static const int huge[] = { 1 << 30, -1 };
    for (int i = 0; i < 2; i++) {
        EQUAL(listen(listener, huge[i]), 0);
        expect_waiting(listener, 0, most);
    }
    close(listener);
}

STATEMENT(a_listener_may_listen_anew)
{
    struct sockaddr_in address;
    close(listen_near(&address));
    /* Bound to a port that the program has chosen: it stays bound when it listens no longer. */
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
    EQUAL(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(listen(listener, 1), 0);
    for (int round = 0; round < 3; round++) {
        int lost = connect_far(&address);
        expect_waiting(listener, 1, 1);
        EQUAL(shutdown(listener, SHUT_RD), 0);
        char byte;
        wait_for(lost, POLLIN);
        FAILS(read(lost, &byte, 1), ECONNRESET);
        close(lost);
        FAILS(accept(listener, NULL, NULL), EINVAL);
        EQUAL(listen(listener, 1), 0);
        int far = connect_far(&address), other = connect_far(&address);
        expect_waiting(listener, 2, 1);
        int near = accept(listener, NULL, NULL);
        CHECK(near >= 0);
        write_all(near, "x", 1);
        close(near);
        close(accept(listener, NULL, NULL));
        close(far);
        close(other);
    }
    close(listener);
}

STATEMENT(closing_a_listener_resets_its_queue)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    int far = connect_far(&address);
    wait_for(listener, POLLIN);
    close(listener);
    char byte;
    wait_for(far, POLLIN);
    FAILS(read(far, &byte, 1), ECONNRESET);
    close(far);
}

STATEMENT(i6_no_descriptor_left_keeps_the_queue)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    int far = connect_far(&address);
    wait_for(listener, POLLIN);
    struct rlimit limit;
    EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 256;
    EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int filler[256], count = 0;
    while (count < 256 && (filler[count] = dup(0)) >= 0)
        count++;
    CHECK(count < 256);
    EQUAL(errno, EMFILE);
    FAILS(accept(listener, NULL, NULL), EMFILE);
    FAILS(socket(AF_INET, SOCK_STREAM, 0), EMFILE);
    close(filler[--count]);
    int near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    write_all(far, "x", 1);
    char byte;
    read_all(near, &byte, 1);
    close(near);
    close(far);
    close(listener);
}

STATEMENT(a_bind_may_leave_the_port_to_connect)
{
    struct sockaddr_in address, local = near_address(0), got;
    int listener = listen_far(&address), fd = socket(AF_INET, SOCK_STREAM, 0), value = -1;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &value, &length), 0);
    EQUAL(value, 0);
    EQUAL(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){ 1 }, sizeof value), 0);
    EQUAL(bind(fd, (struct sockaddr *)&local, sizeof local), 0);
    EQUAL(getsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &value, &length), 0);
    EQUAL(value, 1);
    length = sizeof got;
    EQUAL(getsockname(fd, (struct sockaddr *)&got, &length), 0);
    EQUAL(got.sin_port, 0);
    CHECK(got.sin_addr.s_addr == local.sin_addr.s_addr);
    EQUAL(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(getsockname(fd, (struct sockaddr *)&got, &length), 0);
    CHECK(got.sin_port != 0);
    CHECK(got.sin_addr.s_addr == local.sin_addr.s_addr);
    int far = accept_far(listener);
    write_all(fd, "x", 1);
    char byte;
    read_all(far, &byte, 1);
    close(far);
    close(fd);
    close(listener);
    /* Listening is naming a port as well. */
    fd = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){ 1 }, sizeof value), 0);
    EQUAL(bind(fd, (struct sockaddr *)&local, sizeof local), 0);
    EQUAL(listen(fd, 1), 0);
    length = sizeof got;
    EQUAL(getsockname(fd, (struct sockaddr *)&got, &length), 0);
    CHECK(got.sin_port != 0);
    CHECK(got.sin_addr.s_addr == local.sin_addr.s_addr);
    far = connect_far(&got);
    close(far);
    close(fd);
}

STATEMENT(linger2_bounds_the_wait_for_the_peer)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), value;
    socklen_t length = sizeof value;
    static const int shown[][2] = { { 20, 20 }, { -7, -1 }, { 1000, 120 }, { 0, 60 } };
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        EQUAL(setsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &shown[i][0], sizeof value), 0);
        EQUAL(getsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &value, &length), 0);
        EQUAL(value, shown[i][1]);
    }
    close(fd);
    /* Below 0 the peer, which has not closed, is reset once it has acknowledged the end of the stream. */
    struct pair pair = make_pair();
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_LINGER2, &(int){ -1 }, sizeof value), 0);
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_LINGER2, &value, &length), 0);
    EQUAL(value, -1);
    close(pair.near);
    wait_for(pair.far, POLLHUP);
    FAILS(send(pair.far, "x", 1, MSG_NOSIGNAL), EPIPE);
    close(pair.far);
}
