// A web server written to mTCP's interface: the files of a directory, from memory, one context on each core.
//
//     cc -pthread -o epoll_server epoll_server.c $(pkg-config --cflags --libs millrace)
//     sudo ./epoll_server server.conf DIRECTORY
//
// with server.conf: port = tap, num_cores = 2, host = 10.77.0.1/24, address = 10.77.0.2/24, each on a line.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

enum { EVENTS = 256, REQUEST = 2048, FILES = 256, CORES = 64, BACKLOG = 4096 };

struct file {
    char *name, *bytes;
    size_t len;
};

// What a connection has asked for, and how much of the answer is gone.
struct conversation {
    char request[REQUEST], head[256];
    size_t heard, head_len, said, total;
    const struct file *file;
    int body, last;
};

static struct file files[FILES];
static int count;
static struct mtcp_conf conf;
static volatile sig_atomic_t ended;

static void end(int number)
{
    (void)number;
    ended = 1;
}

static void fail(const char *what)
{
    fprintf(stderr, "epoll_server: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void load(const char *directory)
{
    DIR *list = opendir(directory);
    if (!list)
        fail(directory);
    for (struct dirent *entry; (entry = readdir(list)) && count < FILES;) {
        char path[4096];
        struct stat about;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (stat(path, &about) < 0 || !S_ISREG(about.st_mode))
            continue;
        FILE *from = fopen(path, "rb");
        struct file *file = &files[count++];
        file->name = strdup(entry->d_name);
        file->len = (size_t)about.st_size;
        file->bytes = malloc(file->len + 1);
        if (!from || !file->name || !file->bytes || fread(file->bytes, 1, file->len, from) != file->len)
            fail(path);
        fclose(from);
    }
    closedir(list);
}

static const struct file *find(const char *name, size_t len)
{
    if (len == 0)
        name = "index.html", len = strlen(name);
    for (int at = 0; at < count; at++)
        if (strlen(files[at].name) == len && !memcmp(files[at].name, name, len))
            return &files[at];
    return NULL;
}

static void watch(mctx_t mctx, int set, int operation, int sockid, uint32_t events)
{
    struct mtcp_epoll_event event;
    event.events = events;
    event.data.sockid = sockid;
    if (mtcp_epoll_ctl(mctx, set, operation, sockid, &event) < 0)
        fail("mtcp_epoll_ctl");
}

// Makes an answer to the request in front of what was heard. Returns 0 when it is not all there.
static int answer(struct conversation *with)
{
    with->request[with->heard] = 0;
    char *after = strstr(with->request, "\r\n\r\n");
    if (!after)
        return 0;
    int head = !strncmp(with->request, "HEAD /", 6), get = !strncmp(with->request, "GET /", 5);
    const char *name = with->request + (head ? 6 : 5), *status = "405 Method Not Allowed";
    *after = 0;
    with->last = strstr(with->request, "HTTP/1.0") && !strcasestr(with->request, "keep-alive");
    with->last |= strcasestr(with->request, "connection: close") != NULL;
    with->file = NULL;
    if (get || head) {
        with->file = find(name, strcspn(name, " ?\r\n"));
        status = with->file ? "200 OK" : "404 Not Found";
    }
    size_t len = with->file ? with->file->len : 0;
    with->head_len = (size_t)snprintf(with->head, sizeof with->head,
                                      "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: %s\r\n\r\n", status,
                                      len, with->last ? "close" : "keep-alive");
    with->said = 0;
    with->body = get && with->file;
    with->total = with->head_len + (with->body ? len : 0);
    // The next request may be there already.
    with->heard -= (size_t)(after + 4 - with->request);
    memmove(with->request, after + 4, with->heard);
    return 1;
}

// Says as much as there is room for. Returns 1 when all is said, 0 when there is more, -1 when the connection is over.
static int say(mctx_t mctx, int sockid, struct conversation *with)
{
    while (with->said < with->total) {
        struct iovec pieces[2] = {{with->head, with->head_len}, {NULL, 0}};
        size_t skip = with->said < with->head_len ? with->said : with->head_len;
        pieces[0].iov_base = with->head + skip, pieces[0].iov_len -= skip;
        if (with->body) {
            pieces[1].iov_base = with->file->bytes + (with->said - skip);
            pieces[1].iov_len = with->file->len - (with->said - skip);
        }
        int len = mtcp_writev(mctx, sockid, pieces, 2);
        if (len < 0)
            return errno == EAGAIN ? 0 : -1;
        with->said += (size_t)len;
    }
    return 1;
}

// Goes on with a conversation as far as it goes. Returns 0 when it is over.
static int converse(mctx_t mctx, int set, int sockid, struct conversation *with)
{
    for (;;) {
        int said = say(mctx, sockid, with);
        if (said < 0)
            return 0;
        watch(mctx, set, MTCP_EPOLL_CTL_MOD, sockid, said ? MTCP_EPOLLIN : MTCP_EPOLLOUT);
        if (!said)
            return 1;
        if (with->total && with->last)
            return 0;
        if (answer(with))
            continue;
        if (with->heard == REQUEST - 1)
            return 0;
        ssize_t len = mtcp_read(mctx, sockid, with->request + with->heard, REQUEST - 1 - with->heard);
        if (len < 0)
            return errno == EAGAIN;
        if (len == 0)
            return 0;
        with->heard += (size_t)len;
    }
}

static void *serve(void *argument)
{
    int core = (int)(intptr_t)argument;
    // More contexts than cores share them.
    mtcp_core_affinitize(core);
    mctx_t mctx = mtcp_create_context(core);
    if (!mctx)
        fail("mtcp_create_context");
    struct conversation *conversations = calloc((size_t)conf.max_concurrency, sizeof *conversations);
    struct mtcp_epoll_event *events = calloc(EVENTS, sizeof *events);
    struct sockaddr_in address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons(80);
    int set = mtcp_epoll_create(mctx, EVENTS), listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    if (!conversations || !events || set < 0 || listener < 0 || mtcp_setsock_nonblock(mctx, listener) < 0 ||
        mtcp_bind(mctx, listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        mtcp_listen(mctx, listener, BACKLOG) < 0)
        fail("a listener");
    watch(mctx, set, MTCP_EPOLL_CTL_ADD, listener, MTCP_EPOLLIN);
    printf("core %d is ready\n", core);
    fflush(stdout);
    while (!ended) {
        int happened = mtcp_epoll_wait(mctx, set, events, EVENTS, -1);
        if (happened < 0 && errno != EINTR)
            fail("mtcp_epoll_wait");
        for (int at = 0; at < happened; at++) {
            int sockid = events[at].data.sockid;
            if (sockid != listener) {
                if (!converse(mctx, set, sockid, &conversations[sockid]))
                    mtcp_close(mctx, sockid);
                continue;
            }
            while ((sockid = mtcp_accept(mctx, listener, NULL, NULL)) >= 0) {
                memset(&conversations[sockid], 0, sizeof *conversations);
                mtcp_setsock_nonblock(mctx, sockid);
                watch(mctx, set, MTCP_EPOLL_CTL_ADD, sockid, MTCP_EPOLLIN);
            }
        }
    }
    mtcp_destroy_context(mctx);
    free(conversations);
    free(events);
    return NULL;
}

int main(int words, char **word)
{
    if (words != 3) {
        fprintf(stderr, "usage: %s CONFIGURATION DIRECTORY\n", word[0]);
        return 2;
    }
    load(word[2]);
    if (mtcp_init(word[1]) < 0)
        fail(word[1]);
    mtcp_getconf(&conf);
    mtcp_register_signal(SIGINT, end);
    mtcp_register_signal(SIGTERM, end);
    pthread_t threads[CORES];
    for (int core = 0; core < conf.num_cores; core++)
        if (pthread_create(&threads[core], NULL, serve, (void *)(intptr_t)core) != 0)
            fail("a thread");
    for (int core = 0; core < conf.num_cores; core++)
        pthread_join(threads[core], NULL);
    mtcp_destroy();
    return 0;
}
