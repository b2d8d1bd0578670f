// Waiting for many: level, edge, once; sockets and pipes.
#include <fcntl.h>

#include "check.h"

// What has happened: the events of the one that `data` names, 0 for nothing. Nobody else may have anything.
static uint32_t happened(int set, uint64_t data)
{
    struct epoll_event events[8];
    int count = mr_epoll_wait(set, events, 8, 0);
    CHECK(count == 0 || (count == 1 && events[0].data.u64 == data));
    return count ? events[0].events : 0;
}

static void control(int set, int op, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = events;
    event.data.u64 = data;
    CHECK(mr_epoll_ctl(set, op, fd, &event) == 0);
}

static void levels_and_edges(void)
{
    struct pair pair;
    int ends[2];
    char buffer[100000];
    memset(buffer, 'x', sizeof buffer);
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_stack_use(pair.stacks[1]) == 0);
    int level = mr_epoll_create(0), edge = mr_epoll_create(EPOLL_CLOEXEC), once = mr_epoll_create(0);
    CHECK(level > 0 && edge > 0 && once > 0);
    control(level, EPOLL_CTL_ADD, ends[1], EPOLLIN, 1);
    control(edge, EPOLL_CTL_ADD, ends[1], EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2);
    control(once, EPOLL_CTL_ADD, ends[1], EPOLLIN | EPOLLONESHOT, 3);
    // What is there already is told once, edge or not.
    CHECK(happened(edge, 2) == EPOLLOUT && happened(edge, 2) == 0);
    CHECK(happened(level, 1) == 0 && happened(once, 3) == 0);
    CHECK(mr_write(ends[0], "abc", 3) == 3);
    run(&pair, 1);
    CHECK(happened(level, 1) == EPOLLIN && happened(level, 1) == EPOLLIN);
    CHECK(happened(edge, 2) == (EPOLLIN | EPOLLOUT) && happened(edge, 2) == 0);
    CHECK(happened(once, 3) == EPOLLIN && happened(once, 3) == 0);
    // Part is read: no edge. More comes: an edge.
    CHECK(mr_read(ends[1], buffer, 1) == 1);
    run(&pair, 1);
    CHECK(happened(edge, 2) == 0 && happened(level, 1) == EPOLLIN);
    CHECK(mr_write(ends[0], "def", 3) == 3);
    run(&pair, 1);
    CHECK(happened(edge, 2) == (EPOLLIN | EPOLLOUT));
    CHECK(happened(once, 3) == 0);
    control(once, EPOLL_CTL_MOD, ends[1], EPOLLIN | EPOLLONESHOT, 4);
    CHECK(happened(once, 4) == EPOLLIN && happened(once, 4) == 0);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 5);
    CHECK(happened(level, 1) == 0);
    // Acknowledgements are no edge while there was room all the time.
    CHECK(mr_write(ends[1], "x", 1) == 1);
    run(&pair, 100);
    CHECK(happened(edge, 2) == 0);
    // Room after a write that had to wait is one.
    while (mr_write(ends[1], buffer, sizeof buffer) > 0)
        ;
    CHECK(errno == EAGAIN && happened(edge, 2) == 0);
    for (int round = 0; round < 1000 && !happened(edge, 2); round++) {
        run(&pair, 1);
        while (mr_read(ends[0], buffer, sizeof buffer) > 0)
            ;
    }
    memset(buffer, 'x', sizeof buffer);
    CHECK(mr_write(ends[1], buffer, 1) == 1);
    // The end.
    CHECK(mr_shutdown(ends[0], SHUT_WR) == 0);
    run(&pair, 1);
    CHECK(happened(edge, 2) & EPOLLRDHUP);
    CHECK(happened(level, 1) == EPOLLIN);
    control(level, EPOLL_CTL_DEL, ends[1], 0, 0);
    CHECK(happened(level, 1) == 0);
    CHECK(mr_close(ends[1]) == 0 && happened(edge, 2) == 0);
    pair_close(&pair);
}

// Who waits to read is told of the end, though bytes that have been read came before it.
static void the_end_is_read(uint32_t how)
{
    struct pair pair;
    int ends[2];
    char buffer[8];
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_stack_use(pair.stacks[1]) == 0);
    int set = mr_epoll_create(0);
    control(set, EPOLL_CTL_ADD, ends[1], EPOLLIN | how, 1);
    CHECK(mr_write(ends[0], "abc", 3) == 3);
    run(&pair, 1);
    CHECK(happened(set, 1) == EPOLLIN);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 3);
    CHECK(happened(set, 1) == 0);
    CHECK(mr_shutdown(ends[0], SHUT_WR) == 0);
    run(&pair, 1);
    CHECK(happened(set, 1) == EPOLLIN);
    CHECK(happened(set, 1) == (how & EPOLLET ? 0 : (uint32_t)EPOLLIN));
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 0);
    pair_close(&pair);
}

// Who waits to write is told of room, though nobody was refused it.
static void room_comes_again(void)
{
    struct pair pair;
    int ends[2];
    static char buffer[1 << 20];
    struct iovec pieces[2];
    pair_open(&pair);
    connected(&pair, ends);
    int set = mr_epoll_create(0);
    control(set, EPOLL_CTL_ADD, ends[0], EPOLLOUT, 1);
    do {
        ssize_t room = mr_reserve(ends[0], 4096, pieces);
        CHECK(room > 0 && mr_commit(ends[0], (size_t)room) == room);
    } while (happened(set, 1) == EPOLLOUT);
    for (int round = 0; round < 1000 && !happened(set, 1); round++) {
        run(&pair, 1);
        while (mr_read(ends[1], buffer, sizeof buffer) > 0)
            ;
    }
    CHECK(happened(set, 1) == EPOLLOUT);
    pair_close(&pair);
}

static void many(void)
{
    struct pair pair;
    struct sockaddr_in server = at("10.0.0.2", 80);
    struct epoll_event events[3];
    enum { COUNT = 40 };
    int clients[COUNT], seen = 0, accepted = 0;
    pair_open(&pair);
    CHECK(mr_stack_use(pair.stacks[1]) == 0);
    int set = mr_epoll_create(0), listener = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(mr_bind(listener, (struct sockaddr *)&server, sizeof server) == 0 && mr_listen(listener, 100) == 0);
    control(set, EPOLL_CTL_ADD, listener, EPOLLIN | EPOLLET, (uint64_t)listener);
    CHECK(mr_stack_use(pair.stacks[0]) == 0);
    int outgoing = mr_epoll_create(0);
    for (int at = 0; at < COUNT; at++) {
        clients[at] = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        control(outgoing, EPOLL_CTL_ADD, clients[at], EPOLLOUT | EPOLLONESHOT, (uint64_t)clients[at]);
        FAILS(mr_connect(clients[at], (struct sockaddr *)&server, sizeof server), EINPROGRESS);
    }
    // A socket that was never connected hangs up, as on Linux; these connect.
    run(&pair, 1);
    CHECK(mr_epoll_wait(set, events, 3, 0) == 1 && events[0].data.u64 == (uint64_t)listener);
    int fd;
    while ((fd = mr_accept(listener, NULL, NULL)) > 0) {
        control(set, EPOLL_CTL_ADD, fd, EPOLLIN, (uint64_t)fd);
        accepted++;
    }
    CHECK(accepted == COUNT);
    for (int count; (count = mr_epoll_wait(outgoing, events, 3, 0)) > 0;)
        for (int at = 0; at < count; at++) {
            CHECK(mr_write((int)events[at].data.u64, "x", 1) == 1);
            seen++;
        }
    CHECK(seen == COUNT);
    run(&pair, 1);
    // All are served, three at a time: those who were told stand behind those who were not.
    char buffer[4];
    for (seen = 0; seen < COUNT;) {
        int count = mr_epoll_wait(set, events, 3, 0);
        CHECK(count > 0 && count <= 3);
        for (int at = 0; at < count; at++, seen++) {
            CHECK(mr_read((int)events[at].data.u64, buffer, 4) == 1);
            CHECK(mr_close((int)events[at].data.u64) == 0);
        }
    }
    CHECK(mr_epoll_wait(set, events, 3, 0) == 0);
    CHECK(mr_close(set) == 0);
    pair_close(&pair);
}

static void pipes(void)
{
    struct pair pair;
    int ends[2], other[2];
    char buffer[70000];
    memset(buffer, 'p', sizeof buffer);
    pair_open(&pair);
    CHECK(mr_pipe(ends, O_NONBLOCK) == 0 && mr_pipe(other, 0) == 0);
    int set = mr_epoll_create(0);
    control(set, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLET, 7);
    FAILS(mr_read(ends[0], buffer, 1), EAGAIN);
    FAILS(mr_read(other[0], buffer, 1), EDEADLK);
    FAILS(mr_read(ends[1], buffer, 1), EBADF);
    FAILS(mr_write(ends[0], buffer, 1), EBADF);
    CHECK(happened(set, 7) == 0);
    CHECK(mr_write(ends[1], "abc", 3) == 3);
    CHECK(happened(set, 7) == EPOLLIN && happened(set, 7) == 0);
    struct iovec pieces[2] = {{buffer, 2}, {buffer + 10, 10}};
    CHECK(mr_readv(ends[0], pieces, 2) == 2);
    CHECK(mr_read(ends[0], buffer, 10) == 1);
    CHECK(mr_write(ends[1], buffer, sizeof buffer) == 65536);
    FAILS(mr_write(ends[1], buffer, 1), EAGAIN);
    FAILS(mr_listen(ends[0], 1), ENOTSOCK);
    FAILS(mr_recv(ends[0], buffer, 1, 0), ENOTSOCK);
    FAILS(mr_send(ends[1], buffer, 1, 0), ENOTSOCK);
    FAILS(mr_recvfrom(ends[0], buffer, 1, 0, NULL, NULL), ENOTSOCK);
    FAILS(mr_sendto(ends[1], buffer, 1, 0, NULL, 0), ENOTSOCK);
    CHECK(mr_close(ends[1]) == 0);
    CHECK(happened(set, 7) & EPOLLHUP);
    CHECK(mr_read(ends[0], buffer, sizeof buffer) == 65536 && mr_read(ends[0], buffer, 1) == 0);
    CHECK(mr_close(other[0]) == 0);
    FAILS(mr_write(other[1], "x", 1), EPIPE);
    FAILS(mr_pipe(NULL, 0), EFAULT);
    FAILS(mr_pipe(ends, O_APPEND), EINVAL);
    pair_close(&pair);
}

void test_events(void)
{
    levels_and_edges();
    the_end_is_read(0);
    the_end_is_read(EPOLLET);
    room_comes_again();
    many();
    pipes();
}
