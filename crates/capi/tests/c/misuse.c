// Every function of millrace.h, one row or several each, misused in every way that its arguments allow: numbers that name nothing, are closed, another thread's or the kernel's;
// pointers that point nowhere; lengths of 0, SSIZE_MAX and more; before there is a stack, and after. A function without a row fails the tests.
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"

#define MOST ((size_t)SSIZE_MAX)

// What a row's number is to be.
enum number { NOTHING, ENGINE, STACK, STREAM, LISTENER, FRESH, SET, PIPE, KINDS };
// What its pointer is: none, bytes (also with 0 as what may be left out), or something aligned.
enum pointer { NO, BYTES, CHOICE, ALIGNED };

struct args {
    int n;
    void *p;
    size_t len;
};

static struct sockaddr_in address;
static socklen_t room;
static union {
    char bytes[512];
    uint64_t align;
} memory;
static struct iovec pieces[2];
static struct msghdr message;
static int one = 1;
// What there is of each kind.
static int good[KINDS];

static int closed(int fd)
{
    return fd < 0 ? fd : mr_close(fd);
}

static struct iovec *piece(const struct args *a)
{
    pieces[0].iov_base = a->p;
    pieces[0].iov_len = a->len;
    pieces[1].iov_base = memory.bytes;
    pieces[1].iov_len = 0;
    return pieces;
}

static struct msghdr *carrying(const struct args *a)
{
    memset(&message, 0, sizeof message);
    message.msg_iov = piece(a);
    message.msg_iovlen = 1;
    return &message;
}

static struct msghdr *named(const struct args *a)
{
    struct args none = {0, memory.bytes, 1};
    carrying(&none)->msg_name = a->p;
    message.msg_namelen = sizeof address;
    return &message;
}

static struct sockaddr *to(const struct args *a)
{
    return (struct sockaddr *)a->p;
}

static struct epoll_event *events(const struct args *a)
{
    return (struct epoll_event *)a->p;
}

// Function, how it is called, what its number is, what it says when the thread has no stack, what its pointer is, and what it says of lengths: none of them (-1), 0 and
// SSIZE_MAX. Beyond that all say EINVAL.
#define ROWS(ROW)                                                                                                          \
    ROW(mr_version, mr_version() == NULL, NOTHING, 0, NO, -1, 0)                                                           \
    ROW(mr_error_text, mr_error_text() == NULL, NOTHING, 0, NO, -1, 0)                                                     \
    ROW(mr_engine_new, mr_engine_close(mr_engine_new()), NOTHING, 0, NO, -1, 0)                                            \
    ROW(mr_engine_set, mr_engine_set(a->n, (char *)a->p, "1"), ENGINE, EBADF, BYTES, -1, 0)                                \
    ROW(mr_engine_set, mr_engine_set(a->n, "shards", (char *)a->p), ENGINE, EBADF, BYTES, -1, 0)                           \
    ROW(mr_engine_read, mr_engine_read(a->n, a->p == memory.bytes ? "/dev/null" : (char *)a->p), ENGINE, EBADF, BYTES, -1, 0) \
    ROW(mr_engine_start, mr_engine_start(a->n), ENGINE, EBADF, NO, -1, 0)                                                  \
    ROW(mr_engine_close, mr_engine_close(a->n), ENGINE, EBADF, NO, -1, 0)                                                  \
    ROW(mr_stack_open, mr_stack_open(a->n, 0), ENGINE, EBADF, NO, -1, 0)                                                   \
    ROW(mr_stack_use, mr_stack_use(a->n), STACK, EBADF, NO, -1, 0)                                                         \
    ROW(mr_stack_close, mr_stack_close(a->n, 0), STACK, EBADF, NO, -1, 0)                                                  \
    ROW(mr_stack_poll, mr_stack_poll(a->n), STACK, EBADF, NO, -1, 0)                                                       \
    ROW(mr_stack_poll_at, mr_stack_poll_at(a->n, 1), STACK, EBADF, NO, -1, 0)                                              \
    ROW(mr_stack_deadline, mr_stack_deadline(a->n, (uint64_t *)a->p), STACK, EBADF, ALIGNED, -1, 0)                        \
    ROW(mr_stack_descriptor, mr_stack_descriptor(a->n), STACK, EBADF, NO, -1, 0)                                           \
    ROW(mr_stack_input, mr_stack_input(a->n, a->p, a->len), STACK, EBADF, BYTES, EINVAL, EFAULT)                           \
    ROW(mr_stack_output, mr_stack_output(a->n, a->p, a->len), STACK, EBADF, BYTES, 0, EFAULT)                              \
    ROW(mr_socket, closed(mr_socket(AF_INET, SOCK_STREAM, 0)), NOTHING, ENODEV, NO, -1, 0)                               \
    ROW(mr_pipe, mr_pipe((int *)a->p, 0), NOTHING, ENODEV, ALIGNED, -1, 0)                                                 \
    ROW(mr_close, mr_close(a->n), FRESH, EBADF, NO, -1, 0)                                                                 \
    ROW(mr_abort, mr_abort(a->n), FRESH, EBADF, NO, -1, 0)                                                                 \
    ROW(mr_bind, mr_bind(a->n, to(a), (socklen_t)a->len), FRESH, EBADF, BYTES, EINVAL, EINVAL)                             \
    ROW(mr_listen, mr_listen(a->n, 1), FRESH, EBADF, NO, -1, 0)                                                            \
    ROW(mr_accept, mr_accept(a->n, to(a), &room), LISTENER, EBADF, CHOICE, -1, 0)                                          \
    ROW(mr_accept, mr_accept(a->n, (struct sockaddr *)&address, (socklen_t *)a->p), LISTENER, EBADF, ALIGNED, -1, 0)       \
    ROW(mr_accept4, mr_accept4(a->n, to(a), &room, 0), LISTENER, EBADF, CHOICE, -1, 0)                                     \
    ROW(mr_accept4, mr_accept4(a->n, (struct sockaddr *)&address, (socklen_t *)a->p, 0), LISTENER, EBADF, ALIGNED, -1, 0)  \
    ROW(mr_connect, mr_connect(a->n, to(a), (socklen_t)a->len), FRESH, EBADF, BYTES, EINVAL, EINVAL)                       \
    ROW(mr_shutdown, mr_shutdown(a->n, SHUT_RDWR), LISTENER, EBADF, NO, -1, 0)                                             \
    ROW(mr_getsockname, mr_getsockname(a->n, to(a), &room), STREAM, EBADF, BYTES, -1, 0)                                   \
    ROW(mr_getsockname, mr_getsockname(a->n, (struct sockaddr *)&address, (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0) \
    ROW(mr_getpeername, mr_getpeername(a->n, to(a), &room), STREAM, EBADF, BYTES, -1, 0)                                   \
    ROW(mr_getpeername, mr_getpeername(a->n, (struct sockaddr *)&address, (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0) \
    ROW(mr_setsockopt, mr_setsockopt(a->n, SOL_SOCKET, SO_KEEPALIVE, a->p, (socklen_t)a->len), STREAM, EBADF, BYTES, EINVAL, EINVAL) \
    ROW(mr_getsockopt, mr_getsockopt(a->n, SOL_SOCKET, SO_KEEPALIVE, a->p, &room), STREAM, EBADF, BYTES, -1, 0)            \
    ROW(mr_getsockopt, mr_getsockopt(a->n, SOL_SOCKET, SO_KEEPALIVE, &one, (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0) \
    ROW(mr_fcntl, mr_fcntl(a->n, 3, 0), STREAM, EBADF, NO, -1, 0)                                                          \
    ROW(mr_ioctl, mr_ioctl(a->n, 0x541b, (int *)a->p), STREAM, EBADF, ALIGNED, -1, 0)                                      \
    ROW(mr_read, mr_read(a->n, a->p, a->len), STREAM, EBADF, BYTES, 0, EFAULT)                                             \
    ROW(mr_read, mr_read(a->n, a->p, a->len), PIPE, EBADF, BYTES, 0, EFAULT)                                               \
    ROW(mr_write, mr_write(a->n, a->p, a->len), STREAM, EBADF, BYTES, 0, EFAULT)                                           \
    ROW(mr_recv, mr_recv(a->n, a->p, a->len, 0), STREAM, EBADF, BYTES, 0, EFAULT)                                          \
    ROW(mr_send, mr_send(a->n, a->p, a->len, 0), STREAM, EBADF, BYTES, 0, EFAULT)                                          \
    ROW(mr_recvfrom, mr_recvfrom(a->n, a->p, a->len, 0, NULL, NULL), STREAM, EBADF, BYTES, 0, EFAULT)                      \
    ROW(mr_recvfrom, mr_recvfrom(a->n, &one, 1, 0, to(a), &room), STREAM, EBADF, CHOICE, -1, 0)                            \
    ROW(mr_recvfrom, mr_recvfrom(a->n, &one, 1, 0, (struct sockaddr *)&address, (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0) \
    ROW(mr_sendto, mr_sendto(a->n, a->p, a->len, 0, NULL, 0), STREAM, EBADF, BYTES, 0, EFAULT)                             \
    ROW(mr_sendto, mr_sendto(a->n, &one, 1, 0, to(a), sizeof address), STREAM, EBADF, CHOICE, -1, 0)                       \
    ROW(mr_readv, mr_readv(a->n, piece(a), 2), STREAM, EBADF, BYTES, 0, EFAULT)                                            \
    ROW(mr_readv, mr_readv(a->n, (struct iovec *)a->p, 2), STREAM, EBADF, ALIGNED, -1, 0)                                  \
    ROW(mr_writev, mr_writev(a->n, piece(a), 2), STREAM, EBADF, BYTES, 0, EFAULT)                                          \
    ROW(mr_writev, mr_writev(a->n, (struct iovec *)a->p, 2), STREAM, EBADF, ALIGNED, -1, 0)                                \
    ROW(mr_recvmsg, mr_recvmsg(a->n, carrying(a), 0), STREAM, EBADF, BYTES, 0, EFAULT)                                     \
    ROW(mr_recvmsg, mr_recvmsg(a->n, named(a), 0), STREAM, EBADF, CHOICE, -1, 0)                                           \
    ROW(mr_recvmsg, mr_recvmsg(a->n, (struct msghdr *)a->p, 0), STREAM, EBADF, ALIGNED, -1, 0)                             \
    ROW(mr_sendmsg, mr_sendmsg(a->n, carrying(a), 0), STREAM, EBADF, BYTES, 0, EFAULT)                                     \
    ROW(mr_sendmsg, mr_sendmsg(a->n, named(a), 0), STREAM, EBADF, CHOICE, -1, 0)                                           \
    ROW(mr_sendmsg, mr_sendmsg(a->n, (struct msghdr *)a->p, 0), STREAM, EBADF, ALIGNED, -1, 0)                             \
    ROW(mr_peek, mr_peek(a->n, (struct iovec *)a->p), STREAM, EBADF, ALIGNED, -1, 0)                                       \
    ROW(mr_consume, mr_consume(a->n, a->len), STREAM, EBADF, NO, 0, EINVAL)                                                \
    ROW(mr_reserve, mr_reserve(a->n, 1, (struct iovec *)a->p), STREAM, EBADF, ALIGNED, -1, 0)                              \
    ROW(mr_reserve, mr_reserve(a->n, a->len, pieces), STREAM, EBADF, NO, 0, 0)                                             \
    ROW(mr_commit, mr_commit(a->n, a->len), STREAM, EBADF, NO, EINVAL, EINVAL)                                             \
    ROW(mr_epoll_create, closed(mr_epoll_create(0)), NOTHING, ENODEV, NO, -1, 0)                                         \
    ROW(mr_epoll_ctl, mr_epoll_ctl(good[SET], EPOLL_CTL_ADD, a->n, events(a)), FRESH, EBADF, BYTES, -1, 0)                 \
    ROW(mr_epoll_ctl, mr_epoll_ctl(a->n, EPOLL_CTL_ADD, good[FRESH], events(a)), SET, EBADF, BYTES, -1, 0)                 \
    ROW(mr_epoll_wait, mr_epoll_wait(a->n, events(a), 1, 0), SET, EBADF, BYTES, -1, 0)                                     \
    ROW(mr_poll, mr_poll((struct pollfd *)a->p, (nfds_t)a->len, 0), NOTHING, 0, ALIGNED, 0, EINVAL)

struct row {
    const char *name;
    enum number number;
    int without;
    enum pointer pointer;
    int zero, most;
};

#define CASE(function, call, ...)                                                                      \
    if (row == at++)                                                                                   \
        return (long)(call);
static long use(int row, const struct args *a)
{
    int at = 0;
    ROWS(CASE)
    return 0;
}

#define ENTRY(function, call, number, without, pointer, zero, most) {#function, number, without, pointer, zero, most},
static const struct row rows[] = {ROWS(ENTRY)};
enum { ROWS_LEN = sizeof rows / sizeof *rows };

// Misuses a row: it says this number; 0 is for what is no misuse.
static void misuse(int row, int n, void *p, size_t len, int number)
{
    struct args args = {n, p, len};
    memset(&memory, 0, sizeof memory);
    room = sizeof address;
    errno = 0;
    long result = use(row, &args);
    if (number ? result == -1 && errno == number : result >= 0)
        return;
    fprintf(stderr, "%s(%d, %p, %zu): %ld, errno %d in place of %d\n", rows[row].name, n, p, len, result, errno, number);
    exit(1);
}

// All rows with these numbers, none of which this thread has.
static void without(const int numbers[KINDS], int is_engine_there)
{
    for (int row = 0; row < ROWS_LEN; row++) {
        if (rows[row].number != ENGINE || !is_engine_there)
            misuse(row, numbers[rows[row].number], memory.bytes, 16, rows[row].without);
    }
}

static void numbers(void)
{
    int kernels = socket(AF_INET, SOCK_STREAM, 0), gone = mr_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(kernels >= 0 && gone > 0 && mr_close(gone) == 0);
    const int bad[] = {-1, 0, kernels, gone, 4194303, INT_MAX, INT_MIN};
    for (int row = 0; row < ROWS_LEN; row++) {
        for (size_t at = 0; at < sizeof bad / sizeof *bad && rows[row].number != NOTHING; at++)
            misuse(row, bad[at], memory.bytes, 16, EBADF);
    }
    CHECK(close(kernels) == 0);
}

static void pointers(void)
{
    void *const wild[] = {
        (void *)(uintptr_t)8,
        (void *)(uintptr_t)4095,
        (void *)(UINTPTR_MAX - 1),
#ifdef __x86_64__
        // The kernel's, and one that no processor of the kind has.
        (void *)(uintptr_t)0xffff800000001000,
        (void *)(uintptr_t)0x5555555555555550,
#endif
    };
    for (int row = 0; row < ROWS_LEN; row++) {
        int n = good[rows[row].number];
        if (rows[row].pointer == NO)
            continue;
        if (rows[row].pointer != CHOICE)
            misuse(row, n, NULL, 16, EFAULT);
        for (size_t at = 0; at < sizeof wild / sizeof *wild; at++)
            misuse(row, n, wild[at], 16, EFAULT);
        if (rows[row].pointer == ALIGNED)
            misuse(row, n, memory.bytes + 1, 16, EFAULT);
    }
}

static void lengths(void)
{
    for (int row = 0; row < ROWS_LEN; row++) {
        int n = good[rows[row].number];
        if (rows[row].zero < 0)
            continue;
        misuse(row, n, memory.bytes, 0, rows[row].zero);
        if (rows[row].zero == 0)
            misuse(row, n, NULL, 0, 0);
        misuse(row, n, memory.bytes, MOST, rows[row].most);
        misuse(row, n, memory.bytes, MOST + 1, EINVAL);
        misuse(row, n, memory.bytes, SIZE_MAX, EINVAL);
    }
}

static void *elsewhere(void *argument)
{
    (void)argument;
    without(good, 1);
    // A stack of one's own makes nothing of others' one's own.
    int engine = mr_engine_new();
    CHECK(mr_engine_start(engine) == 0);
    int stack = mr_stack_open(engine, 0);
    CHECK(stack > 0 && mr_engine_close(engine) == 0);
    for (int row = 0; row < ROWS_LEN; row++) {
        if (rows[row].number != NOTHING && rows[row].number != ENGINE)
            misuse(row, good[rows[row].number], memory.bytes, 16, EBADF);
    }
    CHECK(mr_stack_close(stack, 0) == 0);
    return NULL;
}

void test_misuse(void)
{
    struct pair pair;
    int ends[2], pipe[2];
    pthread_t thread;
    address = at("10.0.0.1", 7);
    without(good, 0);
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_stack_use(pair.stacks[0]) == 0 && mr_pipe(pipe, 04000) == 0);
    good[STACK] = pair.stacks[0];
    good[STREAM] = ends[0];
    good[PIPE] = pipe[0];
    good[FRESH] = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    good[LISTENER] = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    good[SET] = mr_epoll_create(0);
    CHECK(mr_bind(good[LISTENER], (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(mr_listen(good[LISTENER], 1) == 0);
    good[ENGINE] = mr_engine_new();
    CHECK(mr_engine_start(good[ENGINE]) == 0);
    run(&pair, 1);
    numbers();
    pointers();
    lengths();
    CHECK(pthread_create(&thread, NULL, elsewhere, NULL) == 0 && pthread_join(thread, NULL) == 0);
    // All that was alive still is.
    CHECK(mr_write(ends[0], "alive", 5) == 5);
    run(&pair, 1);
    CHECK(mr_read(ends[1], memory.bytes, 8) == 5);
    CHECK(mr_engine_close(good[ENGINE]) == 0);
    pair_close(&pair);
    without(good, 0);
}
