// Connections, their bytes, and bytes shown where they are.
#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "check.h"

static unsigned char byte(size_t at)
{
    return (unsigned char)(at * 31 + at / 251);
}

// Sends `total` bytes in pieces of all sizes, and looks at every one that arrives.
static void transfer(struct pair *pair, int ends[2], size_t total)
{
    static unsigned char buffer[70000];
    size_t sent = 0, got = 0, step = 1;
    while (got < total) {
        while (sent < total) {
            size_t len = step % sizeof buffer < total - sent ? step % sizeof buffer : total - sent;
            for (size_t at = 0; at < len; at++)
                buffer[at] = byte(sent + at);
            ssize_t done = mr_write(ends[0], buffer, len);
            if (done < 0) {
                CHECK(errno == EAGAIN);
                break;
            }
            sent += (size_t)done;
            step = step * 7 % 69997;
        }
        run(pair, 1);
        ssize_t len;
        while ((len = mr_read(ends[1], buffer, sizeof buffer)) > 0) {
            for (ssize_t at = 0; at < len; at++)
                CHECK(buffer[at] == byte(got + (size_t)at));
            got += (size_t)len;
        }
        CHECK(len == -1 && errno == EAGAIN);
        run(pair, 1);
    }
}

static void both_ends_close(void)
{
    struct pair pair;
    int ends[2];
    char buffer[16];
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_write(ends[0], "hello", 5) == 5);
    CHECK(mr_shutdown(ends[0], SHUT_WR) == 0);
    FAILS(mr_write(ends[0], "x", 1), EPIPE);
    run(&pair, 1);
    int waiting = 0;
    CHECK(mr_ioctl(ends[1], FIONREAD, &waiting) == 0 && waiting == 5);
    CHECK(mr_recv(ends[1], buffer, sizeof buffer, MSG_PEEK) == 5);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 5 && !memcmp(buffer, "hello", 5));
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 0);
    CHECK(mr_write(ends[1], "bye", 3) == 3);
    CHECK(mr_ioctl(ends[1], SIOCOUTQ, &waiting) == 0 && waiting == 3);
    CHECK(mr_close(ends[1]) == 0);
    run(&pair, 1);
    CHECK(mr_read(ends[0], buffer, sizeof buffer) == 3);
    CHECK(mr_read(ends[0], buffer, sizeof buffer) == 0);
    CHECK(mr_close(ends[0]) == 0);
    FAILS(mr_close(ends[0]), EBADF);
    pair_close(&pair);
}

static void a_reset_is_told_once(void)
{
    struct pair pair;
    int ends[2];
    char buffer[16];
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_abort(ends[1]) == 0);
    run(&pair, 1);
    FAILS(mr_read(ends[0], buffer, sizeof buffer), ECONNRESET);
    CHECK(mr_read(ends[0], buffer, sizeof buffer) == 0);
    FAILS(mr_write(ends[0], buffer, 1), EPIPE);
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    FAILS(mr_getpeername(ends[0], (struct sockaddr *)&peer, &len), ENOTCONN);
    struct sockaddr_in nobody = at("10.0.0.2", 81);
    CHECK(mr_stack_use(pair.stacks[0]) == 0);
    int refused = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    FAILS(mr_connect(refused, (struct sockaddr *)&nobody, sizeof nobody), EINPROGRESS);
    run(&pair, 1);
    FAILS(mr_connect(refused, (struct sockaddr *)&nobody, sizeof nobody), ECONNREFUSED);
    pair_close(&pair);
}

// A call that has bytes to return leaves the reset for the next.
static void a_reset_behind_bytes_is_told(void)
{
    for (int how = 0; how < 2; how++) {
        struct pair pair;
        int ends[2];
        char buffer[16];
        struct iovec pieces[2] = {{buffer, 3}, {buffer + 3, 8}};
        pair_open(&pair);
        connected(&pair, ends);
        CHECK(mr_write(ends[1], "abc", 3) == 3);
        run(&pair, 1);
        CHECK(mr_abort(ends[1]) == 0);
        run(&pair, 1);
        if (how)
            CHECK(mr_readv(ends[0], pieces, 2) == 3);
        else
            CHECK(mr_recv(ends[0], buffer, sizeof buffer, MSG_WAITALL) == 3);
        FAILS(mr_read(ends[0], buffer, sizeof buffer), ECONNRESET);
        CHECK(mr_read(ends[0], buffer, sizeof buffer) == 0);
        pair_close(&pair);
    }
}

static void what_is_lost_comes_again(void)
{
    struct pair pair;
    int ends[2];
    char buffer[16];
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_write(ends[0], "again", 5) == 5);
    pair.lose = 1;
    run(&pair, 1);
    FAILS(mr_read(ends[1], buffer, sizeof buffer), EAGAIN);
    // RFC 6298 and RFC 8985 have their timers; two seconds are enough for either.
    run(&pair, 2000);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 5);
    transfer(&pair, ends, 300000);
    pair_close(&pair);
}

static void vectors(void)
{
    struct pair pair;
    int ends[2];
    char one[4], two[8], three[8];
    struct iovec out[3] = {{(void *)"ab", 2}, {NULL, 0}, {(void *)"cdefgh", 6}};
    struct iovec in[3] = {{one, sizeof one}, {two, 0}, {three, sizeof three}};
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_writev(ends[0], out, 3) == 8);
    run(&pair, 1);
    CHECK(mr_readv(ends[1], in, 3) == 8);
    CHECK(!memcmp(one, "abcd", 4) && !memcmp(three, "efgh", 4));
    FAILS(mr_readv(ends[1], in, 3), EAGAIN);
    // Pieces that overlap are written one after the other.
    struct iovec over[2] = {{three, 4}, {three + 2, 4}};
    CHECK(mr_write(ends[0], "123456", 6) == 6);
    run(&pair, 1);
    CHECK(mr_readv(ends[1], over, 2) == 6 && !memcmp(three, "1256", 4));
    FAILS(mr_writev(ends[0], out, -1), EINVAL);
    FAILS(mr_writev(ends[0], out, 1025), EINVAL);
    FAILS(mr_writev(ends[0], NULL, 1), EFAULT);
    out[1].iov_len = 1;
    FAILS(mr_writev(ends[0], out, 3), EFAULT);
    out[1].iov_len = (size_t)-1;
    FAILS(mr_writev(ends[0], out, 3), EINVAL);
    CHECK(mr_writev(ends[0], NULL, 0) == 0);
    pair_close(&pair);
}

void test_connections(void)
{
    struct pair pair;
    int ends[2];
    pair_open(&pair);
    connected(&pair, ends);
    transfer(&pair, ends, 2000000);
    pair_close(&pair);
    both_ends_close();
    a_reset_is_told_once();
    a_reset_behind_bytes_is_told();
    what_is_lost_comes_again();
    vectors();
}

void test_lending(void)
{
    struct pair pair;
    int ends[2];
    struct iovec pieces[2];
    size_t sent = 0, got = 0;
    const size_t total = 400000;
    pair_open(&pair);
    connected(&pair, ends);
    FAILS(mr_peek(ends[1], pieces), EAGAIN);
    while (got < total) {
        while (sent < total) {
            size_t want = total - sent < 5000 ? total - sent : 5000;
            ssize_t room = mr_reserve(ends[0], want, pieces);
            if (room < 0) {
                CHECK(errno == EAGAIN);
                break;
            }
            CHECK((size_t)room <= want && pieces[0].iov_len + pieces[1].iov_len == (size_t)room);
            // Not all of it is used each time.
            size_t used = room > 1 ? (size_t)room - 1 : 1;
            for (size_t at = 0; at < used; at++) {
                unsigned char *start = (unsigned char *)pieces[at >= pieces[0].iov_len].iov_base;
                start[at >= pieces[0].iov_len ? at - pieces[0].iov_len : at] = byte(sent + at);
            }
            CHECK(mr_commit(ends[0], used) == (ssize_t)used);
            sent += used;
        }
        run(&pair, 1);
        ssize_t len;
        while ((len = mr_peek(ends[1], pieces)) > 0) {
            size_t take = len > 3 ? (size_t)len - 3 : (size_t)len;
            for (size_t at = 0; at < take; at++) {
                unsigned char *start = (unsigned char *)pieces[at >= pieces[0].iov_len].iov_base;
                CHECK(start[at >= pieces[0].iov_len ? at - pieces[0].iov_len : at] == byte(got + at));
            }
            FAILS(mr_consume(ends[1], (size_t)len + 1), EINVAL);
            FAILS(mr_consume(ends[1], (size_t)-1), EINVAL);
            CHECK(mr_consume(ends[1], take) == 0);
            got += take;
        }
        CHECK(len == -1 && errno == EAGAIN);
        run(&pair, 1);
    }
    // A reservation is for the next call, and no more than it said.
    FAILS(mr_commit(ends[0], 1), EINVAL);
    ssize_t room = mr_reserve(ends[0], 10, pieces);
    CHECK(room == 10);
    FAILS(mr_commit(ends[0], 11), EINVAL);
    FAILS(mr_commit(ends[0], 10), EINVAL);
    CHECK(mr_reserve(ends[0], 10, pieces) == 10);
    CHECK(mr_stack_poll(pair.stacks[0]) >= 0);
    FAILS(mr_commit(ends[0], 10), EINVAL);
    CHECK(mr_reserve(ends[0], 10, pieces) == 10);
    FAILS(mr_commit(ends[1], 10), EINVAL);
    FAILS(mr_reserve(ends[0], 10, NULL), EFAULT);
    FAILS(mr_peek(ends[0], NULL), EFAULT);
    FAILS(mr_peek(ends[0], pieces), EAGAIN);
    CHECK(mr_shutdown(ends[0], SHUT_WR) == 0);
    run(&pair, 1);
    CHECK(mr_peek(ends[1], pieces) == 0);
    FAILS(mr_reserve(ends[0], 10, pieces), EPIPE);
    pair_close(&pair);
}

// IPv6 and, from a socket of IPv6, IPv4.
static void both_families(void)
{
    const char *names[] = {"::1", "::ffff:127.0.0.1"};
    struct sockaddr_in6 address, peer;
    socklen_t len = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin6_family = AF_INET6;
    int listener = mr_socket(AF_INET6, SOCK_STREAM, 0);
    CHECK(mr_bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && mr_listen(listener, 5) == 0);
    CHECK(mr_getsockname(listener, (struct sockaddr *)&address, &len) == 0 && len == sizeof address);
    for (int which = 0; which < 2; which++) {
        CHECK(inet_pton(AF_INET6, names[which], &address.sin6_addr) == 1);
        int client = mr_socket(AF_INET6, SOCK_STREAM, 0);
        CHECK(mr_connect(client, (struct sockaddr *)&address, sizeof address) == 0);
        int server = mr_accept(listener, (struct sockaddr *)&peer, &len);
        CHECK(server > 0 && peer.sin6_family == AF_INET6);
        CHECK(!memcmp(&peer.sin6_addr, &address.sin6_addr, sizeof peer.sin6_addr));
        CHECK(mr_close(client) == 0 && mr_close(server) == 0);
    }
    CHECK(mr_close(listener) == 0);
}

// Calls that wait, on loopback in the system's time: both ends are this thread's, so nothing may wait for what only this thread could do.
void test_waiting(void)
{
    int engine = mr_engine_new();
    CHECK(mr_engine_start(engine) == 0);
    int stack = mr_stack_open(engine, 0);
    CHECK(stack > 0 && mr_stack_descriptor(stack) >= 0);
    both_families();
    struct sockaddr_in address = at("127.0.0.1", 0);
    socklen_t len = sizeof address;
    int listener = mr_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(mr_bind(listener, (struct sockaddr *)&address, len) == 0);
    FAILS(mr_bind(listener, (struct sockaddr *)&address, len), EINVAL);
    CHECK(mr_listen(listener, 1) == 0);
    CHECK(mr_getsockname(listener, (struct sockaddr *)&address, &len) == 0 && address.sin_port != 0);
    int client = mr_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(mr_connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    int server = mr_accept(listener, NULL, NULL);
    CHECK(server > 0);
    char buffer[8];
    struct timeval soon = {0, 2000};
    CHECK(mr_setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    FAILS(mr_read(server, buffer, sizeof buffer), EAGAIN);
    FAILS(mr_recv(server, buffer, sizeof buffer, MSG_DONTWAIT), EAGAIN);
    CHECK(mr_write(client, "abcd", 4) == 4);
    CHECK(mr_read(server, buffer, sizeof buffer) == 4);
    CHECK(mr_write(client, "ab", 2) == 2 && mr_write(client, "cdefgh", 6) == 6);
    CHECK(mr_recv(server, buffer, sizeof buffer, MSG_WAITALL) == 8 && !memcmp(buffer, "abcdefgh", 8));
    CHECK(mr_fcntl(server, F_GETFL, 0) == O_RDWR);
    CHECK(mr_fcntl(server, F_SETFL, O_NONBLOCK) == 0);
    CHECK(mr_fcntl(server, F_GETFL, 0) == (O_RDWR | O_NONBLOCK));
    FAILS(mr_fcntl(server, F_SETFL, O_APPEND), EINVAL);
    FAILS(mr_fcntl(server, F_DUPFD, 0), EINVAL);
    struct linger linger = {1, 1};
    CHECK(mr_setsockopt(client, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(mr_write(client, "last", 4) == 4 && mr_close(client) == 0);
    CHECK(mr_read(server, buffer, sizeof buffer) == 4);
    CHECK(mr_stack_close(stack, 1000) == 0);
    FAILS(mr_read(server, buffer, sizeof buffer), EBADF);
    FAILS(mr_stack_poll(stack), EBADF);
    CHECK(mr_engine_close(engine) == 0);
}
