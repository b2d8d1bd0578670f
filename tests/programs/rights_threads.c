// Threads that pass one connection to themselves, over and over, while others fork: it must stay open as long as any of them has it, in
// hand or in a message, and not one moment longer than that.
//   rights_threads ADDRESS THREADS ROUNDS
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(true) \
    do { \
        if (!(true)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #true, strerror(errno)); \
            _exit(1); \
        } \
    } while (0)

static int rounds;
static volatile int over;

static void give(int channel, int fd) {
    char byte = 'm';
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    CHECK(sendmsg(channel, &message, 0) == 1);
}

static int take(int channel, int flags) {
    char byte;
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fd;
    CHECK(recvmsg(channel, &message, flags | MSG_CMSG_CLOEXEC) == 1);
    CHECK(control.head.cmsg_type == SCM_RIGHTS && !(message.msg_flags & MSG_CTRUNC));
    memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    return fd;
}

static void *pass(void *of) {
    int fd = *(int *)of, pair[2];
    unsigned seed = fd;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    for (int round = 0; round < rounds; round++) {
        give(pair[0], fd);
        if (rand_r(&seed) % 4 == 0) give(pair[0], fd);
        close(fd);
        if (rand_r(&seed) % 4 == 0) close(take(pair[1], MSG_PEEK));
        fd = take(pair[1], 0);
        struct pollfd more = {pair[1], POLLIN, 0};
        if (poll(&more, 1, 0) == 1) close(take(pair[1], 0));
        // Nothing was sent, and nobody has closed it.
        char byte;
        CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    *(int *)of = fd;
    close(pair[0]);
    close(pair[1]);
    return NULL;
}

// Children that end by themselves, and some that stay a while: what is on its way is not theirs.
static void *fork_on(void *of) {
    int *children = of, count = 0;
    pid_t parent = getpid();
    while (!over && count < 40) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (int fd = 3; fd < 1024; fd++) close(fd);
            while (getppid() == parent) usleep(20000);
            _exit(0);
        }
        children[count++] = child;
        usleep(2000);
    }
    children[count] = 0;
    return NULL;
}

int main(int count, char **words) {
    CHECK(count == 4);
    int threads = atoi(words[2]), listener = socket(AF_INET, SOCK_STREAM, 0), peer = socket(AF_INET, SOCK_STREAM, 0);
    rounds = atoi(words[3]);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    CHECK(inet_pton(AF_INET, words[1], &address.sin_addr) == 1);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    CHECK(connect(peer, (struct sockaddr *)&address, len) == 0);
    int kept = accept(listener, NULL, NULL);
    CHECK(kept >= 0);
    static int fds[64], children[64];
    static pthread_t passing[64];
    pthread_t forking;
    CHECK(threads <= 64);
    for (int at = 0; at < threads; at++) CHECK((fds[at] = dup(kept)) >= 0);
    close(kept);
    CHECK(pthread_create(&forking, NULL, fork_on, children) == 0);
    for (int at = 0; at < threads; at++) CHECK(pthread_create(&passing[at], NULL, pass, &fds[at]) == 0);
    for (int at = 0; at < threads; at++) {
        CHECK(pthread_join(passing[at], NULL) == 0);
        // Each in turn is the last one, or not: it works.
        char byte = 'x';
        CHECK(send(fds[at], &byte, 1, 0) == 1 && recv(peer, &byte, 1, 0) == 1 && byte == 'x');
    }
    over = 1;
    CHECK(pthread_join(forking, NULL) == 0);
    for (int at = 0; at < threads; at++) {
        struct pollfd ended = {peer, POLLIN, 0};
        CHECK(poll(&ended, 1, 0) == 0);
        close(fds[at]);
    }
    // The children live, and have nothing.
    struct pollfd ended = {peer, POLLIN, 0};
    char byte;
    CHECK(poll(&ended, 1, 20000) == 1 && recv(peer, &byte, 1, 0) == 0);
    for (int *child = children; *child; child++) {
        kill(*child, SIGKILL);
        CHECK(waitpid(*child, NULL, 0) == *child);
    }
    puts("passed");
    return 0;
}
