// mTCP's interface, on loopback in each context: what programs written for it rely on, and what bad input gets.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <arpa/inet.h>

#include "mtcp_api.h"
#include "mtcp_epoll.h"

#include "misuse.h"

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);          \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)

#define FAILS(call, number)                                                                            \
    do {                                                                                               \
        errno = 0;                                                                                     \
        CHECK((call) == -1 && errno == (number));                                                      \
    } while (0)

#define NO_CONTEXT(call, number)                                                                       \
    do {                                                                                               \
        errno = 0;                                                                                     \
        CHECK((call) == NULL && errno == (number));                                                    \
    } while (0)

static struct sockaddr_in at(const char *address, int port)
{
    struct sockaddr_in result;
    memset(&result, 0, sizeof result);
    result.sin_family = AF_INET;
    result.sin_port = htons((uint16_t)port);
    CHECK(inet_pton(AF_INET, address, &result.sin_addr) == 1);
    return result;
}

static int initialize(const char *text)
{
    char path[] = "/tmp/millrace-mtcp-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && close(file) == 0);
    int result = mtcp_init(path), error = errno;
    CHECK(unlink(path) == 0);
    errno = error;
    return result;
}

static uint32_t wait_one(mctx_t mctx, int set, int sockid, int timeout)
{
    struct mtcp_epoll_event events[4];
    int count = mtcp_epoll_wait(mctx, set, events, 4, timeout);
    CHECK(count == 0 || (count == 1 && events[0].data.sockid == sockid));
    return count ? events[0].events : 0;
}

static void watch(mctx_t mctx, int set, int op, int sockid, uint32_t events)
{
    struct mtcp_epoll_event event;
    event.events = events;
    event.data.sockid = sockid;
    CHECK(mtcp_epoll_ctl(mctx, set, op, sockid, &event) == 0);
}

// A connection of a context with itself.
static void connected(mctx_t mctx, int listener, int ends[2])
{
    struct sockaddr_in address, peer;
    socklen_t len = sizeof address;
    CHECK(mtcp_getsockname(mctx, listener, (struct sockaddr *)&address, &len) == 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ends[0] = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    CHECK(ends[0] >= 0 && mtcp_connect(mctx, ends[0], (struct sockaddr *)&address, sizeof address) == 0);
    len = sizeof peer;
    ends[1] = mtcp_accept(mctx, listener, (struct sockaddr *)&peer, &len);
    CHECK(ends[1] >= 0 && len == sizeof peer && peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    CHECK(mtcp_setsock_nonblock(mctx, ends[0]) == 0 && mtcp_setsock_nonblock(mctx, ends[1]) == 0);
}

static void transfers(mctx_t mctx, int listener)
{
    int ends[2], waiting = 0;
    char buffer[64], more[64];
    struct iovec out[2] = {{(void *)"ab", 2}, {(void *)"cd", 2}}, in[2] = {{buffer, 3}, {more, 60}};
    connected(mctx, listener, ends);
    int set = mtcp_epoll_create(mctx, 10);
    watch(mctx, set, MTCP_EPOLL_CTL_ADD, ends[1], MTCP_EPOLLIN | MTCP_EPOLLET);
    CHECK(wait_one(mctx, set, ends[1], 0) == 0);
    CHECK(mtcp_writev(mctx, ends[0], out, 2) == 4);
    CHECK(wait_one(mctx, set, ends[1], 1000) == MTCP_EPOLLIN && wait_one(mctx, set, ends[1], 0) == 0);
    watch(mctx, set, MTCP_EPOLL_CTL_MOD, ends[1], MTCP_EPOLLIN);
    CHECK(wait_one(mctx, set, ends[1], 0) == MTCP_EPOLLIN && wait_one(mctx, set, ends[1], 0) == MTCP_EPOLLIN);
    CHECK(mtcp_socket_ioctl(mctx, ends[1], FIONREAD, &waiting) == 0 && waiting == 4);
    CHECK(mtcp_recv(mctx, ends[1], buffer, sizeof buffer, MSG_PEEK) == 4);
    misuse_all(mctx, ends[1]);
    FAILS(mtcp_recv(mctx, ends[1], buffer, sizeof buffer, MSG_OOB), EINVAL);
    CHECK(mtcp_readv(mctx, ends[1], in, 2) == 4 && !memcmp(buffer, "abc", 3) && more[0] == 'd');
    FAILS(mtcp_read(mctx, ends[1], buffer, sizeof buffer), EAGAIN);
    CHECK(wait_one(mctx, set, ends[1], 0) == 0);
    CHECK(mtcp_write(mctx, ends[0], "x", 1) == 1 && mtcp_close(mctx, ends[0]) == 0);
    CHECK(wait_one(mctx, set, ends[1], 1000) & MTCP_EPOLLIN);
    CHECK(mtcp_read(mctx, ends[1], buffer, sizeof buffer) == 1);
    CHECK(wait_one(mctx, set, ends[1], 1000) & MTCP_EPOLLIN);
    CHECK(mtcp_read(mctx, ends[1], buffer, sizeof buffer) == 0);
    FAILS(mtcp_read(mctx, ends[0], buffer, 1), EBADF);
    CHECK(mtcp_close(mctx, ends[1]) == 0 && mtcp_close(mctx, set) == 0);
    // Numbers are small, and the lowest is used again.
    connected(mctx, listener, ends);
    CHECK(ends[0] < 10 && ends[1] < 10);
    CHECK(mtcp_abort(mctx, ends[0]) == 0);
    set = mtcp_epoll_create1(mctx, 0);
    watch(mctx, set, MTCP_EPOLL_CTL_ADD, ends[1], MTCP_EPOLLIN);
    CHECK(wait_one(mctx, set, ends[1], 1000) & MTCP_EPOLLERR);
    int error = 0;
    socklen_t len = sizeof error;
    CHECK(mtcp_getsockopt(mctx, ends[1], SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == ECONNRESET);
    CHECK(mtcp_close(mctx, ends[1]) == 0 && mtcp_close(mctx, set) == 0);
}

static void pipes(mctx_t mctx)
{
    int ends[2];
    char buffer[8];
    CHECK(mtcp_pipe(mctx, ends) == 0);
    int set = mtcp_epoll_create(mctx, 1);
    watch(mctx, set, MTCP_EPOLL_CTL_ADD, ends[0], MTCP_EPOLLIN);
    FAILS(mtcp_read(mctx, ends[0], buffer, 1), EDEADLK);
    CHECK(mtcp_setsock_nonblock(mctx, ends[0]) == 0);
    FAILS(mtcp_read(mctx, ends[0], buffer, 1), EAGAIN);
    CHECK(mtcp_write(mctx, ends[1], "abc", 3) == 3);
    CHECK(wait_one(mctx, set, ends[0], -1) == MTCP_EPOLLIN);
    CHECK(mtcp_read(mctx, ends[0], buffer, sizeof buffer) == 3);
    CHECK(mtcp_close(mctx, ends[1]) == 0);
    CHECK(wait_one(mctx, set, ends[0], -1) & MTCP_EPOLLHUP);
    CHECK(mtcp_close(mctx, ends[0]) == 0 && mtcp_close(mctx, set) == 0);
}

static void sources(mctx_t mctx, int listener)
{
    int ends[2];
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    in_addr_t base = at("127.0.0.5", 0).sin_addr.s_addr, foreign = at("192.0.2.1", 0).sin_addr.s_addr;
    FAILS(mtcp_init_rss(mctx, foreign, 1, INADDR_ANY, 0), EADDRNOTAVAIL);
    FAILS(mtcp_init_rss(mctx, base, 0, INADDR_ANY, 0), EINVAL);
    CHECK(mtcp_init_rss(mctx, base, 2, INADDR_ANY, 0) == 0);
    for (uint32_t turn = 0; turn < 4; turn++) {
        struct sockaddr_in address;
        CHECK(mtcp_getsockname(mctx, listener, (struct sockaddr *)&address, &len) == 0);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        ends[0] = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
        CHECK(mtcp_connect(mctx, ends[0], (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(mtcp_getsockname(mctx, ends[0], (struct sockaddr *)&name, &len) == 0);
        CHECK(ntohl(name.sin_addr.s_addr) == ntohl(base) + turn % 2);
        CHECK(mtcp_getpeername(mctx, ends[0], (struct sockaddr *)&name, &len) == 0 && name.sin_port == address.sin_port);
        ends[1] = mtcp_accept(mctx, listener, NULL, NULL);
        CHECK(mtcp_close(mctx, ends[0]) == 0 && mtcp_close(mctx, ends[1]) == 0);
    }
    CHECK(mtcp_init_rss(mctx, INADDR_ANY, 1, INADDR_ANY, 0) == 0);
}

// A connection of which nothing is heard is given up: tcp_timeout is one second here.
static void silence(mctx_t mctx, int listener)
{
    int ends[2], error = 0;
    char buffer[8];
    socklen_t len = sizeof error;
    connected(mctx, listener, ends);
    int set = mtcp_epoll_create(mctx, 1);
    watch(mctx, set, MTCP_EPOLL_CTL_ADD, ends[0], MTCP_EPOLLIN);
    CHECK(wait_one(mctx, set, ends[0], -1) & MTCP_EPOLLERR);
    CHECK(mtcp_getsockopt(mctx, ends[0], SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == ETIMEDOUT);
    FAILS(mtcp_read(mctx, ends[0], buffer, 1), ENOTCONN);
    CHECK(mtcp_close(mctx, ends[0]) == 0 && mtcp_close(mctx, ends[1]) == 0 && mtcp_close(mctx, set) == 0);
}

static void limits(mctx_t mctx)
{
    int all[64], count = 0;
    while (count < 64 && (all[count] = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0)) >= 0) {
        CHECK(all[count] < 20);
        count++;
    }
    CHECK(errno == ENFILE && count >= 10 && count < 20);
    // No number is as large as the limit, whatever it names.
    while (count < 64 && (all[count] = mtcp_epoll_create(mctx, 1)) >= 0) {
        CHECK(all[count] < 20);
        count++;
    }
    CHECK(errno == ENFILE && count == 19);
    while (count > 0)
        CHECK(mtcp_close(mctx, all[--count]) == 0);
}

static void refusals(mctx_t mctx, int listener)
{
    char buffer[8];
    struct mtcp_epoll_event event;
    struct sockaddr_in address = at("127.0.0.1", 9);
    int value = 1, set = mtcp_epoll_create(mctx, 1);
    const mctx_t strange[] = {NULL, (mctx_t)(uintptr_t)12345, (mctx_t)(void *)buffer};
    memset(&event, 0, sizeof event);
    for (size_t which = 0; which < sizeof strange / sizeof *strange; which++) {
        FAILS(mtcp_socket(strange[which], AF_INET, SOCK_STREAM, 0), EACCES);
        FAILS(mtcp_read(strange[which], listener, buffer, 1), EACCES);
        FAILS(mtcp_epoll_wait(strange[which], set, &event, 1, 0), EACCES);
        errno = 0;
        mtcp_destroy_context(strange[which]);
        CHECK(errno == EACCES);
    }
    const int bad[] = {-1, 19, 1000000, 2147483647};
    for (size_t which = 0; which < sizeof bad / sizeof *bad; which++) {
        FAILS(mtcp_close(mctx, bad[which]), EBADF);
        FAILS(mtcp_abort(mctx, bad[which]), EBADF);
        FAILS(mtcp_listen(mctx, bad[which], 1), EBADF);
        FAILS(mtcp_bind(mctx, bad[which], (struct sockaddr *)&address, sizeof address), EBADF);
        FAILS(mtcp_connect(mctx, bad[which], (struct sockaddr *)&address, sizeof address), EBADF);
        FAILS(mtcp_accept(mctx, bad[which], NULL, NULL), EBADF);
        FAILS(mtcp_write(mctx, bad[which], buffer, 1), EBADF);
        FAILS(mtcp_setsock_nonblock(mctx, bad[which]), EBADF);
        FAILS(mtcp_setsockopt(mctx, bad[which], SOL_SOCKET, SO_REUSEADDR, &value, sizeof value), EBADF);
        FAILS(mtcp_socket_ioctl(mctx, bad[which], FIONREAD, &value), EBADF);
        FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, bad[which], &event), EBADF);
        FAILS(mtcp_epoll_wait(mctx, bad[which], &event, 1, 0), EBADF);
    }
    FAILS(mtcp_read(mctx, listener, NULL, 1), EFAULT);
    FAILS(mtcp_write(mctx, listener, buffer, (size_t)-1), EINVAL);
    FAILS(mtcp_bind(mctx, listener, NULL, sizeof address), EFAULT);
    FAILS(mtcp_pipe(mctx, NULL), EFAULT);
    FAILS(mtcp_epoll_create(mctx, 0), EINVAL);
    FAILS(mtcp_epoll_create1(mctx, 1), EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, set, 9, listener, &event), EINVAL);
    FAILS(mtcp_epoll_ctl(mctx, set, MTCP_EPOLL_CTL_ADD, listener, NULL), EFAULT);
    FAILS(mtcp_epoll_wait(mctx, set, &event, 0, 0), EINVAL);
    FAILS(mtcp_setsockopt(mctx, listener, 12345, 1, &value, sizeof value), ENOPROTOOPT);
    FAILS(mtcp_socket_ioctl(mctx, set, FIONREAD, &value), ENOTSOCK);
    CHECK(mtcp_close(mctx, set) == 0);
    CHECK(!strcmp(EventToString(MTCP_EPOLLIN), "IN") && !strcmp(EventToString(12345), "UNKNOWN"));
}

static mctx_t first;
static volatile sig_atomic_t handled;
static pthread_barrier_t meet;

static void handler(int number)
{
    CHECK(number == SIGUSR1);
    handled = 1;
}

// Waits until a signal comes, to whichever thread.
static void *waits(void *argument)
{
    struct mtcp_epoll_event event;
    (void)argument;
    CHECK(mtcp_core_affinitize(0) == 0);
    FAILS(mtcp_core_affinitize(-1), EINVAL);
    FAILS(mtcp_socket(first, AF_INET, SOCK_STREAM, 0), EACCES);
    mctx_t mctx = mtcp_create_context(1);
    CHECK(mctx != NULL && mctx != first);
    NO_CONTEXT(mtcp_create_context(1), EBUSY);
    int set = mtcp_epoll_create(mctx, 1);
    pthread_barrier_wait(&meet);
    FAILS(mtcp_epoll_wait(mctx, set, &event, 1, -1), EINTR);
    CHECK(handled);
    mtcp_destroy_context(mctx);
    return NULL;
}

static void signals(mctx_t mctx)
{
    pthread_t thread;
    struct mtcp_epoll_event event;
    int set = mtcp_epoll_create(mctx, 1);
    CHECK(mtcp_register_signal(0, handler) == SIG_ERR && mtcp_register_signal(1000, handler) == SIG_ERR);
    CHECK(mtcp_register_signal(SIGUSR1, handler) == SIG_DFL);
    CHECK(mtcp_register_signal(SIGUSR1, handler) == handler);
    CHECK(pthread_barrier_init(&meet, NULL, 2) == 0);
    first = mctx;
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    pthread_barrier_wait(&meet);
    CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    // It came before the wait, which ends all the same.
    FAILS(mtcp_epoll_wait(mctx, set, &event, 1, -1), EINTR);
    CHECK(mtcp_epoll_wait(mctx, set, &event, 1, 1) == 0);
    CHECK(mtcp_register_signal(SIGUSR1, SIG_IGN) == handler);
    CHECK(raise(SIGUSR1) == 0 && mtcp_close(mctx, set) == 0);
}

int main(void)
{
    struct mtcp_conf conf;
    misuse_contexts(NULL);
    NO_CONTEXT(mtcp_create_context(0), EPERM);
    FAILS(mtcp_init(NULL), EFAULT);
    FAILS(mtcp_init("/nonexistent/file"), ENOENT);
    FAILS(initialize("port = none\ncolour = blue\n"), EINVAL);
    FAILS(initialize("port = dpdk0\n"), EINVAL);
    FAILS(mtcp_getconf(NULL), EFAULT);
    FAILS(mtcp_setconf(NULL), EFAULT);
    CHECK(mtcp_getconf(&conf) == 0);
    conf.num_cores = 65;
    FAILS(mtcp_setconf(&conf), EINVAL);
    conf.num_cores = 2;
    conf.tcp_timeout = 1;
    CHECK(mtcp_setconf(&conf) == 0);
    CHECK(initialize("port = none\nmax_concurrency = 20 # sockets\n\ntcp_timewait = 0\n") == 0);
    FAILS(initialize("port = none\n"), EBUSY);
    CHECK(mtcp_getconf(&conf) == 0);
    CHECK(conf.num_cores == 2 && conf.max_concurrency == 20 && conf.tcp_timeout == 1 && conf.tcp_timewait == 0);
    NO_CONTEXT(mtcp_create_context(2), EINVAL);
    NO_CONTEXT(mtcp_create_context(-1), EINVAL);
    mctx_t mctx = mtcp_create_context(0);
    CHECK(mctx != NULL);
    FAILS(mtcp_setconf(&conf), EBUSY);
    struct sockaddr_in address = at("0.0.0.0", 80);
    int listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    CHECK(mtcp_bind(mctx, listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(mtcp_listen(mctx, listener, 4096) == 0);
    transfers(mctx, listener);
    pipes(mctx);
    sources(mctx, listener);
    silence(mctx, listener);
    limits(mctx);
    refusals(mctx, listener);
    signals(mctx);
    mtcp_destroy_context(mctx);
    misuse_contexts(mctx);
    mtcp_destroy();
    misuse_contexts(mctx);
    NO_CONTEXT(mtcp_create_context(0), EPERM);
    puts("good");
    return 0;
}
