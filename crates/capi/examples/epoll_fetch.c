// A downloader written to mTCP's interface: fetches one file many times, over many connections at once, one context on each core.
//
//     cc -pthread -o epoll_fetch epoll_fetch.c $(pkg-config --cflags --libs millrace)
//     sudo ./epoll_fetch fetch.conf 10.77.0.1 /file 10000 100
//
// fetches it 10,000 times on each core, 100 at once, and says how many came whole and how many bytes they had.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <arpa/inet.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

enum { EVENTS = 256, HEAD = 2048, CORES = 64, BUFFER = 65536 };

// What has come of one answer.
struct answer {
    char head[HEAD];
    size_t head_len;
    long long body, expected;
    int asked;
};

struct work {
    mctx_t mctx;
    int core, set, started, open;
    struct answer *answers;
    long long whole, failed, bytes;
};

static struct sockaddr_in server;
static struct mtcp_conf conf;
static char request[HEAD];
static int fetches, at_once;

static void fail(const char *what)
{
    fprintf(stderr, "epoll_fetch: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void watch(struct work *work, int operation, int sockid, uint32_t events)
{
    struct mtcp_epoll_event event;
    event.events = events;
    event.data.sockid = sockid;
    if (mtcp_epoll_ctl(work->mctx, work->set, operation, sockid, &event) < 0)
        fail("mtcp_epoll_ctl");
}

static void begin(struct work *work)
{
    int sockid = mtcp_socket(work->mctx, AF_INET, SOCK_STREAM, 0);
    if (sockid < 0 || mtcp_setsock_nonblock(work->mctx, sockid) < 0)
        fail("mtcp_socket");
    memset(&work->answers[sockid], 0, sizeof *work->answers);
    work->answers[sockid].expected = -1;
    work->started++;
    work->open++;
    if (mtcp_connect(work->mctx, sockid, (struct sockaddr *)&server, sizeof server) < 0 && errno != EINPROGRESS)
        fail("mtcp_connect");
    watch(work, MTCP_EPOLL_CTL_ADD, sockid, MTCP_EPOLLOUT);
}

static void finish(struct work *work, int sockid)
{
    struct answer *answer = &work->answers[sockid];
    int whole = answer->expected >= 0 && answer->body == answer->expected &&
                !strncmp(answer->head, "HTTP/1.1 200", 12);
    work->whole += whole;
    work->failed += !whole;
    work->bytes += answer->body;
    work->open--;
    mtcp_close(work->mctx, sockid);
    if (work->started < fetches)
        begin(work);
}

// Takes what has come. The head goes on until an empty line; what follows is counted.
static void take(struct answer *answer, const char *bytes, size_t len)
{
    if (answer->expected < 0) {
        size_t part = len < HEAD - 1 - answer->head_len ? len : HEAD - 1 - answer->head_len;
        size_t before = answer->head_len;
        memcpy(answer->head + before, bytes, part);
        answer->head_len += part;
        answer->head[answer->head_len] = 0;
        char *end = strstr(answer->head, "\r\n\r\n");
        if (!end)
            return;
        *end = 0;
        char *field = strcasestr(answer->head, "\r\ncontent-length:");
        answer->expected = field ? atoll(field + 17) : 0;
        len -= (size_t)(end + 4 - answer->head) - before;
    }
    answer->body += (long long)len;
}

static void handle(struct work *work, int sockid, uint32_t events)
{
    static __thread char buffer[BUFFER];
    struct answer *answer = &work->answers[sockid];
    if (!answer->asked) {
        int error = 0;
        socklen_t len = sizeof error;
        size_t whole = strlen(request);
        if (mtcp_getsockopt(work->mctx, sockid, SOL_SOCKET, SO_ERROR, &error, &len) < 0 || error ||
            mtcp_write(work->mctx, sockid, request, whole) != (ssize_t)whole) {
            finish(work, sockid);
            return;
        }
        answer->asked = 1;
        watch(work, MTCP_EPOLL_CTL_MOD, sockid, MTCP_EPOLLIN);
        return;
    }
    if (!(events & (MTCP_EPOLLIN | MTCP_EPOLLERR | MTCP_EPOLLHUP)))
        return;
    for (;;) {
        ssize_t len = mtcp_read(work->mctx, sockid, buffer, BUFFER);
        if (len < 0 && errno == EAGAIN)
            return;
        if (len > 0)
            take(answer, buffer, (size_t)len);
        if (len <= 0 || (answer->expected >= 0 && answer->body >= answer->expected)) {
            finish(work, sockid);
            return;
        }
    }
}

static void *fetch(void *argument)
{
    struct work *work = argument;
    struct mtcp_epoll_event events[EVENTS];
    // More contexts than cores share them.
    mtcp_core_affinitize(work->core);
    work->mctx = mtcp_create_context(work->core);
    if (!work->mctx)
        fail("mtcp_create_context");
    work->answers = calloc((size_t)conf.max_concurrency, sizeof *work->answers);
    work->set = mtcp_epoll_create(work->mctx, EVENTS);
    if (!work->answers || work->set < 0)
        fail("mtcp_epoll_create");
    if (mtcp_init_rss(work->mctx, INADDR_ANY, 1, server.sin_addr.s_addr, server.sin_port) < 0)
        fail("mtcp_init_rss");
    while (work->open < at_once && work->started < fetches)
        begin(work);
    while (work->open > 0) {
        int count = mtcp_epoll_wait(work->mctx, work->set, events, EVENTS, -1);
        if (count < 0 && errno != EINTR)
            fail("mtcp_epoll_wait");
        for (int at = 0; at < count; at++)
            handle(work, events[at].data.sockid, events[at].events);
    }
    mtcp_destroy_context(work->mctx);
    free(work->answers);
    return NULL;
}

int main(int words, char **word)
{
    if (words != 6) {
        fprintf(stderr, "usage: %s CONFIGURATION ADDRESS PATH FETCHES AT-ONCE\n", word[0]);
        return 2;
    }
    server.sin_family = AF_INET;
    server.sin_port = htons(80);
    fetches = atoi(word[4]);
    at_once = atoi(word[5]);
    if (inet_pton(AF_INET, word[2], &server.sin_addr) != 1 || fetches < 1 || at_once < 1)
        fail("the arguments");
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", word[3], word[2]);
    if (mtcp_init(word[1]) < 0)
        fail(word[1]);
    mtcp_getconf(&conf);
    static struct work all[CORES];
    pthread_t threads[CORES];
    for (int core = 0; core < conf.num_cores; core++) {
        all[core].core = core;
        if (pthread_create(&threads[core], NULL, fetch, &all[core]) != 0)
            fail("a thread");
    }
    long long whole = 0, failed = 0, bytes = 0;
    for (int core = 0; core < conf.num_cores && pthread_join(threads[core], NULL) == 0; core++) {
        printf("core %d: %lld whole\n", core, all[core].whole);
        whole += all[core].whole;
        failed += all[core].failed;
        bytes += all[core].bytes;
    }
    mtcp_destroy();
    printf("%lld whole, %lld failed, %lld bytes\n", whole, failed, bytes);
    return failed != 0;
}
