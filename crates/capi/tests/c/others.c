// Datagrams, options, packets that are none, and threads.
#include <pthread.h>
#include <unistd.h>

#include "check.h"

void test_datagrams(void)
{
    struct pair pair;
    struct sockaddr_in server = at("10.0.0.2", 53), client = at("10.0.0.1", 0), from;
    socklen_t len = sizeof client;
    char buffer[2000];
    pair_open(&pair);
    CHECK(mr_stack_use(pair.stacks[1]) == 0);
    int there = mr_socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    CHECK(mr_bind(there, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(mr_stack_use(pair.stacks[0]) == 0);
    int here = mr_socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, IPPROTO_UDP);
    FAILS(mr_send(here, "x", 1, 0), EDESTADDRREQ);
    CHECK(mr_sendto(here, "where?", 6, 0, (struct sockaddr *)&server, sizeof server) == 6);
    CHECK(mr_sendto(here, NULL, 0, 0, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(mr_getsockname(here, (struct sockaddr *)&client, &len) == 0 && client.sin_port != 0);
    run(&pair, 1);
    len = sizeof from;
    CHECK(mr_recvfrom(there, buffer, 3, MSG_TRUNC, (struct sockaddr *)&from, &len) == 6);
    CHECK(!memcmp(buffer, "whe", 3) && from.sin_port == client.sin_port && len == sizeof from);
    CHECK(mr_recvfrom(there, buffer, sizeof buffer, 0, NULL, NULL) == 0);
    FAILS(mr_recvfrom(there, buffer, sizeof buffer, 0, NULL, NULL), EAGAIN);
    CHECK(mr_connect(here, (struct sockaddr *)&server, sizeof server) == 0);
    struct iovec pieces[2] = {{(void *)"he", 2}, {(void *)"re", 2}};
    CHECK(mr_sendto(there, "here", 4, 0, (struct sockaddr *)&from, len) == 4);
    CHECK(mr_writev(here, pieces, 2) == 4);
    run(&pair, 1);
    pieces[0].iov_base = buffer, pieces[0].iov_len = 1;
    pieces[1].iov_base = buffer + 100, pieces[1].iov_len = 100;
    CHECK(mr_readv(here, pieces, 2) == 4 && buffer[0] == 'h' && !memcmp(buffer + 100, "ere", 3));
    CHECK(mr_read(there, buffer, sizeof buffer) == 4);
    FAILS(mr_listen(here, 1), EOPNOTSUPP);
    FAILS(mr_accept(here, NULL, NULL), EOPNOTSUPP);
    FAILS(mr_peek(here, pieces), EOPNOTSUPP);
    FAILS(mr_send(here, buffer, 70000, 0), EMSGSIZE);
    // Nobody is there: what ICMP says is the error of the next call.
    CHECK(mr_close(there) == 0);
    CHECK(mr_write(here, "x", 1) == 1);
    run(&pair, 1);
    FAILS(mr_read(here, buffer, 1), ECONNREFUSED);
    pair_close(&pair);
}

void test_options(void)
{
    struct pair pair;
    int ends[2], value = 0;
    socklen_t len = sizeof value;
    pair_open(&pair);
    connected(&pair, ends);
    static const struct {
        int level, name, value;
    } numbers[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},      {IPPROTO_TCP, TCP_CORK, 1},       {IPPROTO_TCP, TCP_KEEPIDLE, 33},
        {IPPROTO_TCP, TCP_KEEPINTVL, 34},   {IPPROTO_TCP, TCP_KEEPCNT, 35},   {IPPROTO_TCP, TCP_USER_TIMEOUT, 36},
        {IPPROTO_TCP, TCP_SYNCNT, 3},       {SOL_SOCKET, SO_KEEPALIVE, 1},    {IPPROTO_IP, IP_TTL, 37},
        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 0}, {SOL_SOCKET, SO_REUSEADDR, 1},
    };
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        value = numbers[at].value;
        CHECK(mr_setsockopt(ends[0], numbers[at].level, numbers[at].name, &value, sizeof value) == 0);
        value = -5;
        len = sizeof value;
        CHECK(mr_getsockopt(ends[0], numbers[at].level, numbers[at].name, &value, &len) == 0);
        CHECK(value == numbers[at].value && len == sizeof value);
    }
    CHECK(mr_getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &value, &len) == 0 && value == SOCK_STREAM);
    CHECK(mr_getsockopt(ends[0], SOL_SOCKET, SO_DOMAIN, &value, &len) == 0 && value == AF_INET);
    CHECK(mr_getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &value, &len) == 0 && value == 0);
    char name[16] = "bbr";
    CHECK(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_CONGESTION, name, 3) == 0);
    len = sizeof name;
    CHECK(mr_getsockopt(ends[0], IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0 && !strcmp(name, "bbr"));
    FAILS(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_CONGESTION, "vegas", 5), ENOENT);
    // Unknown ones, and values that are none.
    value = 1;
    FAILS(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_MD5SIG, &value, sizeof value), ENOPROTOOPT);
    FAILS(mr_setsockopt(ends[0], 12345, 1, &value, sizeof value), ENOPROTOOPT);
    FAILS(mr_getsockopt(ends[0], SOL_SOCKET, 9999, &value, &len), ENOPROTOOPT);
    FAILS(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &value, 3), EINVAL);
    FAILS(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, NULL, sizeof value), EFAULT);
    FAILS(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &value, (socklen_t)-1), EINVAL);
    FAILS(mr_getsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &value, NULL), EFAULT);
    len = (socklen_t)-1;
    FAILS(mr_getsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &value, &len), EINVAL);
    value = 200;
    FAILS(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_KEEPCNT, &value, sizeof value), EINVAL);
    FAILS(mr_setsockopt(ends[0], IPPROTO_IPV6, IPV6_V6ONLY, &value, sizeof value), ENOPROTOOPT);
    pair_close(&pair);
}

void test_packets(void)
{
    struct pair pair;
    int ends[2];
    unsigned char packet[2048], copy[2048];
    pair_open(&pair);
    connected(&pair, ends);
    FAILS(mr_stack_output(pair.stacks[0], NULL, 10), EFAULT);
    CHECK(mr_write(ends[0], "hello", 5) == 5);
    FAILS(mr_stack_output(pair.stacks[0], packet, 20), EMSGSIZE);
    ssize_t len = mr_stack_output(pair.stacks[0], packet, sizeof packet);
    CHECK(len > 45 && packet[0] == 0x45);
    FAILS(mr_stack_input(pair.stacks[1], packet, 0), EINVAL);
    FAILS(mr_stack_input(pair.stacks[1], "\x10", 1), EINVAL);
    FAILS(mr_stack_input(pair.stacks[1], NULL, 10), EFAULT);
    FAILS(mr_stack_input(pair.stacks[1], packet, (size_t)-1), EINVAL);
    // Cut anywhere, and with any byte another: it is not taken, and nothing else happens.
    for (ssize_t cut = 1; cut < len; cut++)
        CHECK(mr_stack_input(pair.stacks[1], packet, (size_t)cut) == 0);
    for (ssize_t at = 1; at < len; at++) {
        memcpy(copy, packet, (size_t)len);
        copy[at] ^= 0xff;
        CHECK(mr_stack_input(pair.stacks[1], copy, (size_t)len) == 0);
    }
    char buffer[16];
    FAILS(mr_read(ends[1], buffer, sizeof buffer), EAGAIN);
    CHECK(mr_stack_input(pair.stacks[1], packet, (size_t)len) == 0);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 5);
    // Chance, from a seed.
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) {
        size_t some = 1 + (seed = seed * 1103515245 + 12345) / 65536 % 200;
        for (size_t at = 0; at < some; at++)
            copy[at] = (unsigned char)((seed = seed * 1103515245 + 12345) >> 16);
        copy[0] = round % 2 ? 0x45 : 0x60;
        CHECK(mr_stack_input(pair.stacks[1], copy, some) == 0);
    }
    run(&pair, 10);
    CHECK(mr_write(ends[0], "still", 5) == 5);
    run(&pair, 1000);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 5);
    pair_close(&pair);
}

struct shard {
    int engine, number, foreign, foreign_stack;
    int own, stack;
    pthread_barrier_t *meet;
};

// Each thread has a stack of its own; what is the other's is nothing here.
static void *serve(void *argument)
{
    struct shard *shard = (struct shard *)argument;
    char buffer[4];
    FAILS(mr_socket(AF_INET, SOCK_STREAM, 0), ENODEV);
    FAILS(mr_epoll_create(0), ENODEV);
    FAILS(mr_read(shard->foreign, buffer, 1), EBADF);
    FAILS(mr_stack_poll(shard->foreign_stack), EBADF);
    shard->stack = mr_stack_open(shard->engine, shard->number);
    CHECK(shard->stack > 0);
    FAILS(mr_stack_open(shard->engine, shard->number), EBUSY);
    struct sockaddr_in address = at("127.0.0.1", 80);
    int listener = mr_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(mr_bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(mr_listen(listener, 5) == 0);
    shard->own = listener;
    pthread_barrier_wait(shard->meet);
    struct shard *other = shard->number ? shard - 1 : shard + 1;
    FAILS(mr_accept(other->own, NULL, NULL), EBADF);
    FAILS(mr_close(other->own), EBADF);
    FAILS(mr_stack_close(other->stack, 0), EBADF);
    FAILS(mr_stack_use(other->stack), EBADF);
    for (int round = 0; round < 20; round++) {
        int client = mr_socket(AF_INET, SOCK_STREAM, 0);
        CHECK(mr_connect(client, (struct sockaddr *)&address, sizeof address) == 0);
        int server = mr_accept(listener, NULL, NULL);
        CHECK(mr_write(client, "ping", 4) == 4 && mr_recv(server, buffer, 4, MSG_WAITALL) == 4);
        CHECK(mr_close(client) == 0 && mr_close(server) == 0);
    }
    pthread_barrier_wait(shard->meet);
    // One ends its stack, the other its thread with the stack in it.
    if (shard->number)
        CHECK(mr_stack_close(shard->stack, 10) == 0);
    return NULL;
}

void test_threads(void)
{
    struct pair pair;
    struct shard shards[2];
    pthread_t threads[2];
    pthread_barrier_t meet;
    pair_open(&pair);
    int foreign = mr_socket(AF_INET, SOCK_STREAM, 0);
    pthread_barrier_init(&meet, NULL, 2);
    int engine = mr_engine_new();
    CHECK(mr_engine_set(engine, "shards", "2") == 0 && mr_engine_start(engine) == 0);
    for (int number = 0; number < 2; number++) {
        struct shard shard = {engine, number, foreign, pair.stacks[0], 0, 0, &meet};
        shards[number] = shard;
        CHECK(pthread_create(&threads[number], NULL, serve, &shards[number]) == 0);
    }
    for (int number = 0; number < 2; number++) {
        CHECK(pthread_join(threads[number], NULL) == 0);
        FAILS(mr_close(shards[number].own), EBADF);
        FAILS(mr_stack_poll(shards[number].stack), EBADF);
    }
    CHECK(mr_engine_close(engine) == 0);
    pthread_barrier_destroy(&meet);
    pair_close(&pair);
}
