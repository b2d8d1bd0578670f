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
#include <unistd.h>

#include <mtcp_api.h>
#include <mtcp_epoll.h>

enum { EVENTS = 256, REQUEST = 2048, HEAD = 128, FILES = 256, CORES = 64, BACKLOG = 4096 };

// A file, and the whole answer that it is.
struct file {
    char *name, *answer;
    size_t head, len;
};

// What a connection has asked for, and how much of the answer is gone.
struct conversation {
    char request[REQUEST];
    size_t heard, said, len;
    const struct file *file;
    int last;
};

static struct file missing = {NULL, (char *)"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 45, 45};
static struct file refused = {NULL, (char *)"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n", 54, 54};
static struct file files[FILES];
static int count;
static struct mtcp_conf conf;
static volatile sig_atomic_t ended;

static void end(int number)
{
    ended = number;
}

static void fail(const char *what)
{
    fprintf(stderr, "epoll_server: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void load(const char *directory)
{
    struct dirent **entries;
    int all = scandir(directory, &entries, NULL, alphasort);
    if (all < 0 || chdir(directory) < 0)
        fail(directory);
    for (int at = 0; at < all && count < FILES; at++) {
        struct file *file = &files[count];
        struct stat about;
        file->name = entries[at]->d_name;
        if (stat(file->name, &about) < 0 || !S_ISREG(about.st_mode))
            continue;
        size_t len = (size_t)about.st_size;
        FILE *from = fopen(file->name, "rb");
        if (!from || !(file->answer = malloc(HEAD + len)))
            fail(file->name);
        file->head = (size_t)snprintf(file->answer, HEAD, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", len);
        file->len = file->head + fread(file->answer + file->head, 1, len, from);
        fclose(from);
        count++;
    }
}

static const struct file *find(const char *name, size_t len)
{
    if (len == 0)
        return find("index.html", 10);
    for (int at = 0; at < count; at++)
        if (strlen(files[at].name) == len && !memcmp(files[at].name, name, len))
            return &files[at];
    return &missing;
}

static void watch(mctx_t mctx, int set, int operation, int sockid, uint32_t events)
{
    struct mtcp_epoll_event event = {events, {.sockid = sockid}};
    if (mtcp_epoll_ctl(mctx, set, operation, sockid, &event) < 0)
        fail("mtcp_epoll_ctl");
}

// Takes the request in front of what was heard. Returns 0 when it is not all there.
static int understand(struct conversation *with)
{
    with->request[with->heard] = 0;
    char *after = strstr(with->request, "\r\n\r\n");
    int head = !strncmp(with->request, "HEAD /", 6), get = !strncmp(with->request, "GET /", 5);
    const char *name = with->request + (head ? 6 : 5);
    if (!after)
        return 0;
    *after = 0;
    with->last = strstr(with->request, "HTTP/1.0") || strcasestr(with->request, "connection: close");
    with->file = head || get ? find(name, strcspn(name, " ?\r\n")) : &refused;
    with->len = head ? with->file->head : with->file->len;
    with->said = 0;
    // The next request may be there already.
    with->heard -= (size_t)(after + 4 - with->request);
    memmove(with->request, after + 4, with->heard);
    return 1;
}

// Goes on with a conversation as far as it goes. Returns 0 when it is over.
static int converse(mctx_t mctx, int set, int sockid, struct conversation *with)
{
    for (;;) {
        while (with->said < with->len) {
            ssize_t len = mtcp_write(mctx, sockid, with->file->answer + with->said, with->len - with->said);
            if (len < 0 && errno != EAGAIN)
                return 0;
            watch(mctx, set, MTCP_EPOLL_CTL_MOD, sockid, len < 0 ? MTCP_EPOLLOUT : MTCP_EPOLLIN);
            if (len < 0)
                return 1;
            with->said += (size_t)len;
        }
        if (with->file && with->last)
            return 0;
        if (understand(with))
            continue;
        // No room for more of it is the end, too.
        ssize_t len = mtcp_read(mctx, sockid, with->request + with->heard, REQUEST - 1 - with->heard);
        if (len <= 0)
            return len < 0 && errno == EAGAIN;
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
    struct mtcp_epoll_event events[EVENTS];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(80)};
    int set = mtcp_epoll_create(mctx, EVENTS), listener = mtcp_socket(mctx, AF_INET, SOCK_STREAM, 0);
    if (!conversations || set < 0 || listener < 0 || mtcp_setsock_nonblock(mctx, listener) < 0 ||
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
            int sockid = events[at].data.sockid, is_new = sockid == listener;
            if (!is_new && !converse(mctx, set, sockid, &conversations[sockid]))
                mtcp_close(mctx, sockid);
            while (is_new && (sockid = mtcp_accept(mctx, listener, NULL, NULL)) >= 0) {
                memset(&conversations[sockid], 0, sizeof *conversations);
                mtcp_setsock_nonblock(mctx, sockid);
                watch(mctx, set, MTCP_EPOLL_CTL_ADD, sockid, MTCP_EPOLLIN);
            }
        }
    }
    mtcp_destroy_context(mctx);
    free(conversations);
    return NULL;
}

int main(int words, char **word)
{
    if (words != 3) {
        fprintf(stderr, "usage: %s CONFIGURATION DIRECTORY\n", word[0]);
        return 2;
    }
    if (mtcp_init(word[1]) < 0)
        fail(word[1]);
    load(word[2]);
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
}
