/* Threads, handlers and children that do whatever comes to each other's descriptors. Every call may fail; the process may not. */
#include "harness.h"
#include <sys/time.h>

enum { THREADS = 4, PLACES = 48, STEPS = 12000, PORT = 9300 };

static volatile int places[PLACES];
static volatile int listener = -1;

static uint32_t next(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Puts a descriptor in a place; what was there is closed by whoever finds it. */
static void put(int place, int fd)
{
    int before = __sync_lock_test_and_set(&places[place], fd);
    if (before >= 0)
        close(before);
}

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(fd, (struct sockaddr *)&address, sizeof address);
    return fd;
}

static void step(uint32_t *state)
{
    static char bytes[70000];
    int place = next(state) % PLACES, fd = places[place], other = places[next(state) % PLACES];
    size_t length = next(state) % (next(state) % 8 ? 200 : sizeof bytes);
    struct epoll_event events[8], event = { .events = EPOLLIN | EPOLLOUT | (next(state) & EPOLLET), .data.fd = fd };
    struct pollfd polled[2] = { { .fd = fd, .events = POLLIN }, { .fd = other, .events = POLLIN | POLLOUT } };
    struct linger linger = { 1, 0 };
    switch (next(state) % 16) {
    case 0:
    case 1:
        put(place, dial());
        break;
    case 2:
    case 3:
        put(place, accept4(listener, NULL, NULL, SOCK_NONBLOCK));
        break;
    case 4:
        put(place, epoll_create1(EPOLL_CLOEXEC));
        break;
    case 5:
    case 6:
        epoll_ctl(fd, 1 + next(state) % 3, other, &event);
        break;
    case 7:
        epoll_wait(fd, events, 8, next(state) % 2);
        break;
    case 8:
    case 9:
        send(fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    case 10:
    case 11:
        recv(fd, bytes, length, MSG_DONTWAIT);
        break;
    case 12:
        poll(polled, 2, next(state) % 2);
        break;
    case 13:
        put(place, dup(other));
        break;
    case 14:
        if (next(state) % 4 == 0)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        shutdown(fd, next(state) % 3);
        break;
    case 15:
        put(place, -1);
        break;
    }
}

static void *torment(void *seed)
{
    uint32_t state = (uint32_t)(uintptr_t)seed;
    for (int i = 0; i < STEPS; i++)
        step(&state);
    return NULL;
}

static void interrupt(int signal)
{
    (void)signal;
    static uint32_t state = 77;
    int before = errno;
    step(&state);
    errno = before;
}

static void run_threads(uint32_t seed)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(torment, (void *)(uintptr_t)(seed * THREADS + i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void listen_for_torment(void)
{
    for (int i = 0; i < PLACES; i++)
        places[i] = -1;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EQUAL(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
    EQUAL(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(listen(listener, 64), 0);
}

static void end_torment(void)
{
    for (int i = 0; i < PLACES; i++)
        put(i, -1);
    close(listener);
    /* It still works. */
    struct pair pair = make_pair();
    write_all(pair.far, "x", 1);
    char byte;
    read_all(pair.near, &byte, 1);
    close_pair(&pair);
}

STATEMENT(p6_threads_do_anything_to_each_others_descriptors)
{
    listen_for_torment();
    run_threads(1);
    end_torment();
}

STATEMENT(p6_signal_handlers_do_anything_in_the_middle_of_calls)
{
    listen_for_torment();
    struct sigaction action = { .sa_handler = interrupt, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &often, NULL);
    run_threads(2);
    setitimer(ITIMER_REAL, &never, NULL);
    end_torment();
}

static void *breed(void *unused)
{
    (void)unused;
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            uint32_t state = i + 1;
            for (int step_of = 0; step_of < 200; step_of++)
                step(&state);
            _exit(0);
        }
        int status;
        EQUAL(waitpid(child, &status, 0), child);
        EQUAL(status, 0);
    }
    return NULL;
}

STATEMENT(p5_children_do_anything_while_threads_do)
{
    listen_for_torment();
    pthread_t breeder = start_thread(breed, NULL);
    run_threads(3);
    pthread_join(breeder, NULL);
    end_torment();
}
