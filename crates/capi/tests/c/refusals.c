// What bad input gets: the error that is documented.
#include <limits.h>
#include <unistd.h>

#include "check.h"

static void of_engines(void)
{
    int engine = mr_engine_new();
    CHECK(engine > 0);
    FAILS(mr_engine_set(engine, "colour", "blue"), EINVAL);
    CHECK(strstr(mr_error_text(), "colour: there is no such key"));
    FAILS(mr_engine_set(engine, "shards", "0"), EINVAL);
    CHECK(strstr(mr_error_text(), "shards: `0`"));
    FAILS(mr_engine_set(engine, NULL, "1"), EFAULT);
    FAILS(mr_engine_set(engine, "shards", NULL), EFAULT);
    FAILS(mr_engine_set(engine, "shards", (const char *)16), EFAULT);
    FAILS(mr_engine_set(engine, "shards", "\xff"), EILSEQ);
    FAILS(mr_engine_set(engine + 1000, "shards", "1"), EBADF);
    FAILS(mr_engine_read(engine, "/nonexistent/file"), ENOENT);
    FAILS(mr_engine_read(engine, NULL), EFAULT);
    char path[] = "/tmp/millrace-XXXXXX";
    int file = mkstemp(path);
    static const char text[] = "link packets\n\n# one more\nmtu = small\n";
    CHECK(file >= 0 && write(file, text, sizeof text - 1) == (ssize_t)sizeof text - 1 && close(file) == 0);
    FAILS(mr_engine_read(engine, path), EINVAL);
    CHECK(strstr(mr_error_text(), path) && strstr(mr_error_text(), ":4: mtu: `small`"));
    CHECK(unlink(path) == 0);
    FAILS(mr_stack_open(engine, 0), ENOTCONN);
    // A link without an address.
    FAILS(mr_engine_start(engine), EINVAL);
    CHECK(strstr(mr_error_text(), "no address"));
    CHECK(mr_engine_set(engine, "address", "10.0.0.1/24") == 0);
    CHECK(mr_engine_start(engine) == 0);
    FAILS(mr_engine_start(engine), EBUSY);
    FAILS(mr_engine_set(engine, "mtu", "1500"), EBUSY);
    FAILS(mr_stack_open(engine, 1), EINVAL);
    FAILS(mr_stack_open(engine, -1), EINVAL);
    int stack = mr_stack_open(engine, 0);
    CHECK(stack > 0);
    FAILS(mr_stack_open(engine, 0), EBUSY);
    FAILS(mr_stack_poll_at(stack, 1), EINVAL);
    FAILS(mr_stack_deadline(stack, NULL), EFAULT);
    CHECK(mr_stack_poll(stack) >= 0);
    // A socket in it outlives the engine, not the stack.
    CHECK(mr_engine_close(engine) == 0);
    FAILS(mr_engine_close(engine), EBADF);
    FAILS(mr_stack_open(engine, 0), EBADF);
    int fd = mr_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd > 0 && mr_stack_close(stack, 0) == 0);
    FAILS(mr_close(fd), EBADF);
    FAILS(mr_stack_close(stack, 0), EBADF);
    FAILS(mr_socket(AF_INET, SOCK_STREAM, 0), ENODEV);
    int engines[256];
    for (int at = 0; at < 256; at++)
        CHECK((engines[at] = mr_engine_new()) > 0);
    FAILS(mr_engine_new(), EMFILE);
    for (int at = 0; at < 256; at++)
        CHECK(mr_engine_close(engines[at]) == 0);
}

// Numbers that name nothing: never given, closed, and the kernel's.
static void of_descriptors(void)
{
    struct pair pair;
    char buffer[8];
    struct sockaddr_in address = at("10.0.0.1", 1);
    socklen_t len = sizeof address;
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    pair_open(&pair);
    int closed = mr_socket(AF_INET, SOCK_STREAM, 0), set = mr_epoll_create(0);
    CHECK(mr_close(closed) == 0);
    const int bad[] = {-1, 0, 1, 2, 1023, 4194303, closed, 2147483647, -2147483647 - 1};
    for (size_t at = 0; at < sizeof bad / sizeof *bad; at++) {
        struct iovec pieces[2] = {{buffer, 1}, {buffer, 1}};
        int fd = bad[at], number = 0;
        FAILS(mr_close(fd), EBADF);
        FAILS(mr_abort(fd), EBADF);
        FAILS(mr_bind(fd, (struct sockaddr *)&address, len), EBADF);
        FAILS(mr_listen(fd, 1), EBADF);
        FAILS(mr_accept(fd, NULL, NULL), EBADF);
        FAILS(mr_connect(fd, (struct sockaddr *)&address, len), EBADF);
        FAILS(mr_shutdown(fd, SHUT_RD), EBADF);
        FAILS(mr_getsockname(fd, (struct sockaddr *)&address, &len), EBADF);
        FAILS(mr_getpeername(fd, (struct sockaddr *)&address, &len), EBADF);
        FAILS(mr_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &number, sizeof number), EBADF);
        FAILS(mr_getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &number, &len), EBADF);
        FAILS(mr_fcntl(fd, 3, 0), EBADF);
        FAILS(mr_ioctl(fd, 0x541b, &number), EBADF);
        FAILS(mr_read(fd, buffer, 1), EBADF);
        FAILS(mr_write(fd, buffer, 1), EBADF);
        FAILS(mr_recv(fd, buffer, 1, 0), EBADF);
        FAILS(mr_send(fd, buffer, 1, 0), EBADF);
        FAILS(mr_recvfrom(fd, buffer, 1, 0, NULL, NULL), EBADF);
        FAILS(mr_sendto(fd, buffer, 1, 0, NULL, 0), EBADF);
        FAILS(mr_readv(fd, pieces, 1), EBADF);
        FAILS(mr_writev(fd, pieces, 1), EBADF);
        FAILS(mr_peek(fd, pieces), EBADF);
        FAILS(mr_consume(fd, 1), EBADF);
        FAILS(mr_reserve(fd, 1, pieces), EBADF);
        FAILS(mr_commit(fd, 1), EBADF);
        FAILS(mr_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EBADF);
        FAILS(mr_epoll_ctl(fd, EPOLL_CTL_ADD, set, &event), EBADF);
        FAILS(mr_epoll_wait(fd, &event, 1, 0), EBADF);
        FAILS(mr_stack_use(fd), EBADF);
        FAILS(mr_stack_poll(fd), EBADF);
        FAILS(mr_stack_close(fd, 0), EBADF);
        FAILS(mr_stack_descriptor(fd), EBADF);
    }
    pair_close(&pair);
}

static void of_arguments(void)
{
    struct pair pair;
    int ends[2];
    char buffer[8];
    struct sockaddr_in address = at("10.0.0.1", 1);
    socklen_t len = sizeof address;
    pair_open(&pair);
    connected(&pair, ends);
    FAILS(mr_socket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(mr_socket(AF_INET, SOCK_RAW, 0), ESOCKTNOSUPPORT);
    FAILS(mr_socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(mr_socket(AF_INET, SOCK_STREAM | 0x100000, 0), EINVAL);
    FAILS(mr_read(ends[0], NULL, 1), EFAULT);
    FAILS(mr_read(ends[0], (void *)8, 1), EFAULT);
    FAILS(mr_read(ends[0], buffer, (size_t)SSIZE_MAX + 1), EINVAL);
    FAILS(mr_read(ends[0], buffer, (size_t)-1), EINVAL);
    FAILS(mr_write(ends[0], NULL, 1), EFAULT);
    FAILS(mr_write(ends[0], buffer, (size_t)-1), EINVAL);
    // A pointer so high that the bytes would begin again at 0.
    FAILS(mr_write(ends[0], (const void *)((uintptr_t)-4), 8), EFAULT);
    CHECK(mr_read(ends[0], NULL, 0) == 0 && mr_write(ends[0], NULL, 0) == 0);
    FAILS(mr_recv(ends[0], buffer, 1, MSG_ERRQUEUE), EOPNOTSUPP);
    FAILS(mr_recv(ends[0], buffer, 1, MSG_TRUNC), EOPNOTSUPP);
    FAILS(mr_send(ends[0], buffer, 1, MSG_OOB), EOPNOTSUPP);
    FAILS(mr_shutdown(ends[0], 3), EINVAL);
    FAILS(mr_accept(ends[0], NULL, NULL), EINVAL);
    FAILS(mr_accept4(ends[0], NULL, NULL, 1), EINVAL);
    FAILS(mr_listen(ends[0], 1), EINVAL);
    FAILS(mr_getsockname(ends[0], NULL, &len), EFAULT);
    FAILS(mr_getsockname(ends[0], (struct sockaddr *)&address, NULL), EFAULT);
    len = (socklen_t)-1;
    FAILS(mr_getsockname(ends[0], (struct sockaddr *)&address, &len), EINVAL);
    len = 4;
    memset(&address, 0x55, sizeof address);
    CHECK(mr_getsockname(ends[0], (struct sockaddr *)&address, &len) == 0 && len == 16);
    CHECK(address.sin_addr.s_addr == 0x55555555);
    int fd = mr_socket(AF_INET, SOCK_STREAM, 0);
    address = at("10.0.0.1", 1);
    FAILS(mr_bind(fd, NULL, sizeof address), EFAULT);
    FAILS(mr_bind(fd, NULL, 0), EINVAL);
    FAILS(mr_connect(fd, NULL, 0), EINVAL);
    FAILS(mr_bind(fd, (struct sockaddr *)&address, 4), EINVAL);
    FAILS(mr_bind(fd, (struct sockaddr *)&address, 1000), EINVAL);
    address.sin_family = AF_INET6;
    FAILS(mr_bind(fd, (struct sockaddr *)&address, sizeof address), EAFNOSUPPORT);
    address = at("192.0.2.1", 1);
    FAILS(mr_bind(fd, (struct sockaddr *)&address, sizeof address), EADDRNOTAVAIL);
    address.sin_port = 0;
    FAILS(mr_connect(fd, (struct sockaddr *)&address, sizeof address), ENETUNREACH);
    FAILS(mr_read(fd, buffer, 1), ENOTCONN);
    FAILS(mr_write(fd, buffer, 1), EPIPE);
    FAILS(mr_ioctl(fd, 0x541b, NULL), EFAULT);
    FAILS(mr_ioctl(fd, 1, NULL), EINVAL);
    // A call that would wait, where time is the caller's.
    address = at("10.0.0.1", 99);
    CHECK(mr_bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && mr_listen(fd, 1) == 0);
    FAILS(mr_accept(fd, NULL, NULL), EAGAIN);

    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    int set = mr_epoll_create(0), other = mr_epoll_create(0);
    FAILS(mr_epoll_create(1), EINVAL);
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_ADD, other, &event), EINVAL);
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
    FAILS(mr_epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event), EINVAL);
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event), EINVAL);
    FAILS(mr_epoll_ctl(set, 77, fd, &event), EINVAL);
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL), EFAULT);
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), ENOENT);
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), ENOENT);
    CHECK(mr_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EEXIST);
    event.events = 1u << 28;
    FAILS(mr_epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), EINVAL);
    FAILS(mr_epoll_wait(set, &event, 0, 0), EINVAL);
    FAILS(mr_epoll_wait(set, &event, -1, 0), EINVAL);
    FAILS(mr_epoll_wait(set, NULL, 1, 0), EFAULT);
    FAILS(mr_epoll_wait(fd, &event, 1, 0), EINVAL);
    FAILS(mr_read(set, buffer, 1), ENOTSOCK);
    FAILS(mr_write(set, buffer, 1), ENOTSOCK);
    CHECK(mr_close(other) == 0 && mr_close(set) == 0);
    FAILS(mr_stack_deadline(pair.stacks[0], (uint64_t *)(buffer + 1)), EFAULT);
    pair_close(&pair);
}

void test_refusals(void)
{
    of_engines();
    of_descriptors();
    of_arguments();
}
