/* Options: implemented or refused, never accepted and forgotten. */
#include "harness.h"
#include <ifaddrs.h>
#include <net/if.h>

/* An option that holds one integer. */
struct option {
    const char *name;
    int level, option, value;
    /* What reading it back gives; -1: something else, but no error. */
    int reads;
};

static const struct option options[] = {
    { "TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, 1, 1 },
    { "TCP_CORK", IPPROTO_TCP, TCP_CORK, 1, 1 },
    { "TCP_MAXSEG", IPPROTO_TCP, TCP_MAXSEG, 500, -1 },
    { "TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, 77, 77 },
    { "TCP_KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL, 33, 33 },
    { "TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, 5, 5 },
    { "TCP_SYNCNT", IPPROTO_TCP, TCP_SYNCNT, 4, 4 },
    { "TCP_LINGER2", IPPROTO_TCP, TCP_LINGER2, 20, 20 },
    { "TCP_DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT, 1, 1 },
    { "TCP_WINDOW_CLAMP", IPPROTO_TCP, TCP_WINDOW_CLAMP, 32768, 32768 },
    { "TCP_QUICKACK", IPPROTO_TCP, TCP_QUICKACK, 1, -1 },
    { "TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, 12345, 12345 },
    { "TCP_NOTSENT_LOWAT", IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384, 16384 },
    { "SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 1, 1 },
    { "SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 1, 1 },
    { "SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT, 1, 1 },
    { "SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, 1, 1 },
    { "SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 10, 10 },
    { "SO_PRIORITY", SOL_SOCKET, SO_PRIORITY, 3, 3 },
    { "SO_DONTROUTE", SOL_SOCKET, SO_DONTROUTE, 1, 1 },
    { "SO_MARK", SOL_SOCKET, SO_MARK, 9, 9 },
    { "SO_INCOMING_CPU", SOL_SOCKET, SO_INCOMING_CPU, 1, 1 },
    { "SO_BUSY_POLL", SOL_SOCKET, SO_BUSY_POLL, 50, 50 },
    { "IP_TOS", IPPROTO_IP, IP_TOS, 0x10, 0x10 },
    { "IP_TTL", IPPROTO_IP, IP_TTL, 33, 33 },
    { "IP_MTU_DISCOVER", IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_PMTUDISC_DO },
    { "IP_BIND_ADDRESS_NO_PORT", IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, 1 },
    { "IP_FREEBIND", IPPROTO_IP, IP_FREEBIND, 1, 1 },
};

static void implemented_or_refused(int fd)
{
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        const struct option *option = &options[i];
        int value = option->value;
        socklen_t length = sizeof value;
        errno = 0;
        if (setsockopt(fd, option->level, option->option, &value, sizeof value) < 0) {
            if (errno != ENOPROTOOPT) {
                fprintf(stderr, "%s is refused with %s, not ENOPROTOOPT\n", option->name, strerrorname_np(errno));
                exit(1);
            }
            continue;
        }
        value = -1;
        if (getsockopt(fd, option->level, option->option, &value, &length) < 0 || length != sizeof value ||
            (option->reads >= 0 && value != option->reads)) {
            fprintf(stderr, "%s was taken, but reads as %d (%s)\n", option->name, value, strerrorname_np(errno));
            exit(1);
        }
    }
}

STATEMENT(o1_options_are_implemented_or_refused)
{
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    implemented_or_refused(fresh);
    close(fresh);
    struct pair pair = make_pair();
    implemented_or_refused(pair.near);
    close_pair(&pair);
}

STATEMENT(o1_unknown_options_are_refused)
{
    struct pair pair = make_pair();
    int value = 1;
    socklen_t length = sizeof value;
    FAILS(setsockopt(pair.near, IPPROTO_TCP, 4711, &value, sizeof value), ENOPROTOOPT);
    FAILS(getsockopt(pair.near, IPPROTO_TCP, 4711, &value, &length), ENOPROTOOPT);
    FAILS(setsockopt(pair.near, SOL_SOCKET, 4711, &value, sizeof value), ENOPROTOOPT);
    FAILS(getsockopt(pair.near, SOL_SOCKET, 4711, &value, &length), ENOPROTOOPT);
    FAILS(setsockopt(pair.near, IPPROTO_IP, 4711, &value, sizeof value), ENOPROTOOPT);
    FAILS(setsockopt(pair.near, 4711, 1, &value, sizeof value), ENOPROTOOPT);
    FAILS(setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &value, 1), EINVAL);
    FAILS(setsockopt(pair.near, SOL_SOCKET, SO_KEEPALIVE, &value, 1), EINVAL);
    FAILS(setsockopt(pair.near, SOL_SOCKET, SO_TYPE, &value, sizeof value), ENOPROTOOPT);
    FAILS(setsockopt(pair.near, IPPROTO_TCP, TCP_KEEPIDLE, &(int){ 0 }, sizeof value), EINVAL);
    FAILS(setsockopt(pair.near, IPPROTO_TCP, TCP_KEEPIDLE, &(int){ 32768 }, sizeof value), EINVAL);
    FAILS(setsockopt(pair.near, IPPROTO_TCP, TCP_KEEPCNT, &(int){ 128 }, sizeof value), EINVAL);
    /* Reading into less than an integer gives what fits. */
    length = 1;
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value), 0);
    unsigned char little[4] = { 9, 9, 9, 9 };
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, little, &length), 0);
    EQUAL(length, 1);
    CHECK(little[0] == 1 && little[1] == 9);
    close_pair(&pair);
}

STATEMENT(options_pass_from_listener_to_connection)
{
    struct sockaddr_in address;
    int listener = listen_near(&address), value = 1;
    socklen_t length = sizeof value;
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value), 0);
    EQUAL(setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value), 0);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_KEEPIDLE, &(int){ 99 }, sizeof value), 0);
    int far = connect_far(&address);
    int near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    value = 0;
    EQUAL(getsockopt(near, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
    EQUAL(value, 1);
    EQUAL(getsockopt(near, SOL_SOCKET, SO_KEEPALIVE, &value, &length), 0);
    EQUAL(value, 1);
    EQUAL(getsockopt(near, IPPROTO_TCP, TCP_KEEPIDLE, &value, &length), 0);
    EQUAL(value, 99);
    close(near);
    close(far);
    close(listener);
}

/* The device by which the ends of a connection speak, as the kernel calls it; none where the kernel has each end on a device of its own. */
static const char *device_between(void)
{
    static char name[IFNAMSIZ];
    struct ifaddrs *all;
    if (is_loopback)
        return "lo";
    if (!getenv("MILLRACE_ENGINE"))
        return NULL;
    struct in_addr far = far_address(0).sin_addr;
    EQUAL(getifaddrs(&all), 0);
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        const struct sockaddr_in *address = (const struct sockaddr_in *)one->ifa_addr;
        if (address && address->sin_family == AF_INET && address->sin_addr.s_addr == far.s_addr)
            strcpy(name, one->ifa_name);
    }
    freeifaddrs(all);
    CHECK(name[0]);
    return name;
}

static void expect_device(int fd, const char *name)
{
    char got[IFNAMSIZ] = "?";
    int index = -1;
    socklen_t length = sizeof got, short_length = 4;
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, got, &length), 0);
    EQUAL(length, name ? strlen(name) + 1 : 0);
    CHECK(!name || strcmp(got, name) == 0);
    if (name)
        FAILS(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, got, &short_length), EINVAL);
    length = sizeof index;
    EQUAL(getsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &index, &length), 0);
    EQUAL(index, name ? if_nametoindex(name) : 0);
}

static int socket_of_device(int type, const char *name)
{
    int fd = socket(AF_INET, type, 0);
    expect_device(fd, NULL);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "no-such-device", 15), ENODEV);
    FAILS(setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &(int){ -1 }, sizeof(int)), EINVAL);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, strlen(name)), 0);
    expect_device(fd, name);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0), 0);
    expect_device(fd, NULL);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &(int){ if_nametoindex(name) }, sizeof(int)), 0);
    expect_device(fd, name);
    return fd;
}

STATEMENT(streams_may_be_bound_to_a_device)
{
    const char *name = device_between();
    if (!name)
        return;
    struct sockaddr_in address = near_address(0);
    socklen_t length = sizeof address;
    char byte;
    int listener = socket_of_device(SOCK_STREAM, name);
    EQUAL(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    expect_device(listener, name);
    EQUAL(listen(listener, 5), 0);
    EQUAL(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    int far = connect_far(&address), near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    expect_device(near, name);
    write_all(far, "x", 1);
    read_all(near, &byte, 1);
    close(near);
    close(far);
    close(listener);
    /* One that listens at no address hears its device as well. */
    listener = socket_of_device(SOCK_STREAM, name);
    EQUAL(listen(listener, 5), 0);
    EQUAL(getsockname(listener, (struct sockaddr *)&address, &length), 0);
    EQUAL(address.sin_addr.s_addr, INADDR_ANY);
    address.sin_addr = near_address(0).sin_addr;
    close(connect_far(&address));
    close(accept(listener, NULL, NULL));
    close(listener);
    listener = listen_far(&address);
    near = socket_of_device(SOCK_STREAM, name);
    EQUAL(connect(near, (struct sockaddr *)&address, sizeof address), 0);
    far = accept_far(listener);
    expect_device(near, name);
    write_all(near, "x", 1);
    read_all(far, &byte, 1);
    close(near);
    close(far);
    close(listener);
}

STATEMENT(datagrams_may_be_bound_to_a_device)
{
    const char *name = device_between();
    if (!name)
        return;
    struct sockaddr_in near = near_address(0), far;
    socklen_t length = sizeof near;
    char byte;
    int fd = socket_of_device(SOCK_DGRAM, name), other = datagram_far(&far);
    EQUAL(bind(fd, (struct sockaddr *)&near, sizeof near), 0);
    EQUAL(getsockname(fd, (struct sockaddr *)&near, &length), 0);
    EQUAL(connect(other, (struct sockaddr *)&near, sizeof near), 0);
    EQUAL(send(other, "?", 1, 0), 1);
    wait_for(fd, POLLIN);
    EQUAL(recv(fd, &byte, 1, 0), 1);
    expect_device(fd, name);
    close(fd);
    close(other);
    other = datagram_far(&far);
    fd = socket_of_device(SOCK_DGRAM, name);
    EQUAL(sendto(fd, "!", 1, 0, (struct sockaddr *)&far, sizeof far), 1);
    wait_for(other, POLLIN);
    EQUAL(recv(other, &byte, 1, 0), 1);
    EQUAL(connect(fd, (struct sockaddr *)&far, sizeof far), 0);
    EQUAL(send(fd, "?", 1, 0), 1);
    wait_for(other, POLLIN);
    EQUAL(recv(other, &byte, 1, 0), 1);
    close(fd);
    close(other);
    /* Another device than that of the addresses is another network, whose the socket then is. */
    if (is_loopback)
        return;
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    EQUAL(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2), 0);
    expect_device(fd, "lo");
    FAILS(bind(fd, (struct sockaddr *)&near, sizeof near), EADDRNOTAVAIL);
    near.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EQUAL(bind(fd, (struct sockaddr *)&near, sizeof near), 0);
    close(fd);
}

STATEMENT(quick_ack_is_a_push)
{
    int fresh = socket(AF_INET, SOCK_STREAM, 0), value = -1;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(fresh, IPPROTO_TCP, TCP_QUICKACK, &value, &length), 0);
    EQUAL(value, 1);
    close(fresh);
    struct pair pair = make_pair();
    for (int i = 0; i < 3; i++) {
        value = i & 1;
        EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_QUICKACK, &value, sizeof value), 0);
        value = -1;
        EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_QUICKACK, &value, &length), 0);
        EQUAL(value, i & 1);
    }
    FAILS(setsockopt(pair.near, IPPROTO_TCP, TCP_QUICKACK, &value, 1), EINVAL);
    /* The peer hears of what it sent without waiting for an answer, whatever the delay would have been. */
    int unacknowledged;
    for (int i = 0; i < 20; i++) {
        char byte = i;
        write_all(pair.far, &byte, 1);
        read_all(pair.near, &byte, 1);
        EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_QUICKACK, &(int){ 1 }, sizeof value), 0);
        do
            EQUAL(ioctl(pair.far, TIOCOUTQ, &unacknowledged), 0);
        while (unacknowledged > 0);
    }
    close_pair(&pair);
}

STATEMENT(a_pacing_rate_bounds_a_stream)
{
    struct pair pair = make_pair();
    unsigned long wide;
    unsigned narrow;
    socklen_t length = sizeof wide;
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, &wide, &length), 0);
    CHECK(length == sizeof wide && wide == ~0ul);
    wide = 1ul << 40;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, &wide, sizeof wide), 0);
    length = sizeof narrow;
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, &narrow, &length), 0);
    CHECK(length == sizeof narrow && narrow == ~0u);
    narrow = 1000000;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, &narrow, sizeof narrow), 0);
    length = sizeof wide;
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_MAX_PACING_RATE, &wide, &length), 0);
    EQUAL(wide, 1000000);
    /* More than a second's worth, less the first segments, which are not paced. */
    static char block[1500000];
    long long start = now_ms();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        write_all(pair.near, block, sizeof block);
        _exit(0);
    }
    static char received[sizeof block];
    read_all(pair.far, received, sizeof received);
    CHECK(now_ms() - start >= 200);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    close_pair(&pair);
}

STATEMENT(defer_accept_waits_for_data)
{
    struct sockaddr_in address;
    int listener = listen_near(&address), value;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &value, &length), 0);
    EQUAL(value, 0);
    /* Seconds are rounded up to what repeated SYN-ACKs take: 1, 3, 7, 15, ... */
    static const int rounded[][2] = { { 1, 1 }, { 2, 3 }, { 4, 7 }, { 60, 63 }, { 200, 247 }, { -5, 0 }, { 10, 15 } };
    for (size_t i = 0; i < sizeof rounded / sizeof rounded[0]; i++) {
        EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &rounded[i][0], sizeof value), 0);
        EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &value, &length), 0);
        EQUAL(value, rounded[i][1]);
    }
    int silent = connect_far(&address), talking = connect_far(&address);
    struct pollfd watched = { .fd = listener, .events = POLLIN };
    EQUAL(poll(&watched, 1, 100), 0);
    set_blocking(listener, false);
    FAILS(accept(listener, NULL, NULL), EAGAIN);
    write_all(talking, "now", 3);
    EQUAL(poll(&watched, 1, 10 * 1000), 1);
    int near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    char buffer[3];
    EQUAL(recv(near, buffer, 3, MSG_DONTWAIT), 3);
    CHECK(memcmp(buffer, "now", 3) == 0);
    FAILS(accept(listener, NULL, NULL), EAGAIN);
    close(silent);
    /* The end of the stream is something to tell. */
    EQUAL(poll(&watched, 1, 10 * 1000), 1);
    int ended = accept(listener, NULL, NULL);
    CHECK(ended >= 0);
    expect_end(ended);
    close(ended);
    close(near);
    close(talking);
    close(listener);
}

STATEMENT(defer_accept_gives_up_waiting)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    EQUAL(setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &(int){ 1 }, sizeof(int)), 0);
    int far = connect_far(&address);
    struct pollfd watched = { .fd = listener, .events = POLLIN };
    EQUAL(poll(&watched, 1, 100), 0);
    EQUAL(poll(&watched, 1, 10 * 1000), 1);
    int near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    write_all(far, "late", 4);
    char buffer[4];
    read_all(near, buffer, 4);
    close(near);
    close(far);
    close(listener);
}

STATEMENT(buffer_sizes_hold)
{
    struct pair pair = make_pair();
    int value = 20000;
    socklen_t length = sizeof value;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_SNDBUF, &value, sizeof value), 0);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_SNDBUF, &value, &length), 0);
    /* Linux doubles it, for its own use. */
    EQUAL(value, 40000);
    value = 30000;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &value, sizeof value), 0);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_RCVBUF, &value, &length), 0);
    EQUAL(value, 60000);
    /* A small send buffer fills sooner than a large one would. */
    set_blocking(pair.near, false);
    static char block[4096];
    size_t sent = 0;
    ssize_t count;
    while ((count = write(pair.near, block, sizeof block)) > 0)
        sent += count;
    EQUAL(errno, EAGAIN);
    CHECK(sent < 10000000);
    close_pair(&pair);
}

STATEMENT(receive_and_send_timeouts_end_calls)
{
    struct pair pair = make_pair();
    struct timeval limit = { 0, 100000 }, got;
    socklen_t length = sizeof got;
    char byte;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_RCVTIMEO, &got, &length), 0);
    CHECK(got.tv_sec == 0 && got.tv_usec >= 100000 && got.tv_usec < 110000);
    long long start = now_ms();
    FAILS(read(pair.near, &byte, 1), EAGAIN);
    CHECK(now_ms() - start >= 100);
    FAILS(recv(pair.near, &byte, 1, MSG_WAITALL), EAGAIN);
    CHECK(now_ms() - start >= 200);
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
    static char block[1 << 16];
    ssize_t count;
    while ((count = write(pair.near, block, sizeof block)) > 0)
        ;
    EQUAL(errno, EAGAIN);
    FAILS(setsockopt(pair.near, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, 1000000 }, sizeof limit), EDOM);
    close_pair(&pair);
    struct sockaddr_in address;
    int listener = listen_near(&address);
    EQUAL(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    FAILS(accept(listener, NULL, NULL), EAGAIN);
    close(listener);
}

STATEMENT(tcp_info_tells_the_state)
{
    struct pair pair = make_pair();
    struct tcp_info info = { 0 };
    socklen_t length = sizeof info;
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    EQUAL(info.tcpi_state, TCP_ESTABLISHED);
    CHECK(info.tcpi_snd_mss > 0 && info.tcpi_snd_cwnd > 0 && info.tcpi_rto > 0);
    EQUAL(shutdown(pair.far, SHUT_WR), 0);
    expect_end(pair.near);
    length = sizeof info;
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    EQUAL(info.tcpi_state, TCP_CLOSE_WAIT);
    /* A short buffer gets the first part. */
    length = 1;
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    EQUAL(length, 1);
    close_pair(&pair);
    struct sockaddr_in address;
    int listener = listen_near(&address);
    length = sizeof info;
    EQUAL(getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    EQUAL(info.tcpi_state, TCP_LISTEN);
    close(listener);
}

STATEMENT(congestion_control_has_a_name)
{
    struct pair pair = make_pair();
    char name[16] = { 0 };
    socklen_t length = sizeof name;
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
    CHECK(strlen(name) > 0);
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_CONGESTION, name, strlen(name)), 0);
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_CONGESTION, "reno", 4), 0);
    FAILS(setsockopt(pair.near, IPPROTO_TCP, TCP_CONGESTION, "no-such-control", 15), ENOENT);
    close_pair(&pair);
}

STATEMENT(a_cork_holds_back_and_lets_go)
{
    struct pair pair = make_pair();
    int on = 1, off = 0;
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_CORK, &on, sizeof on), 0);
    write_all(pair.near, "abc", 3);
    struct pollfd watched = { .fd = pair.far, .events = POLLIN };
    EQUAL(poll(&watched, 1, 50), 0);
    write_all(pair.near, "def", 3);
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_CORK, &off, sizeof off), 0);
    char buffer[6];
    EQUAL(recv(pair.far, buffer, 6, MSG_WAITALL), 6);
    CHECK(memcmp(buffer, "abcdef", 6) == 0);
    /* MSG_MORE does the same for one call. */
    EQUAL(send(pair.near, "gh", 2, MSG_MORE), 2);
    EQUAL(poll(&watched, 1, 50), 0);
    EQUAL(send(pair.near, "ij", 2, 0), 2);
    EQUAL(recv(pair.far, buffer, 4, MSG_WAITALL), 4);
    CHECK(memcmp(buffer, "ghij", 4) == 0);
    close_pair(&pair);
}

STATEMENT(a_low_water_mark_holds_events_back)
{
    struct pair pair = make_pair();
    int mark = 10;
    if (setsockopt(pair.near, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) < 0) {
        EQUAL(errno, ENOPROTOOPT);
        close_pair(&pair);
        return;
    }
    write_all(pair.far, "12345", 5);
    struct pollfd watched = { .fd = pair.near, .events = POLLIN };
    EQUAL(poll(&watched, 1, 50), 0);
    write_all(pair.far, "67890", 5);
    EQUAL(poll(&watched, 1, 5000), 1);
    close_pair(&pair);
}

STATEMENT(what_was_not_sent_yet_bounds_writing)
{
    struct pair pair = make_pair();
    int value = -1;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, &length), 0);
    EQUAL(value, 0);
    const int low = 100000;
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &low, sizeof low), 0);
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, &length), 0);
    EQUAL(value, low);
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_SNDBUF, &(int){ 1 << 21 }, sizeof(int)), 0);
    set_blocking(pair.near, false);
    static char block[10000], received[1 << 16];
    fill(block, sizeof block, 0);
    /* Until the peer takes no more; what is too little for its window may be held back for a while. */
    size_t total = 0;
    int unsent = 0, before, calm = 0;
    while (calm < 30) {
        before = unsent;
        ssize_t count;
        while ((count = write(pair.near, block, sizeof block)) > 0)
            total += count;
        EQUAL(errno, EAGAIN);
        pause_ms(10);
        EQUAL(ioctl(pair.near, SIOCOUTQNSD, &unsent), 0);
        calm = unsent < low || unsent != before ? 0 : calm + 1;
    }
    CHECK(unsent < low + 4 * 65536);
    int queued;
    EQUAL(ioctl(pair.near, SIOCOUTQ, &queued), 0);
    CHECK(queued >= unsent && (size_t)queued <= total);
    struct pollfd watched = { .fd = pair.near, .events = POLLOUT };
    EQUAL(poll(&watched, 1, 50), 0);
    int set = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLOUT | EPOLLET };
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
    EQUAL(epoll_wait(set, &event, 1, 50), 0);
    /* The peer reads on, and the program hears of it as soon as less than half is left. */
    size_t taken = 0;
    set_blocking(pair.far, false);
    while (epoll_wait(set, &event, 1, 10) == 0) {
        ssize_t count = read(pair.far, received, sizeof received);
        if (count > 0)
            taken += count;
        CHECK(taken < total);
    }
    CHECK(event.events & EPOLLOUT);
    EQUAL(ioctl(pair.near, SIOCOUTQNSD, &unsent), 0);
    CHECK(unsent * 2 < low);
    EQUAL(poll(&watched, 1, 0), 1);
    /* A blocking write of much more goes through. */
    set_blocking(pair.near, true);
    set_blocking(pair.far, true);
    pid_t child = fork_child();
    if (child == 0) {
        for (int i = 0; i < 100; i++)
            write_all(pair.near, block, sizeof block);
        _exit(0);
    }
    for (size_t left = total - taken + 100 * sizeof block; left > 0;) {
        size_t part = left < sizeof received ? left : sizeof received;
        read_all(pair.far, received, part);
        left -= part;
    }
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    close(set);
    close_pair(&pair);
}

STATEMENT(a_low_water_mark_may_be_high)
{
    struct pair pair = make_pair();
    const int mark = 1000000;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark), 0);
    static char block[1000000];
    pid_t child = fork_child();
    if (child == 0) {
        write_all(pair.far, block, sizeof block);
        _exit(0);
    }
    struct pollfd watched = { .fd = pair.near, .events = POLLIN };
    EQUAL(poll(&watched, 1, 20 * 1000), 1);
    EQUAL(recv(pair.near, block, sizeof block, MSG_DONTWAIT), sizeof block);
    int status, value;
    EQUAL(waitpid(child, &status, 0), child);
    socklen_t length = sizeof value;
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVLOWAT, &(int){ -1 }, sizeof value), 0);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_RCVLOWAT, &value, &length), 0);
    CHECK(value >= mark && value < INT32_MAX);
    EQUAL(setsockopt(pair.near, SOL_SOCKET, SO_RCVLOWAT, &(int){ 0 }, sizeof value), 0);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_RCVLOWAT, &value, &length), 0);
    EQUAL(value, 1);
    close_pair(&pair);
}

STATEMENT(the_path_has_an_mtu)
{
    int fresh = socket(AF_INET, SOCK_STREAM, 0), value;
    socklen_t length = sizeof value;
    FAILS(getsockopt(fresh, IPPROTO_IP, IP_MTU, &value, &length), ENOTCONN);
    EQUAL(getsockopt(fresh, IPPROTO_IP, IP_MTU_DISCOVER, &value, &length), 0);
    EQUAL(value, IP_PMTUDISC_WANT);
    EQUAL(setsockopt(fresh, IPPROTO_IP, IP_MTU_DISCOVER, &(int){ IP_PMTUDISC_DO }, sizeof value), 0);
    EQUAL(getsockopt(fresh, IPPROTO_IP, IP_MTU_DISCOVER, &value, &length), 0);
    EQUAL(value, IP_PMTUDISC_DO);
    FAILS(setsockopt(fresh, IPPROTO_IP, IP_MTU_DISCOVER, &(int){ 6 }, sizeof value), EINVAL);
    FAILS(setsockopt(fresh, IPPROTO_IP, IP_MTU_DISCOVER, &(int){ -1 }, sizeof value), EINVAL);
    close(fresh);
    struct pair pair = make_pair();
    struct tcp_info info = { 0 };
    EQUAL(getsockopt(pair.near, IPPROTO_IP, IP_MTU, &value, &length), 0);
    length = sizeof info;
    EQUAL(getsockopt(pair.near, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    EQUAL(value, info.tcpi_pmtu);
    CHECK(value >= (int)info.tcpi_snd_mss + 40);
    CHECK(value >= 1500);
    close_pair(&pair);
}
