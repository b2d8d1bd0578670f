// Does to every descriptor that the engine has given it what would make a write or a read of the
// engine's wait, or would lose a ring: clears O_NONBLOCK, fills counters, empties counters.
// Its sockets are served on all the while. Argument: fill or drain.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 256 };

static int watched;

// Past the shim, which would refuse to touch what is its own.
static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static void *wait_for_ever(void *unused) {
    struct epoll_event event;
    while (epoll_wait(watched, &event, 1, -1) >= 0)
        ;
    return unused;
}

// The descriptors of eventfds, and of epoll sets, of this process.
static int find(int *found) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[300], target[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) <= 0)
            continue;
        int ours = strstr(target, "[eventfd]") || strstr(target, "[eventpoll]");
        if (ours && atoi(entry->d_name) != watched && count < MOST)
            found[count++] = atoi(entry->d_name);
    }
    if (directory)
        closedir(directory);
    return count;
}

static unsigned long counter(int fd) {
    char path[64], line[512];
    unsigned long value = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "eventfd-count: %lx", &value);
    if (file)
        fclose(file);
    return value;
}

static void fill(int fd) {
    unsigned long most = 0xfffffffffffffffeul;
    unsigned long rest = most - counter(fd);
    if (rest == 0)
        return;
    raw(SYS_fcntl, fd, F_SETFL, O_NONBLOCK);
    raw(SYS_write, fd, (long)&rest, sizeof rest);
    raw(SYS_fcntl, fd, F_SETFL, 0);
}

static void drain(int fd) {
    unsigned long count;
    struct epoll_event event;
    raw(SYS_fcntl, fd, F_SETFL, O_NONBLOCK);
    raw(SYS_read, fd, (long)&count, sizeof count);
    syscall(SYS_epoll_wait, fd, &event, 1, 0);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(9999)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 50)) {
        perror("listening");
        return 1;
    }
    watched = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    epoll_ctl(watched, EPOLL_CTL_ADD, listener, &event);
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_ever, NULL);
    struct pollfd one = {.fd = listener, .events = POLLIN};
    poll(&one, 1, 10);
    int found[MOST], count = find(found);
    printf("ready: %d descriptors\n", count);
    fflush(stdout);
    for (;;)
        for (int at = 0; at < count; at++)
            if (!strcmp(argv[1], "fill"))
                fill(found[at]);
            else
                drain(found[at]);
}
