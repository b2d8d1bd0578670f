/* Datagram sockets: what arrives, where, and what is refused. */
#include "harness.h"

static struct sockaddr *any(struct sockaddr_in *address)
{
    return (struct sockaddr *)address;
}

static bool same(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
    return a->sin_family == b->sin_family && a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
}

/* The next datagram is these bytes. */
static void expect(int fd, const void *data, size_t length)
{
    static char got[70000];
    wait_for(fd, POLLIN);
    EQUAL(recv(fd, got, sizeof got, 0), (ssize_t)length);
    CHECK(memcmp(got, data, length) == 0);
}

static void expect_nothing(int fd)
{
    char byte;
    FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

/* The address from which the stack under test speaks to the far end: the kernel, when it has both, takes the far one. */
static in_addr_t own_address(void)
{
    struct sockaddr_in address = is_loopback || getenv("MILLRACE_ENGINE") ? near_address(0) : far_address(0);
    return address.sin_addr.s_addr;
}

STATEMENT(u1_datagrams_keep_their_bounds)
{
    static const size_t sizes[] = { 1, 2, 0, 1000, 1472, 17, 0, 1 };
    struct pair pair = datagram_pair();
    char sent[1500];
    for (int direction = 0; direction < 2; direction++) {
        int from = direction ? pair.near : pair.far, to = direction ? pair.far : pair.near;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            fill(sent, sizes[i], i * 7);
            EQUAL(send(from, sent, sizes[i], 0), (ssize_t)sizes[i]);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            fill(sent, sizes[i], i * 7);
            expect(to, sent, sizes[i]);
        }
        expect_nothing(to);
    }
    close_pair(&pair);
}

STATEMENT(u1_datagrams_longer_than_a_packet_arrive_whole)
{
    static char sent[65507 + 1];
    static const size_t sizes[] = { 1473, 3000, 9001, 30000, 65507 };
    struct pair pair = datagram_pair();
    int room = 1 << 20;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    EQUAL(setsockopt(pair.far, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fill(sent, sizes[i], i);
        EQUAL(send(pair.near, sent, sizes[i], 0), (ssize_t)sizes[i]);
        expect(pair.far, sent, sizes[i]);
        EQUAL(send(pair.far, sent, sizes[i], 0), (ssize_t)sizes[i]);
        expect(pair.near, sent, sizes[i]);
    }
    FAILS(send(pair.near, sent, 65508, 0), EMSGSIZE);
    FAILS(send(pair.near, sent, 1 << 20, 0), EMSGSIZE);
    close_pair(&pair);
}

STATEMENT(u1_a_datagram_is_cut_to_the_buffer)
{
    struct pair pair = datagram_pair();
    char got[8] = "";
    EQUAL(send(pair.far, "abcdef", 6, 0), 6);
    EQUAL(send(pair.far, "ghijkl", 6, 0), 6);
    EQUAL(send(pair.far, "mnopqr", 6, 0), 6);
    EQUAL(send(pair.far, "stu", 3, 0), 3);
    wait_for(pair.near, POLLIN);
    EQUAL(recv(pair.near, got, 3, 0), 3);
    CHECK(memcmp(got, "abc", 3) == 0);
    wait_for(pair.near, POLLIN);
    EQUAL(recv(pair.near, got, 3, MSG_TRUNC), 6);
    CHECK(memcmp(got, "ghi", 3) == 0);
    struct iovec parts[2] = { { got, 1 }, { got + 1, 3 } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    wait_for(pair.near, POLLIN);
    EQUAL(recvmsg(pair.near, &message, 0), 4);
    CHECK(memcmp(got, "mnop", 4) == 0);
    CHECK(message.msg_flags & MSG_TRUNC);
    wait_for(pair.near, POLLIN);
    EQUAL(recvmsg(pair.near, &message, 0), 3);
    EQUAL(message.msg_flags & MSG_TRUNC, 0);
    expect_nothing(pair.near);
    close_pair(&pair);
}

STATEMENT(u1_a_datagram_can_be_looked_at)
{
    struct pair pair = datagram_pair();
    char got[8];
    int size = -1;
    EQUAL(ioctl(pair.near, FIONREAD, &size), 0);
    EQUAL(size, 0);
    EQUAL(send(pair.far, "abcdef", 6, 0), 6);
    EQUAL(send(pair.far, "gh", 2, 0), 2);
    wait_for(pair.near, POLLIN);
    EQUAL(ioctl(pair.near, FIONREAD, &size), 0);
    EQUAL(size, 6);
    EQUAL(recv(pair.near, got, sizeof got, MSG_PEEK), 6);
    EQUAL(recv(pair.near, got, 0, MSG_PEEK | MSG_TRUNC), 6);
    EQUAL(recv(pair.near, got, 2, MSG_PEEK), 2);
    expect(pair.near, "abcdef", 6);
    expect(pair.near, "gh", 2);
    close_pair(&pair);
}

STATEMENT(u1_vectors_and_plain_calls_move_datagrams)
{
    struct pair pair = datagram_pair();
    struct iovec out[3] = { { "ab", 2 }, { "", 0 }, { "cde", 3 } };
    EQUAL(writev(pair.near, out, 3), 5);
    expect(pair.far, "abcde", 5);
    EQUAL(write(pair.far, "xyz", 3), 3);
    char one[2], two[4];
    struct iovec in[2] = { { one, 2 }, { two, 4 } };
    wait_for(pair.near, POLLIN);
    EQUAL(readv(pair.near, in, 2), 3);
    CHECK(memcmp(one, "xy", 2) == 0 && two[0] == 'z');
    EQUAL(write(pair.far, "", 0), 0);
    EQUAL(write(pair.far, "!", 1), 1);
    wait_for(pair.near, POLLIN);
    EQUAL(read(pair.near, two, sizeof two), 0);
    wait_for(pair.near, POLLIN);
    EQUAL(read(pair.near, two, sizeof two), 1);
    close_pair(&pair);
}

STATEMENT(u2_datagrams_tell_their_sender)
{
    struct sockaddr_in near, far, from;
    int fd = datagram_near(&near), other = datagram_far(&far);
    char byte;
    EQUAL(sendto(other, "?", 1, 0, any(&near), sizeof near), 1);
    socklen_t length = sizeof from;
    wait_for(fd, POLLIN);
    EQUAL(recvfrom(fd, &byte, 1, 0, any(&from), &length), 1);
    EQUAL(length, sizeof from);
    CHECK(same(&from, &far));
    EQUAL(sendto(fd, "!", 1, 0, any(&from), length), 1);
    wait_for(other, POLLIN);
    EQUAL(recvfrom(other, &byte, 1, 0, any(&from), &length), 1);
    CHECK(same(&from, &near));
    /* A name that does not fit is cut, and its length told. */
    EQUAL(sendto(other, "?", 1, 0, any(&near), sizeof near), 1);
    memset(&from, 0, sizeof from);
    length = 4;
    wait_for(fd, POLLIN);
    EQUAL(recvfrom(fd, &byte, 1, 0, any(&from), &length), 1);
    EQUAL(length, sizeof from);
    CHECK(from.sin_port == far.sin_port && from.sin_addr.s_addr == 0);
    close(fd);
    close(other);
}

STATEMENT(u2_a_first_send_takes_a_port)
{
    struct sockaddr_in far, name, from;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), other = datagram_far(&far);
    char byte;
    socklen_t length = sizeof name;
    EQUAL(getsockname(fd, any(&name), &length), 0);
    EQUAL(name.sin_family, AF_INET);
    EQUAL(name.sin_port, 0);
    FAILS(send(fd, "x", 1, 0), EDESTADDRREQ);
    FAILS(write(fd, "x", 1), EDESTADDRREQ);
    EQUAL(sendto(fd, "x", 1, 0, any(&far), sizeof far), 1);
    EQUAL(getsockname(fd, any(&name), &length), 0);
    CHECK(name.sin_port != 0);
    EQUAL(name.sin_addr.s_addr, INADDR_ANY);
    wait_for(other, POLLIN);
    EQUAL(recvfrom(other, &byte, 1, 0, any(&from), &length), 1);
    EQUAL(from.sin_port, name.sin_port);
    EQUAL(from.sin_addr.s_addr, own_address());
    EQUAL(sendto(other, "y", 1, 0, any(&from), sizeof from), 1);
    expect(fd, "y", 1);
    close(fd);
    close(other);
}

STATEMENT(u2_a_connected_socket_hears_its_peer_alone)
{
    struct sockaddr_in near, far, third;
    int fd = datagram_near(&near), other = datagram_far(&far), stranger = datagram_far(&third);
    EQUAL(connect(fd, any(&far), sizeof far), 0);
    EQUAL(sendto(stranger, "no", 2, 0, any(&near), sizeof near), 2);
    EQUAL(sendto(other, "yes", 3, 0, any(&near), sizeof near), 3);
    expect(fd, "yes", 3);
    expect_nothing(fd);
    /* It may send to others all the same. */
    EQUAL(sendto(fd, "hello", 5, 0, any(&third), sizeof third), 5);
    expect(stranger, "hello", 5);
    EQUAL(send(fd, "peer", 4, 0), 4);
    expect(other, "peer", 4);
    /* Connected again, elsewhere. */
    EQUAL(connect(fd, any(&third), sizeof third), 0);
    EQUAL(send(fd, "third", 5, 0), 5);
    expect(stranger, "third", 5);
    close(fd);
    close(other);
    close(stranger);
}

STATEMENT(u2_connect_names_and_unnames)
{
    struct sockaddr_in far, name, none = { .sin_family = AF_UNSPEC };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), other = datagram_far(&far);
    socklen_t length = sizeof name;
    FAILS(getpeername(fd, any(&name), &length), ENOTCONN);
    EQUAL(connect(fd, any(&far), sizeof far), 0);
    EQUAL(getpeername(fd, any(&name), &length), 0);
    CHECK(same(&name, &far));
    EQUAL(getsockname(fd, any(&name), &length), 0);
    CHECK(name.sin_port != 0);
    EQUAL(name.sin_addr.s_addr, own_address());
    EQUAL(connect(fd, any(&none), sizeof none), 0);
    FAILS(getpeername(fd, any(&name), &length), ENOTCONN);
    FAILS(send(fd, "x", 1, 0), EDESTADDRREQ);
    EQUAL(getsockname(fd, any(&name), &length), 0);
    EQUAL(name.sin_addr.s_addr, INADDR_ANY);
    EQUAL(sendto(fd, "x", 1, 0, any(&far), sizeof far), 1);
    expect(other, "x", 1);
    FAILS(connect(fd, any(&far), 3), EINVAL);
    close(fd);
    close(other);
}

STATEMENT(u2_the_closest_match_hears)
{
    struct sockaddr_in near, far, third, wildcard;
    int one = 1;
    int bound = socket(AF_INET, SOCK_DGRAM, 0), wide = socket(AF_INET, SOCK_DGRAM, 0), close_by = socket(AF_INET, SOCK_DGRAM, 0);
    int other = datagram_far(&far), stranger = datagram_far(&third);
    socklen_t length = sizeof near;
    EQUAL(setsockopt(bound, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    EQUAL(setsockopt(wide, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    EQUAL(setsockopt(close_by, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    near = near_address(0);
    EQUAL(bind(bound, any(&near), sizeof near), 0);
    EQUAL(getsockname(bound, any(&near), &length), 0);
    wildcard = near;
    wildcard.sin_addr.s_addr = INADDR_ANY;
    EQUAL(bind(wide, any(&wildcard), sizeof wildcard), 0);
    EQUAL(bind(close_by, any(&near), sizeof near), 0);
    EQUAL(connect(close_by, any(&far), sizeof far), 0);
    EQUAL(sendto(other, "1", 1, 0, any(&near), sizeof near), 1);
    expect(close_by, "1", 1);
    EQUAL(sendto(stranger, "2", 1, 0, any(&near), sizeof near), 1);
    expect(bound, "2", 1);
    close(bound);
    EQUAL(sendto(stranger, "3", 1, 0, any(&near), sizeof near), 1);
    expect(wide, "3", 1);
    close(close_by);
    EQUAL(sendto(other, "4", 1, 0, any(&near), sizeof near), 1);
    expect(wide, "4", 1);
    close(wide);
    close(other);
    close(stranger);
}

STATEMENT(u2_ports_are_taken_and_shared)
{
    struct sockaddr_in near;
    int one = 1, fd = datagram_near(&near), again = socket(AF_INET, SOCK_DGRAM, 0);
    FAILS(bind(again, any(&near), sizeof near), EADDRINUSE);
    struct sockaddr_in wildcard = near;
    wildcard.sin_addr.s_addr = INADDR_ANY;
    FAILS(bind(again, any(&wildcard), sizeof wildcard), EADDRINUSE);
    FAILS(bind(fd, any(&near), sizeof near), EINVAL);
    /* A stream may have the same port. */
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(bind(stream, any(&near), sizeof near), 0);
    close(stream);
    close(fd);
    EQUAL(bind(again, any(&near), sizeof near), 0);
    close(again);
    /* Both must ask for sharing. */
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    again = socket(AF_INET, SOCK_DGRAM, 0);
    EQUAL(bind(fd, any(&near), sizeof near), 0);
    EQUAL(setsockopt(again, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    FAILS(bind(again, any(&near), sizeof near), EADDRINUSE);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one), 0);
    EQUAL(bind(again, any(&near), sizeof near), 0);
    struct sockaddr_in nowhere = near;
    nowhere.sin_addr.s_addr = htonl(0x0a636363);
    nowhere.sin_port = 0;
    int strange = socket(AF_INET, SOCK_DGRAM, 0);
    FAILS(bind(strange, any(&nowhere), sizeof nowhere), EADDRNOTAVAIL);
    close(strange);
    close(again);
    close(fd);
}

STATEMENT(u2_a_reuseport_group_shares_senders)
{
    enum { SENDERS = 64 };
    struct sockaddr_in near = near_address(0), far;
    int one = 1, group[2], senders[SENDERS], heard[2] = { 0, 0 };
    socklen_t length = sizeof near;
    for (int i = 0; i < 2; i++) {
        group[i] = socket(AF_INET, SOCK_DGRAM, 0);
        EQUAL(setsockopt(group[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
        EQUAL(bind(group[i], any(&near), sizeof near), 0);
        EQUAL(getsockname(group[i], any(&near), &length), 0);
    }
    for (int i = 0; i < SENDERS; i++)
        senders[i] = datagram_far(&far);
    /* Each sender twice: it is the same socket that hears it again. */
    static int heard_at[65536];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < SENDERS; i++)
            EQUAL(sendto(senders[i], "x", 1, 0, any(&near), sizeof near), 1);
        for (int count = 0; count < SENDERS; count++) {
            struct pollfd watched[2] = { { .fd = group[0], .events = POLLIN }, { .fd = group[1], .events = POLLIN } };
            CHECK(poll(watched, 2, 10 * 1000) > 0);
            int which = watched[0].revents & POLLIN ? 0 : 1;
            char byte;
            EQUAL(recvfrom(group[which], &byte, 1, 0, any(&far), &length), 1);
            heard[which]++;
            if (round)
                EQUAL(heard_at[ntohs(far.sin_port)], which + 1);
            heard_at[ntohs(far.sin_port)] = which + 1;
        }
    }
    CHECK(heard[0] > 0 && heard[1] > 0);
    for (int i = 0; i < SENDERS; i++)
        close(senders[i]);
    close(group[0]);
    close(group[1]);
}

STATEMENT(u3_nobody_there_is_an_error_of_the_connected)
{
    struct sockaddr_in far;
    int other = datagram_far(&far), fd = socket(AF_INET, SOCK_DGRAM, 0), error = -1;
    char byte;
    socklen_t length = sizeof error;
    close(other);
    EQUAL(connect(fd, any(&far), sizeof far), 0);
    EQUAL(send(fd, "x", 1, 0), 1);
    wait_for(fd, POLLERR);
    FAILS(recv(fd, &byte, 1, 0), ECONNREFUSED);
    expect_nothing(fd);
    EQUAL(send(fd, "x", 1, 0), 1);
    wait_for(fd, POLLERR);
    FAILS(send(fd, "x", 1, 0), ECONNREFUSED);
    EQUAL(send(fd, "x", 1, 0), 1);
    wait_for(fd, POLLERR);
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    EQUAL(error, ECONNREFUSED);
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    EQUAL(error, 0);
    close(fd);
    /* One that is not connected is not told. */
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    EQUAL(sendto(fd, "x", 1, 0, any(&far), sizeof far), 1);
    pause_ms(50);
    EQUAL(sendto(fd, "x", 1, 0, any(&far), sizeof far), 1);
    expect_nothing(fd);
    close(fd);
}

STATEMENT(u3_a_closed_port_refuses)
{
    struct sockaddr_in near, far;
    int fd = datagram_near(&near), other = datagram_far(&far);
    char byte;
    EQUAL(connect(other, any(&near), sizeof near), 0);
    EQUAL(send(other, "x", 1, 0), 1);
    expect(fd, "x", 1);
    close(fd);
    EQUAL(send(other, "x", 1, 0), 1);
    wait_for(other, POLLERR);
    FAILS(recv(other, &byte, 1, 0), ECONNREFUSED);
    close(other);
}

STATEMENT(u3_calls_of_streams_are_refused)
{
    struct sockaddr_in near;
    int fd = datagram_near(&near), value = 1;
    socklen_t length = sizeof value;
    char byte;
    FAILS(listen(fd, 5), EOPNOTSUPP);
    FAILS(accept(fd, NULL, NULL), EOPNOTSUPP);
    FAILS(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value), ENOPROTOOPT);
    FAILS(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &value, &length), EOPNOTSUPP);
    FAILS(send(fd, "x", 1, MSG_OOB), EOPNOTSUPP);
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length), 0);
    EQUAL(value, SOCK_DGRAM);
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &length), 0);
    EQUAL(value, IPPROTO_UDP);
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &length), 0);
    EQUAL(value, AF_INET);
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &length), 0);
    EQUAL(value, 0);
    FAILS(recv(fd, &byte, 1, MSG_DONTWAIT | MSG_ERRQUEUE), EAGAIN);
    FAILS(shutdown(fd, SHUT_RDWR), ENOTCONN);
    FAILS(shutdown(fd, 7), EINVAL);
    close(fd);
    FAILS(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EPROTONOSUPPORT);
}

STATEMENT(u3_shutdown_ends_a_direction)
{
    struct pair pair = datagram_pair();
    char byte;
    EQUAL(send(pair.far, "x", 1, 0), 1);
    wait_for(pair.near, POLLIN);
    EQUAL(shutdown(pair.near, SHUT_RD), 0);
    struct pollfd watched = { .fd = pair.near, .events = POLLIN | POLLRDHUP };
    EQUAL(poll(&watched, 1, 0), 1);
    EQUAL(watched.revents, POLLIN | POLLRDHUP);
    EQUAL(recv(pair.near, &byte, 1, 0), 1);
    EQUAL(recv(pair.near, &byte, 1, 0), 0);
    EQUAL(send(pair.near, "y", 1, 0), 1);
    expect(pair.far, "y", 1);
    signal(SIGPIPE, SIG_IGN);
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    FAILS(send(pair.near, "z", 1, 0), EPIPE);
    watched.events = POLLIN;
    EQUAL(poll(&watched, 1, 0), 1);
    CHECK(watched.revents & POLLHUP);
    close_pair(&pair);
}

static void *receive_one(void *argument)
{
    char byte;
    return (void *)(intptr_t)recv(*(int *)argument, &byte, 1, 0);
}

STATEMENT(u3_shutdown_wakes_a_sleeping_receive)
{
    struct pair pair = datagram_pair();
    void *result;
    pthread_t thread = start_thread(receive_one, &pair.near);
    pause_ms(50);
    EQUAL(shutdown(pair.near, SHUT_RDWR), 0);
    pthread_join(thread, &result);
    EQUAL((intptr_t)result, 0);
    close_pair(&pair);
}

STATEMENT(u4_waits_and_timeouts)
{
    struct pair pair = datagram_pair();
    struct timeval limit = { 0, 100 * 1000 };
    char byte;
    expect_nothing(pair.near);
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    long long start = now_ms();
    FAILS(recv(pair.near, &byte, 1, 0), EAGAIN);
    CHECK(now_ms() - start >= 95);
    count_signal(SIGUSR1, 0);
    limit = (struct timeval){ 0, 0 };
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    struct pester *pester = pester_me(SIGUSR1, 30);
    FAILS(recv(pair.near, &byte, 1, 0), EINTR);
    stop_pestering(pester);
    set_blocking(pair.near, false);
    FAILS(read(pair.near, &byte, 1), EAGAIN);
    pthread_t thread;
    set_blocking(pair.near, true);
    thread = start_thread(receive_one, &pair.near);
    pause_ms(50);
    EQUAL(send(pair.far, "x", 1, 0), 1);
    void *result;
    pthread_join(thread, &result);
    EQUAL((intptr_t)result, 1);
    close_pair(&pair);
}

STATEMENT(u4_events_of_datagrams)
{
    struct pair pair = datagram_pair();
    int level = epoll_create1(0), edge = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    EQUAL(epoll_ctl(level, EPOLL_CTL_ADD, pair.near, &event), 0);
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    EQUAL(epoll_ctl(edge, EPOLL_CTL_ADD, pair.near, &event), 0);
    EQUAL(epoll_wait(level, &event, 1, 0), 0);
    EQUAL(epoll_wait(edge, &event, 1, 1000), 1);
    EQUAL(event.events, EPOLLOUT);
    EQUAL(epoll_wait(edge, &event, 1, 0), 0);
    EQUAL(send(pair.far, "1", 1, 0), 1);
    EQUAL(epoll_wait(edge, &event, 1, 10 * 1000), 1);
    EQUAL(event.events, EPOLLIN | EPOLLOUT);
    EQUAL(epoll_wait(edge, &event, 1, 0), 0);
    EQUAL(epoll_wait(level, &event, 1, 10 * 1000), 1);
    EQUAL(epoll_wait(level, &event, 1, 0), 1);
    EQUAL(event.events, EPOLLIN);
    /* Another one is another edge, though the first was not read. */
    EQUAL(send(pair.far, "2", 1, 0), 1);
    EQUAL(epoll_wait(edge, &event, 1, 10 * 1000), 1);
    CHECK(event.events & EPOLLIN);
    expect(pair.near, "1", 1);
    EQUAL(epoll_wait(level, &event, 1, 0), 1);
    expect(pair.near, "2", 1);
    EQUAL(epoll_wait(level, &event, 1, 0), 0);
    struct pollfd watched = { .fd = pair.near, .events = POLLIN | POLLOUT };
    EQUAL(poll(&watched, 1, 0), 1);
    EQUAL(watched.revents, POLLOUT);
    fd_set readers;
    FD_ZERO(&readers);
    FD_SET(pair.near, &readers);
    struct timeval patience = { 10, 0 };
    EQUAL(send(pair.far, "", 0, 0), 0);
    EQUAL(select(pair.near + 1, &readers, NULL, NULL, &patience), 1);
    expect(pair.near, "", 0);
    close(level);
    close(edge);
    close_pair(&pair);
}

STATEMENT(u5_many_messages_in_one_call)
{
    enum { COUNT = 20 };
    struct sockaddr_in near, far, from[COUNT];
    int fd = datagram_near(&near), other = datagram_far(&far);
    char bytes[COUNT][32];
    struct iovec parts[COUNT];
    struct mmsghdr messages[COUNT];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < COUNT; i++) {
        fill(bytes[i], i, i);
        parts[i] = (struct iovec){ bytes[i], i };
        messages[i].msg_hdr = (struct msghdr){ .msg_name = &far, .msg_namelen = sizeof far, .msg_iov = &parts[i], .msg_iovlen = 1 };
    }
    EQUAL(sendmmsg(fd, messages, COUNT, 0), COUNT);
    for (int i = 0; i < COUNT; i++) {
        EQUAL(messages[i].msg_len, i);
        fill(bytes[0], i, i);
        expect(other, bytes[0], i);
    }
    for (int i = 0; i < COUNT; i++) {
        fill(bytes[0], i, i);
        EQUAL(sendto(other, bytes[0], i, 0, any(&near), sizeof near), i);
    }
    for (int i = 0; i < COUNT; i++) {
        parts[i].iov_base = bytes[i];
        parts[i].iov_len = sizeof bytes[i];
        messages[i].msg_hdr.msg_name = &from[i];
    }
    /* The first wait is for one; the rest are those that have come. */
    struct timespec limit = { 10, 0 };
    int taken = 0;
    while (taken < COUNT) {
        int count = recvmmsg(fd, messages + taken, COUNT - taken, MSG_WAITFORONE, &limit);
        CHECK(count > 0);
        taken += count;
    }
    for (int i = 0; i < COUNT; i++) {
        EQUAL(messages[i].msg_len, i);
        CHECK(matches(bytes[i], i, i));
        CHECK(same(&from[i], &far));
    }
    FAILS(recvmmsg(fd, messages, COUNT, MSG_DONTWAIT, NULL), EAGAIN);
    /* An error after the first message ends the call with what was sent. */
    messages[0].msg_hdr.msg_name = &far;
    messages[1].msg_hdr.msg_name = NULL;
    messages[1].msg_hdr.msg_namelen = 0;
    EQUAL(sendmmsg(fd, messages, 2, 0), 1);
    FAILS(sendmmsg(fd, messages + 1, 1, 0), EDESTADDRREQ);
    close(fd);
    close(other);
}

STATEMENT(u5_a_full_buffer_keeps_the_old)
{
    struct pair pair = datagram_pair();
    int room = 20000;
    static char data[1000];
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &room, sizeof room), 0);
    for (int i = 0; i < 500; i++) {
        data[0] = i;
        data[1] = i >> 8;
        EQUAL(send(pair.far, data, sizeof data, 0), (ssize_t)sizeof data);
    }
    pause_ms(100);
    int count = 0;
    char got[1000];
    while (recv(pair.near, got, sizeof got, MSG_DONTWAIT) == (ssize_t)sizeof got) {
        EQUAL((unsigned char)got[0] | (unsigned char)got[1] << 8, count);
        count++;
    }
    EQUAL(errno, EAGAIN);
    CHECK(count >= 5 && count < 100);
    EQUAL(send(pair.far, "again", 5, 0), 5);
    expect(pair.near, "again", 5);
    close_pair(&pair);
}

STATEMENT(u5_many_datagrams_flow)
{
    enum { ROUNDS = 300, BURST = 20 };
    struct pair pair = datagram_pair();
    static char sent[1400], got[1400];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BURST; i++) {
            fill(sent, sizeof sent, round * BURST + i);
            EQUAL(send(pair.near, sent, sizeof sent, 0), (ssize_t)sizeof sent);
        }
        for (int i = 0; i < BURST; i++) {
            wait_for(pair.far, POLLIN);
            EQUAL(recv(pair.far, got, sizeof got, 0), (ssize_t)sizeof got);
            CHECK(matches(got, sizeof got, round * BURST + i));
            EQUAL(send(pair.far, got, sizeof got, 0), (ssize_t)sizeof got);
        }
        for (int i = 0; i < BURST; i++) {
            wait_for(pair.near, POLLIN);
            EQUAL(recv(pair.near, got, sizeof got, 0), (ssize_t)sizeof got);
            CHECK(matches(got, sizeof got, round * BURST + i));
        }
    }
    int queued = -1;
    EQUAL(ioctl(pair.near, SIOCOUTQ, &queued), 0);
    EQUAL(queued, 0);
    close_pair(&pair);
}

STATEMENT(u6_the_kernels_own_addresses_are_served)
{
    if (is_loopback)
        return;
    /* What a resolver does that listens at this address. */
    struct sockaddr_in far, from, resolver = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int probe = datagram_far(&far), server = socket(AF_INET, SOCK_DGRAM, 0), fd;
    char byte;
    socklen_t length = sizeof resolver;
    EQUAL(bind(server, any(&resolver), sizeof resolver), 0);
    EQUAL(getsockname(server, any(&resolver), &length), 0);
    for (int connected = 0; connected < 2; connected++) {
        fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (connected)
            EQUAL(connect(fd, any(&resolver), sizeof resolver), 0);
        EQUAL(connected ? send(fd, "?", 1, 0) : sendto(fd, "?", 1, 0, any(&resolver), sizeof resolver), 1);
        wait_for(server, POLLIN);
        EQUAL(recvfrom(server, &byte, 1, 0, any(&from), &length), 1);
        EQUAL(from.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
        EQUAL(sendto(server, "!", 1, 0, any(&from), sizeof from), 1);
        expect(fd, "!", 1);
        close(fd);
    }
    close(probe);
    close(server);
}
