// Every test, or those that are named.
#include "check.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"chance", test_chance},     {"connections", test_connections}, {"datagrams", test_datagrams},
    {"events", test_events},     {"lending", test_lending},         {"messages", test_messages},
    {"misuse", test_misuse},     {"options", test_options},         {"packets", test_packets},
    {"refusals", test_refusals}, {"threads", test_threads},         {"waiting", test_waiting},
};

static void open_one(struct pair *pair, int which, const char *address)
{
    int engine = mr_engine_new();
    CHECK(engine > 0);
    CHECK(mr_engine_set(engine, "link", "packets") == 0);
    CHECK(mr_engine_set(engine, "clock", "caller") == 0);
    CHECK(mr_engine_set(engine, "address", address) == 0);
    CHECK(mr_engine_start(engine) == 0);
    pair->stacks[which] = mr_stack_open(engine, 0);
    CHECK(pair->stacks[which] > 0);
    CHECK(mr_engine_close(engine) == 0);
}

void pair_open(struct pair *pair)
{
    memset(pair, 0, sizeof *pair);
    pair->now = 1000000000;
    open_one(pair, 0, "10.0.0.1/24");
    open_one(pair, 1, "10.0.0.2/24");
    run(pair, 0);
}

void pair_close(struct pair *pair)
{
    CHECK(mr_stack_close(pair->stacks[0], 0) == 0);
    CHECK(mr_stack_close(pair->stacks[1], 0) == 0);
}

void carry(struct pair *pair)
{
    unsigned char packet[2048];
    int moved;
    do {
        moved = 0;
        for (int from = 0; from < 2; from++) {
            ssize_t len;
            while ((len = mr_stack_output(pair->stacks[from], packet, sizeof packet)) > 0) {
                moved = 1;
                if (pair->lose > 0)
                    pair->lose--;
                else
                    CHECK(mr_stack_input(pair->stacks[!from], packet, (size_t)len) == 0);
            }
            CHECK(len == 0);
        }
    } while (moved);
}

void run(struct pair *pair, int ms)
{
    uint64_t end = pair->now + (uint64_t)ms * 1000000;
    for (;;) {
        uint64_t next = end;
        for (int which = 0; which < 2; which++) {
            uint64_t wait;
            CHECK(mr_stack_poll_at(pair->stacks[which], pair->now) >= 0);
            int timer = mr_stack_deadline(pair->stacks[which], &wait);
            CHECK(timer >= 0);
            if (timer == 1 && pair->now + wait < next)
                next = pair->now + wait;
        }
        carry(pair);
        if (pair->now >= end)
            return;
        // A deadline that has come and moves nothing must not stop the time.
        pair->now = next > pair->now ? next : pair->now + 1000;
    }
}

struct sockaddr_in at(const char *address, int port)
{
    struct sockaddr_in result;
    memset(&result, 0, sizeof result);
    result.sin_family = AF_INET;
    result.sin_port = htons((uint16_t)port);
    CHECK(inet_pton(AF_INET, address, &result.sin_addr) == 1);
    return result;
}

void connected(struct pair *pair, int ends[2])
{
    struct sockaddr_in server = at("10.0.0.2", 80), peer;
    socklen_t len = sizeof peer;
    CHECK(mr_stack_use(pair->stacks[1]) == 0);
    int listener = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int on = 1;
    CHECK(mr_setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(mr_bind(listener, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(mr_listen(listener, 10) == 0);
    FAILS(mr_accept(listener, NULL, NULL), EAGAIN);
    CHECK(mr_stack_use(pair->stacks[0]) == 0);
    ends[0] = mr_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_TCP);
    FAILS(mr_connect(ends[0], (struct sockaddr *)&server, sizeof server), EINPROGRESS);
    FAILS(mr_connect(ends[0], (struct sockaddr *)&server, sizeof server), EALREADY);
    run(pair, 1);
    CHECK(mr_connect(ends[0], (struct sockaddr *)&server, sizeof server) == 0);
    FAILS(mr_connect(ends[0], (struct sockaddr *)&server, sizeof server), EISCONN);
    ends[1] = mr_accept4(listener, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK);
    CHECK(ends[1] > 0 && len == sizeof peer && peer.sin_addr.s_addr == htonl(0x0a000001));
    CHECK(mr_close(listener) == 0);
}

int main(int count, char **names)
{
    for (size_t at = 0; at < sizeof tests / sizeof *tests; at++) {
        int wanted = count < 2;
        for (int name = 1; name < count; name++)
            wanted |= !strcmp(names[name], tests[at].name);
        if (wanted) {
            tests[at].run();
            printf("%s: good\n", tests[at].name);
        }
    }
    return 0;
}
