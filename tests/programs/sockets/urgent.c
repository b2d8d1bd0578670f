/* Urgent data: a mark in the stream, and a byte that is received apart from it. */
#include "harness.h"

static int at_mark(int fd)
{
    int mark = -1;
    EQUAL(ioctl(fd, SIOCATMARK, &mark), 0);
    return mark;
}

static int readable(int fd)
{
    int count = -1;
    EQUAL(ioctl(fd, FIONREAD, &count), 0);
    return count;
}

/* "abc", an urgent "X", "def": all there. */
static struct pair marked_pair(bool in_line)
{
    struct pair pair = make_pair();
    int value = in_line;
    socklen_t length = sizeof value;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_OOBINLINE, &value, sizeof value), 0);
    value = -1;
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_OOBINLINE, &value, &length), 0);
    EQUAL(value, in_line);
    write_all(pair.far, "abc", 3);
    EQUAL(send(pair.far, "X", 1, MSG_OOB), 1);
    wait_for(pair.near, POLLPRI);
    write_all(pair.far, "def", 3);
    return pair;
}

static void expect_bytes(int fd, const char *expected)
{
    char buffer[16];
    ssize_t count;
    wait_for(fd, POLLIN);
    count = read(fd, buffer, sizeof buffer);
    EQUAL(count, (ssize_t)strlen(expected));
    CHECK(memcmp(buffer, expected, count) == 0);
}

STATEMENT(urgent_byte_comes_apart)
{
    struct pair pair = marked_pair(false);
    char byte = 0;
    EQUAL(readable(pair.near), 3);
    EQUAL(recv(pair.near, &byte, 1, MSG_OOB | MSG_PEEK), 1);
    EQUAL(byte, 'X');
    struct pollfd watched = { .fd = pair.near, .events = POLLPRI };
    EQUAL(poll(&watched, 1, 0), 1);
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    byte = 0;
    EQUAL(recvmsg(pair.near, &message, MSG_OOB), 1);
    EQUAL(byte, 'X');
    CHECK(message.msg_flags & MSG_OOB);
    EQUAL(poll(&watched, 1, 0), 0);
    FAILS(recv(pair.near, &byte, 1, MSG_OOB), EINVAL);
    EQUAL(at_mark(pair.near), 0);
    expect_bytes(pair.near, "abc");
    EQUAL(at_mark(pair.near), 1);
    char rest[3];
    read_all(pair.near, rest, 3);
    CHECK(memcmp(rest, "def", 3) == 0);
    EQUAL(at_mark(pair.near), 0);
    close_pair(&pair);
}

STATEMENT(urgent_byte_in_line)
{
    struct pair pair = marked_pair(true);
    char byte, rest[4];
    FAILS(recv(pair.near, &byte, 1, MSG_OOB), EINVAL);
    EQUAL(at_mark(pair.near), 0);
    expect_bytes(pair.near, "abc");
    EQUAL(at_mark(pair.near), 1);
    read_all(pair.near, rest, 4);
    CHECK(memcmp(rest, "Xdef", 4) == 0);
    EQUAL(at_mark(pair.near), 0);
    struct pollfd watched = { .fd = pair.near, .events = POLLPRI };
    EQUAL(poll(&watched, 1, 0), 0);
    close_pair(&pair);
}

STATEMENT(urgent_byte_that_is_read_past_is_lost)
{
    struct pair pair = marked_pair(false);
    char byte, buffer[6];
    read_all(pair.near, buffer, 6);
    CHECK(memcmp(buffer, "abcdef", 6) == 0);
    FAILS(recv(pair.near, &byte, 1, MSG_OOB), EINVAL);
    /* Waiting for all ends at the mark too. */
    write_all(pair.far, "gh", 2);
    EQUAL(send(pair.far, "Y", 1, MSG_OOB), 1);
    wait_for(pair.near, POLLPRI);
    write_all(pair.far, "ij", 2);
    EQUAL(recv(pair.near, buffer, 4, MSG_WAITALL | MSG_PEEK), 2);
    EQUAL(recv(pair.near, buffer, 4, MSG_WAITALL), 2);
    EQUAL(recv(pair.near, buffer, 2, MSG_WAITALL | MSG_PEEK), 2);
    CHECK(memcmp(buffer, "ij", 2) == 0);
    EQUAL(recv(pair.near, &byte, 1, MSG_OOB), 1);
    EQUAL(byte, 'Y');
    EQUAL(recv(pair.near, buffer, 2, MSG_WAITALL), 2);
    CHECK(memcmp(buffer, "ij", 2) == 0);
    close_pair(&pair);
}

STATEMENT(urgent_byte_alone_is_nothing_to_read)
{
    struct pair pair = make_pair();
    int set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN | EPOLLPRI };
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
    EQUAL(send(pair.far, "!", 1, MSG_OOB), 1);
    EQUAL(epoll_wait(set, &event, 1, 10 * 1000), 1);
    EQUAL(event.events, EPOLLPRI);
    struct pollfd watched = { .fd = pair.near, .events = POLLIN | POLLPRI };
    EQUAL(poll(&watched, 1, 0), 1);
    EQUAL(watched.revents, POLLPRI);
    fd_set readers, excepts;
    FD_ZERO(&readers);
    FD_ZERO(&excepts);
    FD_SET(pair.near, &readers);
    FD_SET(pair.near, &excepts);
    struct timeval patience = { 10, 0 };
    EQUAL(select(pair.near + 1, &readers, NULL, &excepts, &patience), 1);
    CHECK(FD_ISSET(pair.near, &excepts) && !FD_ISSET(pair.near, &readers));
    EQUAL(at_mark(pair.near), 1);
    char byte = 0;
    EQUAL(recv(pair.near, &byte, 1, MSG_OOB), 1);
    EQUAL(byte, '!');
    EQUAL(epoll_wait(set, &event, 1, 0), 0);
    FAILS(recv(pair.near, &byte, 1, MSG_DONTWAIT), EAGAIN);
    write_all(pair.far, "?", 1);
    expect_bytes(pair.near, "?");
    close(set);
    close_pair(&pair);
}

STATEMENT(urgent_byte_wakes_a_sleeping_select)
{
    struct pair pair = make_pair();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        usleep(50 * 1000);
        _exit(send(pair.far, "!", 1, MSG_OOB) != 1);
    }
    fd_set excepts;
    FD_ZERO(&excepts);
    FD_SET(pair.near, &excepts);
    struct timeval patience = { 10, 0 };
    EQUAL(select(pair.near + 1, NULL, NULL, &excepts, &patience), 1);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    close_pair(&pair);
}

STATEMENT(urgent_byte_is_the_last_of_a_send)
{
    struct pair pair = make_pair();
    EQUAL(send(pair.near, "uvw", 3, MSG_OOB), 3);
    wait_for(pair.far, POLLPRI);
    char byte = 0;
    EQUAL(recv(pair.far, &byte, 1, MSG_OOB), 1);
    EQUAL(byte, 'w');
    expect_bytes(pair.far, "uv");
    /* A later one takes the place of an earlier one, which is then like any other. */
    EQUAL(send(pair.near, "x", 1, MSG_OOB), 1);
    EQUAL(send(pair.near, "y", 1, MSG_OOB), 1);
    write_all(pair.near, "z", 1);
    char both[2];
    do
        wait_for(pair.far, POLLPRI);
    while (recv(pair.far, &byte, 1, MSG_OOB | MSG_PEEK) != 1 || byte != 'y');
    EQUAL(recv(pair.far, &byte, 1, MSG_OOB), 1);
    close(pair.near);
    ssize_t count, sum = 0;
    while ((count = read(pair.far, both, 1)) > 0)
        sum += count;
    EQUAL(count, 0);
    CHECK(sum == 1 || sum == 2);
    close(pair.far);
}
