/* What the statements are made of. */
#include "harness.h"
#include <sys/prctl.h>
#include <sys/syscall.h>

bool is_loopback = true;
bool near_connects;
const char *near_name = "127.0.0.1", *far_name;
volatile sig_atomic_t signals_seen;

void broken(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: not so: %s (errno %s)\n", file, line, condition, strerrorname_np(errno));
    exit(1);
}

void unequal(const char *file, int line, const char *what, long long got, long long expected)
{
    fprintf(stderr, "%s:%d: %s is %lld, not %lld (errno %s)\n", file, line, what, got, expected, strerrorname_np(errno));
    exit(1);
}

static const char *name_of(int number)
{
    return number ? strerrorname_np(number) : "none";
}

void did_not_fail(const char *file, int line, const char *call, long long result, int got, int expected)
{
    fprintf(stderr, "%s:%d: %s gives %lld and %s, not -1 and %s\n", file, line, call, result, name_of(got), name_of(expected));
    exit(1);
}

static struct sockaddr_in address_of(const char *name, int port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    CHECK(inet_pton(AF_INET, name, &address.sin_addr) == 1);
    return address;
}

struct sockaddr_in near_address(int port)
{
    return address_of(near_name, port);
}

struct sockaddr_in far_address(int port)
{
    return address_of(is_loopback ? near_name : far_name, port);
}

/* Asks the kernel without any library: what is made this way never reaches the stack under test but over the link. */
static long kernel(long number, long a, const void *b, const void *c)
{
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
#else
    return syscall(number, a, b, c);
#endif
}

/* A socket of the far end on the kernel, at this address; tells its port. */
static int bound_far(long type, struct sockaddr_in *address)
{
    int fd = kernel(SYS_socket, AF_INET, (void *)(type | SOCK_CLOEXEC), 0);
    CHECK(fd >= 0);
    EQUAL(kernel(SYS_bind, fd, address, (void *)sizeof *address), 0);
    socklen_t length = sizeof *address;
    EQUAL(kernel(SYS_getsockname, fd, address, &length), 0);
    return fd;
}

int socket_far(void)
{
    if (!is_loopback) {
        struct sockaddr_in address = far_address(0);
        return bound_far(SOCK_STREAM, &address);
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    return fd;
}

int connect_far(const struct sockaddr_in *address)
{
    int fd = socket_far();
    if (is_loopback)
        EQUAL(connect(fd, (const struct sockaddr *)address, sizeof *address), 0);
    else
        EQUAL(kernel(SYS_connect, fd, address, (void *)sizeof *address), 0);
    return fd;
}

int start_connect_far(const struct sockaddr_in *address)
{
    int fd = socket_far();
    set_blocking(fd, false);
    if (is_loopback)
        FAILS(connect(fd, (const struct sockaddr *)address, sizeof *address), EINPROGRESS);
    else
        FAILS(kernel(SYS_connect, fd, address, (void *)sizeof *address), EINPROGRESS);
    return fd;
}

int listen_near(struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    *address = near_address(0);
    EQUAL(bind(fd, (struct sockaddr *)address, sizeof *address), 0);
    EQUAL(listen(fd, 128), 0);
    socklen_t length = sizeof *address;
    EQUAL(getsockname(fd, (struct sockaddr *)address, &length), 0);
    return fd;
}

int listen_far(struct sockaddr_in *address)
{
    if (is_loopback)
        return listen_near(address);
    *address = far_address(0);
    int fd = bound_far(SOCK_STREAM, address);
    EQUAL(kernel(SYS_listen, fd, (void *)128, NULL), 0);
    return fd;
}

int accept_far(int listener)
{
    int fd = is_loopback ? accept(listener, NULL, NULL) : kernel(SYS_accept, listener, NULL, NULL);
    CHECK(fd >= 0);
    return fd;
}

struct pair accepted_pair(void)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    struct pair pair;
    pair.far = connect_far(&address);
    pair.near = accept(listener, NULL, NULL);
    CHECK(pair.near >= 0);
    EQUAL(close(listener), 0);
    return pair;
}

struct pair connected_pair(void)
{
    struct sockaddr_in address;
    int listener = listen_far(&address);
    struct pair pair;
    pair.near = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(pair.near >= 0);
    EQUAL(connect(pair.near, (struct sockaddr *)&address, sizeof address), 0);
    pair.far = accept_far(listener);
    EQUAL(close(listener), 0);
    return pair;
}

struct pair make_pair(void)
{
    return near_connects ? connected_pair() : accepted_pair();
}

void close_pair(struct pair *pair)
{
    EQUAL(close(pair->near), 0);
    EQUAL(close(pair->far), 0);
}

int datagram_near(struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0);
    *address = near_address(0);
    EQUAL(bind(fd, (struct sockaddr *)address, sizeof *address), 0);
    socklen_t length = sizeof *address;
    EQUAL(getsockname(fd, (struct sockaddr *)address, &length), 0);
    return fd;
}

int datagram_far(struct sockaddr_in *address)
{
    if (is_loopback)
        return datagram_near(address);
    *address = far_address(0);
    return datagram_far_at(address);
}

int datagram_far_at(struct sockaddr_in *address)
{
    return bound_far(SOCK_DGRAM, address);
}

struct pair datagram_pair(void)
{
    struct sockaddr_in near, far;
    struct pair pair;
    pair.near = datagram_near(&near);
    pair.far = datagram_far(&far);
    EQUAL(connect(pair.near, (struct sockaddr *)&far, sizeof far), 0);
    EQUAL(connect(pair.far, (struct sockaddr *)&near, sizeof near), 0);
    /* Who is not known yet as a neighbour gets only the last of a burst. */
    char byte;
    EQUAL(send(pair.near, "?", 1, 0), 1);
    wait_for(pair.far, POLLIN);
    EQUAL(recv(pair.far, &byte, 1, 0), 1);
    EQUAL(send(pair.far, "!", 1, 0), 1);
    wait_for(pair.near, POLLIN);
    EQUAL(recv(pair.near, &byte, 1, 0), 1);
    return pair;
}

void set_blocking(int fd, bool blocking)
{
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0);
    EQUAL(fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK), 0);
}

void wait_for(int fd, short events)
{
    struct pollfd watched = { .fd = fd, .events = events };
    /* The kernel takes a reset in steps: the error shows a moment before the end of the stream. millrace does not. */
    const bool only_ours = getenv("MILLRACE_ENGINE") && !far_name;
    int count, looks = only_ours ? 100 : 0;
    do {
        if (looks > 0 && looks < 100)
            pause_ms(1);
        count = poll(&watched, 1, 10 * 1000);
    } while ((count < 0 && errno == EINTR)
             || (count == 1 && watched.revents & POLLERR && !(watched.revents & events) && looks++ < 100));
    EQUAL(count, 1);
    CHECK(watched.revents & events);
}

void write_all(int fd, const void *data, size_t length)
{
    while (length > 0) {
        ssize_t count = write(fd, data, length);
        if (count < 0 && errno == EAGAIN) {
            wait_for(fd, POLLOUT);
            continue;
        }
        if (count < 0 && errno == EINTR)
            continue;
        CHECK(count > 0);
        data = (const char *)data + count;
        length -= count;
    }
}

void read_all(int fd, void *data, size_t length)
{
    while (length > 0) {
        ssize_t count = read(fd, data, length);
        if (count < 0 && errno == EAGAIN) {
            wait_for(fd, POLLIN);
            continue;
        }
        if (count < 0 && errno == EINTR)
            continue;
        CHECK(count > 0);
        data = (char *)data + count;
        length -= count;
    }
}

size_t fill_up(int fd)
{
    static char block[65536];
    size_t written = 0;
    set_blocking(fd, false);
    /* Receivers make room by and by: full is what stays full. */
    for (int still = 0; still < 10; still++) {
        ssize_t count;
        while ((count = write(fd, block, sizeof block)) > 0) {
            written += count;
            still = 0;
        }
        EQUAL(errno, EAGAIN);
        pause_ms(20);
    }
    set_blocking(fd, true);
    return written;
}

void expect_end(int fd)
{
    char byte;
    wait_for(fd, POLLIN);
    EQUAL(read(fd, &byte, 1), 0);
}

static unsigned char byte_at(uint64_t at)
{
    uint64_t mixed = (at + 1) * 0x9e3779b97f4a7c15u;
    return mixed >> 56 ^ mixed >> 24;
}

void fill(void *data, size_t length, uint64_t at)
{
    for (size_t i = 0; i < length; i++)
        ((unsigned char *)data)[i] = byte_at(at + i);
}

bool matches(const void *data, size_t length, uint64_t at)
{
    for (size_t i = 0; i < length; i++)
        if (((const unsigned char *)data)[i] != byte_at(at + i))
            return false;
    return true;
}

pid_t fork_child(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

pthread_t start_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    EQUAL(pthread_create(&thread, NULL, body, argument), 0);
    return thread;
}

void pause_ms(int milliseconds)
{
    struct timespec left = { milliseconds / 1000, milliseconds % 1000 * 1000000L };
    while (nanosleep(&left, &left) < 0)
        CHECK(errno == EINTR);
}

long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void on_signal(int signal)
{
    (void)signal;
    signals_seen++;
}

void count_signal(int signal, int flags)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
    EQUAL(sigaction(signal, &action, NULL), 0);
}

struct pester {
    pthread_t target, thread;
    int signal, milliseconds;
    volatile bool stop;
};

static void *pester_thread(void *argument)
{
    struct pester *pester = argument;
    while (!pester->stop) {
        pause_ms(pester->milliseconds);
        if (!pester->stop)
            pthread_kill(pester->target, pester->signal);
    }
    return NULL;
}

struct pester *pester_me(int signal, int milliseconds)
{
    struct pester *pester = calloc(1, sizeof *pester);
    CHECK(pester);
    pester->target = pthread_self();
    pester->signal = signal;
    pester->milliseconds = milliseconds;
    pester->thread = start_thread(pester_thread, pester);
    return pester;
}

void stop_pestering(struct pester *pester)
{
    pester->stop = true;
    pthread_join(pester->thread, NULL);
    free(pester);
}
