// Connections from ports that the program names, in a host of two shards, to a server that says back what it hears: answers to one port in two come to the other shard. With a
// configuration file by mTCP's interface, without by that of the library, waiting or not.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <millrace.h>
#include <mtcp_epoll.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { FIRST = 5000, COUNT = 40 };

static atomic_int done;
static pthread_barrier_t ready;

static struct sockaddr_in at(const char *address, int port)
{
    struct sockaddr_in result;
    memset(&result, 0, sizeof result);
    result.sin_family = AF_INET;
    result.sin_port = htons((uint16_t)port);
    CHECK(inet_pton(AF_INET, address, &result.sin_addr) == 1);
    return result;
}

// The other shard: it does what it is asked for, and nothing else.
static void *work(void *engine)
{
    int stack = mr_stack_open(*(int *)engine, 1);
    CHECK(stack > 0);
    int set = mr_epoll_create(0);
    struct epoll_event event;
    pthread_barrier_wait(&ready);
    while (!done)
        CHECK(mr_epoll_wait(set, &event, 1, 10) == 0);
    CHECK(mr_stack_close(stack, 0) == 0);
    return NULL;
}

static void connect_from(int port)
{
    struct sockaddr_in own = at("10.77.0.2", port), peer = at("10.77.0.1", 7), name;
    socklen_t len = sizeof name;
    int waits = port % 4 < 2, fd = mr_socket(AF_INET, waits ? SOCK_STREAM : SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fd > 0 && mr_bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    int begun = mr_connect(fd, (struct sockaddr *)&peer, sizeof peer);
    if (waits) {
        CHECK(begun == 0);
    } else {
        CHECK(begun == -1 && errno == EINPROGRESS);
        struct epoll_event event = {EPOLLOUT, {0}};
        int set = mr_epoll_create(0), error = -1;
        CHECK(mr_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(mr_epoll_wait(set, &event, 1, 20000) == 1 && event.events == EPOLLOUT);
        len = sizeof error;
        CHECK(mr_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
        CHECK(mr_close(set) == 0 && mr_fcntl(fd, F_SETFL, 0) == 0);
    }
    char back[4];
    CHECK(mr_write(fd, "ping", 4) == 4 && mr_recv(fd, back, 4, MSG_WAITALL) == 4 && !memcmp(back, "ping", 4));
    len = sizeof name;
    CHECK(mr_getsockname(fd, (struct sockaddr *)&name, &len) == 0 && name.sin_port == own.sin_port);
    CHECK(mr_abort(fd) == 0);
}

static void by_sockets(void)
{
    pthread_t other;
    int engine = mr_engine_new();
    CHECK(mr_engine_set(engine, "link", "tap") == 0 && mr_engine_set(engine, "host", "10.77.0.1/24") == 0);
    CHECK(mr_engine_set(engine, "address", "10.77.0.2/24") == 0 && mr_engine_set(engine, "shards", "2") == 0);
    CHECK(mr_engine_start(engine) == 0);
    CHECK(mr_stack_open(engine, 0) > 0 && pthread_create(&other, NULL, work, &engine) == 0);
    pthread_barrier_wait(&ready);
    for (int port = FIRST; port < FIRST + COUNT; port++)
        connect_from(port);
    done = 1;
    CHECK(pthread_join(other, NULL) == 0 && mr_engine_close(engine) == 0);
}

// Each context connects from every other port, while the other works in its own calls.
static void *connect_in_context(void *argument)
{
    int core = *(int *)argument;
    mctx_t mctx = mtcp_create_context(core);
    CHECK(mctx);
    pthread_barrier_wait(&ready);
    for (int port = FIRST + core; port < FIRST + COUNT; port += 2) {
        struct sockaddr_in own = at("10.77.0.2", port), peer = at("10.77.0.1", 7);
        char back[4];
        int sockid = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
        CHECK(sockid >= 0 && mtcp_bind(mctx, sockid, (struct sockaddr *)&own, sizeof own) == 0);
        CHECK(mtcp_connect(mctx, sockid, (struct sockaddr *)&peer, sizeof peer) == 0);
        CHECK(mtcp_write(mctx, sockid, "ping", 4) == 4);
        for (ssize_t len = 0, more; len < 4; len += more)
            CHECK((more = mtcp_read(mctx, sockid, back + len, sizeof back - (size_t)len)) > 0);
        CHECK(!memcmp(back, "ping", 4) && mtcp_abort(mctx, sockid) == 0);
    }
    // The other one may still ask.
    int events = mtcp_epoll_create(mctx, 1);
    struct mtcp_epoll_event event;
    for (atomic_fetch_add(&done, 1); done < 2;)
        CHECK(mtcp_epoll_wait(mctx, events, &event, 1, 10) == 0);
    mtcp_destroy_context(mctx);
    return NULL;
}

static void by_contexts(const char *file)
{
    int cores[2] = {0, 1};
    pthread_t threads[2];
    CHECK(mtcp_init(file) == 0);
    for (int core = 0; core < 2; core++)
        CHECK(pthread_create(&threads[core], NULL, connect_in_context, &cores[core]) == 0);
    for (int core = 0; core < 2; core++)
        CHECK(pthread_join(threads[core], NULL) == 0);
    mtcp_destroy();
}

int main(int count, char **arguments)
{
    CHECK(pthread_barrier_init(&ready, NULL, 2) == 0);
    if (count > 1)
        by_contexts(arguments[1]);
    else
        by_sockets();
    printf("%d connected\n", COUNT);
    return 0;
}
