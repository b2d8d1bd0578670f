/* TCP Fast Open: payload on the SYN. */
#include "harness.h"

/* The kernel's own end has to be allowed to open fast; ours need not. */
static void allow_fast_open(void)
{
    int fd = open("/proc/sys/net/ipv4/tcp_fastopen", O_WRONLY);
    CHECK(fd >= 0);
    EQUAL(write(fd, "3", 1), 1);
    close(fd);
}

static int syn_carried_data(int fd)
{
    struct tcp_info info = { 0 };
    socklen_t length = sizeof info;
    EQUAL(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return (info.tcpi_options & 32) != 0;
}

STATEMENT(fast_open_connects_with_the_first_write)
{
    allow_fast_open();
    struct sockaddr_in address;
    int listener = listen_far(&address), value;
    socklen_t length = sizeof value;
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &(int){ 5 }, sizeof value), 0);
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &value, &length), 0);
    EQUAL(value, 5);
    for (int round = 0; round < 3; round++) {
        int near = socket(AF_INET, SOCK_STREAM, 0);
        EQUAL(setsockopt(near, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &(int){ 1 }, sizeof value), 0);
        EQUAL(getsockopt(near, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &value, &length), 0);
        EQUAL(value, 1);
        EQUAL(connect(near, (struct sockaddr *)&address, sizeof address), 0);
        struct pollfd watched = { .fd = near, .events = POLLOUT };
        EQUAL(poll(&watched, 1, 1000), 1);
        write_all(near, "request", 7);
        int far = accept_far(listener);
        char buffer[16];
        read_all(far, buffer, 7);
        CHECK(memcmp(buffer, "request", 7) == 0);
        write_all(far, "answer", 6);
        read_all(near, buffer, 6);
        /* The first brings the cookie home, if it is not there yet. */
        CHECK(round == 0 || syn_carried_data(near));
        write_all(near, "more", 4);
        read_all(far, buffer, 4);
        close(near);
        close(far);
    }
    close(listener);
}

STATEMENT(fast_open_sends_and_connects_in_one_call)
{
    allow_fast_open();
    struct sockaddr_in address;
    int listener = listen_far(&address);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &(int){ 5 }, sizeof(int)), 0);
    for (int round = 0; round < 4; round++) {
        int near = socket(AF_INET, SOCK_STREAM, 0);
        char buffer[16];
        if (round == 1) {
            /* The second message finds a connection. */
            struct iovec piece = { "request", 7 };
            struct mmsghdr messages[2] = { 0 };
            for (int i = 0; i < 2; i++)
                messages[i].msg_hdr = (struct msghdr){
                    .msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &piece, .msg_iovlen = 1
                };
            EQUAL(sendmmsg(near, messages, 2, MSG_FASTOPEN), 1);
            EQUAL(messages[0].msg_len, 7);
        } else if (round == 0) {
            EQUAL(sendto(near, "request", 7, MSG_FASTOPEN, (struct sockaddr *)&address, sizeof address), 7);
        } else {
            set_blocking(near, false);
            struct iovec piece = { "request", 7 };
            struct msghdr message = { .msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &piece, .msg_iovlen = 1 };
            EQUAL(sendmsg(near, &message, MSG_FASTOPEN), 7);
            set_blocking(near, true);
        }
        int far = accept_far(listener);
        read_all(far, buffer, 7);
        CHECK(memcmp(buffer, "request", 7) == 0);
        write_all(far, "answer", 6);
        read_all(near, buffer, 6);
        CHECK(round == 0 || syn_carried_data(near));
        close(near);
        close(far);
    }
    close(listener);
    /* Nobody listens there any more. */
    int near = socket(AF_INET, SOCK_STREAM, 0);
    FAILS(sendto(near, "x", 1, MSG_FASTOPEN, (struct sockaddr *)&address, sizeof address), ECONNREFUSED);
    close(near);
}

STATEMENT(fast_open_accepts_with_the_syn)
{
    allow_fast_open();
    struct sockaddr_in address;
    int listener = listen_near(&address), value;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &value, &length), 0);
    EQUAL(value, 0);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &(int){ 5 }, sizeof value), 0);
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &value, &length), 0);
    EQUAL(value, 5);
    FAILS(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &(int){ -1 }, sizeof value), EINVAL);
    for (int round = 0; round < 3; round++) {
        int far = socket_far();
        EQUAL(sendto(far, "request", 7, MSG_FASTOPEN, (struct sockaddr *)&address, sizeof address), 7);
        int near = accept(listener, NULL, NULL);
        CHECK(near >= 0);
        char buffer[16];
        read_all(near, buffer, 7);
        CHECK(memcmp(buffer, "request", 7) == 0);
        write_all(near, "answer", 6);
        read_all(far, buffer, 6);
        CHECK(round == 0 || syn_carried_data(near));
        FAILS(setsockopt(near, IPPROTO_TCP, TCP_FASTOPEN, &(int){ 1 }, sizeof value), EINVAL);
        close(near);
        close(far);
    }
    close(listener);
}

/* Connects with a request on the SYN if the far end has a cookie; whether it came with the SYN. */
static int request_fast(int listener, const struct sockaddr_in *address)
{
    int far = socket_far();
    EQUAL(sendto(far, "request", 7, MSG_FASTOPEN, (const struct sockaddr *)address, sizeof *address), 7);
    int near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    char buffer[16];
    read_all(near, buffer, 7);
    CHECK(memcmp(buffer, "request", 7) == 0);
    int carried = syn_carried_data(near);
    close(near);
    close(far);
    return carried;
}

STATEMENT(fast_open_keys_may_change)
{
    allow_fast_open();
    struct sockaddr_in address;
    int listener = listen_near(&address);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &(int){ 5 }, sizeof(int)), 0);
    static const unsigned char first[16] = "first key", second[32] = "second key......first key";
    static const unsigned char third[16] = "third key";
    CHECK(memcmp(second + 16, first, 16) == 0);
    unsigned char got[64];
    socklen_t length = sizeof got;
    FAILS(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, first, 15), EINVAL);
    FAILS(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, first, 0), EINVAL);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, first, 16), 0);
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, got, &length), 0);
    EQUAL(length, 16);
    CHECK(memcmp(got, first, 16) == 0);
    request_fast(listener, &address);
    CHECK(request_fast(listener, &address));
    /* What was made with the key before is good still, and is replaced. */
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, second, 32), 0);
    length = sizeof got;
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, got, &length), 0);
    EQUAL(length, 32);
    CHECK(memcmp(got, second, 32) == 0);
    CHECK(request_fast(listener, &address));
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, second, 16), 0);
    CHECK(request_fast(listener, &address));
    /* Of another key nobody has a cookie yet. */
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, third, 16), 0);
    CHECK(!request_fast(listener, &address));
    CHECK(request_fast(listener, &address));
    close(listener);
    /* Set before there is a listener it is the listener's. */
    listener = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, third, 16), 0);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &(int){ 5 }, sizeof(int)), 0);
    address = near_address(0);
    EQUAL(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(listen(listener, 5), 0);
    length = sizeof address;
    EQUAL(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    CHECK(request_fast(listener, &address));
    length = sizeof got;
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN_KEY, got, &length), 0);
    CHECK(length == 16 && memcmp(got, third, 16) == 0);
    close(listener);
}
