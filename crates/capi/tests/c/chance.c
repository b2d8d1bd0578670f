// Calls by chance, from seeds: in any order, with descriptors that are open, closed, of the other stack or nobody's. Whatever they return, memory stays sound (the address
// sanitizer and valgrind watch) and nothing happens that nobody has thought of.
#include <fcntl.h>

#include "check.h"

enum { HELD = 24, ROUNDS = 20000, SEEDS = 8 };

static uint64_t state;

static uint32_t chance(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static int held[HELD], sets[2];

static int any(void)
{
    return chance(30) ? held[chance(HELD)] : (int)chance(1u << 30);
}

// A set, more often than not.
static int any_set(void)
{
    return chance(4) ? sets[chance(2)] : any();
}

static void hold(int fd)
{
    if (fd > 0)
        held[chance(HELD)] = fd;
}

// A connection, so that there is something to go wrong.
static void connect_them(struct pair *pair, int port)
{
    struct sockaddr_in address = at("10.0.0.2", port);
    mr_stack_use(pair->stacks[1]);
    int listener = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (mr_bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && mr_listen(listener, 2) == 0) {
        mr_stack_use(pair->stacks[0]);
        int client = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        mr_connect(client, (struct sockaddr *)&address, sizeof address);
        run(pair, 1);
        hold(mr_accept4(listener, NULL, NULL, chance(4) ? SOCK_NONBLOCK : 0));
        hold(client);
    }
    hold(listener);
}

static void call(struct pair *pair)
{
    static char buffer[4096];
    struct sockaddr_in address = at(chance(2) ? "10.0.0.1" : "10.0.0.2", (int)(80 + chance(4)));
    struct iovec pieces[3] = {{buffer, chance(500)}, {buffer + 100, chance(500)}, {buffer + 1000, chance(3000)}};
    struct epoll_event events[4];
    socklen_t len = sizeof address;
    size_t some = chance(sizeof buffer);
    uint64_t wait;
    int value = (int)chance(3), fd = any();
    memset(events, 0, sizeof events);
    events[0].events = chance(8) ? chance(64) | chance(2) * (uint32_t)EPOLLET | !chance(4) * (uint32_t)EPOLLONESHOT : chance(1u << 31);
    switch (chance(37)) {
    case 0: mr_stack_use(pair->stacks[chance(2)]); break;
    case 1: mr_read(fd, buffer, some); break;
    case 2: mr_write(fd, buffer, some); break;
    case 3: if (!chance(8)) hold(mr_socket(AF_INET, (chance(2) ? SOCK_DGRAM : SOCK_STREAM) | (chance(2) ? SOCK_NONBLOCK : 0), 0)); break;
    case 4: if (!chance(8)) hold(mr_epoll_create(0)); break;
    case 5: if (!chance(8)) mr_close(fd); break;
    case 6: if (!chance(8)) mr_abort(fd); break;
    case 7: case 8: mr_bind(fd, (struct sockaddr *)&address, len); break;
    case 9: case 10: mr_listen(fd, (int)chance(8) - 1); break;
    case 11: case 12: hold(mr_accept(fd, (struct sockaddr *)&address, &len)); break;
    case 13: case 14: case 15: mr_connect(fd, (struct sockaddr *)&address, len); break;
    case 16: if (!chance(8)) mr_shutdown(fd, value); break;
    case 17: case 18: mr_read(fd, buffer, some); break;
    case 19: case 20: mr_write(fd, buffer, some); break;
    case 21: mr_recv(fd, buffer, some, (int)chance(512)); break;
    case 22: mr_sendto(fd, buffer, some, 0, (struct sockaddr *)&address, len); break;
    case 23: mr_readv(fd, pieces, (int)chance(4)); break;
    case 24: mr_writev(fd, pieces, (int)chance(4)); break;
    case 25: {
        ssize_t shown = mr_peek(fd, pieces);
        // Every byte that is shown can be read.
        for (int which = 0; shown > 0 && which < 2; which++)
            for (size_t at = 0; at < pieces[which].iov_len; at++)
                value += ((char *)pieces[which].iov_base)[at];
        mr_consume(fd, shown > 0 ? chance((uint32_t)shown + 2) : some);
        break;
    }
    case 26: {
        ssize_t room = mr_reserve(fd, some, pieces);
        for (int which = 0; room > 0 && which < 2; which++)
            if (pieces[which].iov_len)
                memset(pieces[which].iov_base, value, pieces[which].iov_len);
        if (!chance(4))
            mr_read(any(), buffer, 10);
        mr_commit(fd, chance((uint32_t)(room > 0 ? room : 1) + 2));
        break;
    }
    case 27: case 28: mr_epoll_ctl(any_set(), (int)chance(4), fd, events); break;
    case 29: mr_epoll_wait(any_set(), events, (int)chance(5), chance(2) ? 0 : -1); break;
    case 30: mr_setsockopt(fd, (int)chance(7), (int)chance(50), &value, sizeof value); break;
    case 31: mr_getsockopt(fd, (int)chance(7), (int)chance(50), buffer, (len = chance(40), &len)); break;
    case 32: mr_fcntl(fd, chance(2) ? F_GETFL : F_SETFL, chance(2) ? O_NONBLOCK : 0); break;
    case 33: {
        int ends[2];
        if (!chance(8) && mr_pipe(ends, chance(2) ? O_NONBLOCK : 0) == 0)
            hold(ends[0]), hold(ends[1]);
        break;
    }
    case 34: mr_getpeername(fd, (struct sockaddr *)&address, &len); break;
    case 36: if (!chance(4)) connect_them(pair, 1000 + (int)chance(60000)); break;
    case 35: mr_stack_deadline(pair->stacks[chance(2)], &wait); break;
    }
}

void test_chance(void)
{
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        struct pair pair;
        state = seed;
        memset(held, 0, sizeof held);
        pair_open(&pair);
        for (int which = 0; which < 2; which++) {
            CHECK(mr_stack_use(pair.stacks[which]) == 0);
            sets[which] = mr_epoll_create(0);
        }
        for (int round = 0; round < ROUNDS; round++) {
            errno = 0;
            call(&pair);
            if (errno == ENOTRECOVERABLE)
                fprintf(stderr, "seed %u, round %d\n", seed, round);
            CHECK(errno != ENOTRECOVERABLE);
            pair.lose = chance(20) ? 0 : 1;
            if (!chance(4))
                run(&pair, chance(40) ? 1 : 3000);
        }
        pair_close(&pair);
    }
}
