// Every function of mtcp_api.h and mtcp_epoll.h, one row or several each, misused in every way that its arguments allow: contexts that are none, are destroyed or another
// thread's; sockets that are none or closed; pointers that point nowhere; lengths of 0, SSIZE_MAX and more; before mtcp_init, and after mtcp_destroy. A function without a row
// fails the tests.
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "mtcp_api.h"
#include "mtcp_epoll.h"

#include "misuse.h"

#define MOST ((size_t)SSIZE_MAX)

// What a row takes: nothing of a context, a context, or something in it.
enum thing { NONE, CONTEXT, STREAM, FRESH, SET, THINGS };
// What its pointer is: none, bytes (also with 0 as what may be left out), or something aligned.
enum pointer { NO, BYTES, CHOICE, ALIGNED };

struct args {
    mctx_t c;
    int n;
    void *p;
    size_t len;
};

static int good[THINGS];
static int one = 1;
static socklen_t room;
static struct sockaddr_in address;
static struct iovec pieces[1];
static union {
    char bytes[512];
    uint64_t align;
} memory;

static struct iovec *piece(const struct args *a)
{
    pieces[0].iov_base = a->p;
    pieces[0].iov_len = a->len;
    return pieces;
}

static struct sockaddr *to(const struct args *a)
{
    return (struct sockaddr *)a->p;
}

static struct mtcp_epoll_event *event(const struct args *a)
{
    return (struct mtcp_epoll_event *)a->p;
}

static int closed(mctx_t c, int n)
{
    return n < 0 ? n : mtcp_close(c, n);
}

static int destroyed(mctx_t c)
{
    mtcp_destroy_context(c);
    return errno ? -1 : 0;
}

static int created(int cpu)
{
    return mtcp_create_context(cpu) ? 0 : -1;
}

static int registered(int number)
{
    return mtcp_register_signal(number, SIG_DFL) == SIG_ERR ? -1 : 0;
}

static struct sockaddr *name(void)
{
    return (struct sockaddr *)&address;
}

// Function, how it is called, what it takes, what it says without that (EACCES where a context is wanted), what its pointer is, and what it says of lengths: none of
// them (-1), 0 and SSIZE_MAX. Beyond that all say EINVAL.
#define ROWS(ROW)                                                                                                  \
    ROW(mtcp_init, mtcp_init((char *)a->p), NONE, EBUSY, BYTES, -1, 0)                                             \
    ROW(mtcp_getconf, mtcp_getconf((struct mtcp_conf *)a->p), NONE, 0, ALIGNED, -1, 0)                             \
    ROW(mtcp_setconf, mtcp_setconf((struct mtcp_conf *)a->p), NONE, EBUSY, ALIGNED, -1, 0)                         \
    ROW(mtcp_core_affinitize, mtcp_core_affinitize(-1), NONE, EINVAL, NO, -1, 0)                                   \
    ROW(mtcp_create_context, created(64), NONE, EINVAL, NO, -1, 0)                                                 \
    ROW(mtcp_create_context, created(0), NONE, EBUSY, NO, -1, 0)                                                   \
    ROW(mtcp_register_signal, registered(-1), NONE, EINVAL, NO, -1, 0)                                             \
    ROW(EventToString, EventToString(77) == NULL, NONE, 0, NO, -1, 0)                                              \
    ROW(mtcp_destroy_context, destroyed(a->c), CONTEXT, EACCES, NO, -1, 0)                                         \
    ROW(mtcp_pipe, mtcp_pipe(a->c, (int *)a->p), CONTEXT, EACCES, ALIGNED, -1, 0)                                  \
    ROW(mtcp_socket, closed(a->c, mtcp_socket(a->c, AF_INET, SOCK_STREAM, 0)), CONTEXT, EACCES, NO, -1, 0)         \
    ROW(mtcp_init_rss, mtcp_init_rss(a->c, INADDR_ANY, 1, INADDR_ANY, 0), CONTEXT, EACCES, NO, -1, 0)              \
    ROW(mtcp_epoll_create, closed(a->c, mtcp_epoll_create(a->c, 1)), CONTEXT, EACCES, NO, -1, 0)                   \
    ROW(mtcp_epoll_create1, closed(a->c, mtcp_epoll_create1(a->c, 0)), CONTEXT, EACCES, NO, -1, 0)                 \
    ROW(mtcp_getsockopt, mtcp_getsockopt(a->c, a->n, SOL_SOCKET, SO_KEEPALIVE, a->p, &room), STREAM, EBADF, BYTES, -1, 0) \
    ROW(mtcp_getsockopt, mtcp_getsockopt(a->c, a->n, SOL_SOCKET, SO_KEEPALIVE, &one, (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0) \
    ROW(mtcp_setsockopt, mtcp_setsockopt(a->c, a->n, SOL_SOCKET, SO_KEEPALIVE, a->p, (socklen_t)a->len), STREAM, EBADF, BYTES, EINVAL, EINVAL) \
    ROW(mtcp_setsock_nonblock, mtcp_setsock_nonblock(a->c, a->n), STREAM, EBADF, NO, -1, 0)                        \
    ROW(mtcp_socket_ioctl, mtcp_socket_ioctl(a->c, a->n, 0x541b, a->p), STREAM, EBADF, ALIGNED, -1, 0)             \
    ROW(mtcp_bind, mtcp_bind(a->c, a->n, to(a), (socklen_t)a->len), FRESH, EBADF, BYTES, EINVAL, EINVAL)           \
    ROW(mtcp_listen, mtcp_listen(a->c, a->n, 1), FRESH, EBADF, NO, -1, 0)                                          \
    ROW(mtcp_accept, mtcp_accept(a->c, a->n, to(a), &room), STREAM, EBADF, CHOICE, -1, 0)                          \
    ROW(mtcp_accept, mtcp_accept(a->c, a->n, name(), (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0)            \
    ROW(mtcp_connect, mtcp_connect(a->c, a->n, to(a), (socklen_t)a->len), FRESH, EBADF, BYTES, EINVAL, EINVAL)     \
    ROW(mtcp_close, mtcp_close(a->c, a->n), FRESH, EBADF, NO, -1, 0)                                               \
    ROW(mtcp_abort, mtcp_abort(a->c, a->n), FRESH, EBADF, NO, -1, 0)                                               \
    ROW(mtcp_getsockname, mtcp_getsockname(a->c, a->n, to(a), &room), STREAM, EBADF, BYTES, -1, 0)                 \
    ROW(mtcp_getsockname, mtcp_getsockname(a->c, a->n, name(), (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0)  \
    ROW(mtcp_getpeername, mtcp_getpeername(a->c, a->n, to(a), &room), STREAM, EBADF, BYTES, -1, 0)                 \
    ROW(mtcp_getpeername, mtcp_getpeername(a->c, a->n, name(), (socklen_t *)a->p), STREAM, EBADF, ALIGNED, -1, 0)  \
    ROW(mtcp_read, mtcp_read(a->c, a->n, (char *)a->p, a->len), STREAM, EBADF, BYTES, 0, EFAULT)                   \
    ROW(mtcp_recv, mtcp_recv(a->c, a->n, (char *)a->p, a->len, MSG_PEEK), STREAM, EBADF, BYTES, 0, EFAULT)         \
    ROW(mtcp_readv, mtcp_readv(a->c, a->n, piece(a), 1), STREAM, EBADF, BYTES, 0, EFAULT)                          \
    ROW(mtcp_readv, mtcp_readv(a->c, a->n, (struct iovec *)a->p, 1), STREAM, EBADF, ALIGNED, -1, 0)                \
    ROW(mtcp_write, mtcp_write(a->c, a->n, (char *)a->p, a->len), STREAM, EBADF, BYTES, 0, EFAULT)                 \
    ROW(mtcp_writev, mtcp_writev(a->c, a->n, piece(a), 1), STREAM, EBADF, BYTES, 0, EFAULT)                        \
    ROW(mtcp_writev, mtcp_writev(a->c, a->n, (struct iovec *)a->p, 1), STREAM, EBADF, ALIGNED, -1, 0)              \
    ROW(mtcp_epoll_ctl, mtcp_epoll_ctl(a->c, good[SET], MTCP_EPOLL_CTL_ADD, a->n, event(a)), FRESH, EBADF, ALIGNED, -1, 0) \
    ROW(mtcp_epoll_ctl, mtcp_epoll_ctl(a->c, a->n, MTCP_EPOLL_CTL_ADD, good[FRESH], event(a)), SET, EBADF, ALIGNED, -1, 0) \
    ROW(mtcp_epoll_wait, mtcp_epoll_wait(a->c, a->n, event(a), 1, 0), SET, EBADF, ALIGNED, -1, 0)                  \
    ROW(mtcp_destroy, (mtcp_destroy(), 0), THINGS, 0, NO, -1, 0)

struct row {
    const char *name;
    enum thing takes;
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

#define ENTRY(function, call, takes, without, pointer, zero, most) {#function, takes, without, pointer, zero, most},
static const struct row rows[] = {ROWS(ENTRY)};
// The last ends it all, and is good at any time: it is not misused.
enum { ROWS_LEN = sizeof rows / sizeof *rows - 1 };

// Misuses a row: it says this number; 0 is for what is no misuse.
static void misuse(int row, mctx_t c, int n, void *p, size_t len, int number)
{
    struct args args = {c, n, p, len};
    memset(&memory, 0, sizeof memory);
    room = sizeof address;
    errno = 0;
    long result = use(row, &args);
    if (number ? result == -1 && errno == number : result >= 0)
        return;
    fprintf(stderr, "%s(%p, %d, %p, %zu): %ld, errno %d in place of %d\n", rows[row].name, (void *)c, n, p, len, result, errno,
            number);
    exit(1);
}

void misuse_contexts(mctx_t mctx)
{
    for (int row = 0; row < ROWS_LEN; row++) {
        if (rows[row].takes != NONE)
            misuse(row, mctx, good[rows[row].takes], memory.bytes, 16, EACCES);
    }
}

static void *elsewhere(void *mctx)
{
    misuse_contexts((mctx_t)mctx);
    return NULL;
}

void misuse_all(mctx_t mctx, int stream)
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
    pthread_t thread;
    int gone = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    good[STREAM] = stream;
    good[FRESH] = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    good[SET] = mtcp_epoll_create(mctx, 1);
    address.sin_family = AF_INET;
    const int bad[] = {-1, mtcp_close(mctx, gone) == 0 ? gone : -1, 1000000, INT_MAX, INT_MIN};
    for (int row = 0; row < ROWS_LEN; row++) {
        const struct row *r = &rows[row];
        int n = good[r->takes];
        if (r->takes == NONE && r->pointer == NO)
            misuse(row, mctx, 0, memory.bytes, 16, r->without);
        for (size_t at = 0; at < sizeof bad / sizeof *bad && r->takes > CONTEXT; at++)
            misuse(row, mctx, bad[at], memory.bytes, 16, r->without);
        if (r->pointer == BYTES || r->pointer == ALIGNED)
            misuse(row, mctx, n, NULL, 16, EFAULT);
        for (size_t at = 0; at < sizeof wild / sizeof *wild && r->pointer != NO; at++)
            misuse(row, mctx, n, wild[at], 16, EFAULT);
        if (r->pointer == ALIGNED)
            misuse(row, mctx, n, memory.bytes + 1, 16, EFAULT);
        if (r->zero < 0)
            continue;
        misuse(row, mctx, n, memory.bytes, 0, r->zero);
        if (r->zero == 0)
            misuse(row, mctx, n, NULL, 0, 0);
        misuse(row, mctx, n, memory.bytes, MOST, r->most);
        misuse(row, mctx, n, memory.bytes, MOST + 1, EINVAL);
        misuse(row, mctx, n, memory.bytes, SIZE_MAX, EINVAL);
    }
    misuse_contexts(NULL);
    misuse_contexts((mctx_t)(uintptr_t)12345);
    misuse_contexts((mctx_t)(void *)memory.bytes);
    if (pthread_create(&thread, NULL, elsewhere, mctx) != 0 || pthread_join(thread, NULL) != 0)
        exit(1);
    mtcp_close(mctx, good[FRESH]);
    mtcp_close(mctx, good[SET]);
}
