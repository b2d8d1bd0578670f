// Messages in pieces, poll, and what a connection says of itself.
#include <poll.h>
#include <sys/resource.h>

#include "check.h"

static struct msghdr message(void *name, socklen_t len, struct iovec *pieces, size_t count)
{
    struct msghdr result;
    memset(&result, 0, sizeof result);
    result.msg_name = name, result.msg_namelen = len;
    result.msg_iov = pieces, result.msg_iovlen = count;
    return result;
}

static void of_datagrams(void)
{
    struct pair pair;
    struct sockaddr_in server = at("10.0.0.2", 53), from;
    char buffer[16], control[64];
    struct iovec sent[2] = {{(void *)"whe", 3}, {(void *)"re?", 3}};
    struct iovec got[2] = {{buffer, 2}, {buffer + 8, 3}};
    pair_open(&pair);
    CHECK(mr_stack_use(pair.stacks[1]) == 0);
    int there = mr_socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    CHECK(mr_bind(there, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(mr_stack_use(pair.stacks[0]) == 0);
    int here = mr_socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    struct msghdr out = message(NULL, 0, sent, 2);
    FAILS(mr_sendmsg(here, &out, 0), EDESTADDRREQ);
    out = message(&server, sizeof server, sent, 2);
    CHECK(mr_sendmsg(here, &out, 0) == 6 && mr_sendmsg(here, &out, MSG_DONTWAIT) == 6);
    memset(control, 0, sizeof control);
    out.msg_control = control, out.msg_controllen = sizeof control;
    FAILS(mr_sendmsg(here, &out, 0), EINVAL);
    run(&pair, 1);
    struct msghdr in = message(&from, sizeof from, got, 2);
    in.msg_control = control, in.msg_controllen = sizeof control, in.msg_flags = -1;
    CHECK(mr_recvmsg(there, &in, MSG_PEEK | MSG_TRUNC) == 6 && in.msg_flags == MSG_TRUNC);
    CHECK(in.msg_namelen == sizeof from && from.sin_addr.s_addr == htonl(0x0a000001));
    CHECK(in.msg_controllen == 0);
    memset(buffer, 0, sizeof buffer);
    CHECK(mr_recvmsg(there, &in, 0) == 5 && in.msg_flags == MSG_TRUNC);
    CHECK(!memcmp(buffer, "wh", 2) && !memcmp(buffer + 8, "ere", 3));
    // All of it, of whomever.
    got[1].iov_len = 8;
    in = message(NULL, 0, got, 2);
    CHECK(mr_recvmsg(there, &in, 0) == 6 && in.msg_flags == 0);
    FAILS(mr_recvmsg(there, &in, 0), EAGAIN);
    FAILS(mr_recvmsg(there, &in, MSG_ERRQUEUE), EOPNOTSUPP);
    pair_close(&pair);
}

static void add(struct msghdr *message, int level, int kind, const void *data, size_t len)
{
    unsigned char *end = (unsigned char *)message->msg_control + message->msg_controllen;
    struct cmsghdr *rider = (struct cmsghdr *)(void *)end;
    rider->cmsg_len = CMSG_LEN(len);
    rider->cmsg_level = level;
    rider->cmsg_type = kind;
    memcpy(CMSG_DATA(rider), data, len);
    message->msg_controllen += CMSG_SPACE(len);
}

// What rides along with datagrams: addresses, hops, class.
static void riding(void)
{
    struct pair pair;
    struct sockaddr_in server = at("10.0.0.2", 53);
    union {
        char bytes[256];
        size_t align;
    } control;
    char buffer[16];
    struct iovec piece = {buffer, 5};
    struct in_pktinfo info;
    int on = 1, hops = 9, tos = 8, heard = 0;
    socklen_t len = sizeof on;
    static const int telling[] = {IP_PKTINFO, IP_RECVTTL, IP_RECVTOS};
    memset(&control, 0, sizeof control);
    memset(&info, 0, sizeof info);
    memset(buffer, 0, sizeof buffer);
    pair_open(&pair);
    CHECK(mr_stack_use(pair.stacks[1]) == 0);
    int there = mr_socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), stream = mr_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(mr_bind(there, (struct sockaddr *)&server, sizeof server) == 0);
    for (size_t at = 0; at < 3; at++) {
        int is = 0;
        CHECK(mr_setsockopt(there, IPPROTO_IP, telling[at], &on, sizeof on) == 0);
        CHECK(mr_getsockopt(there, IPPROTO_IP, telling[at], &is, &len) == 0 && is == 1);
        /* No value at all is off, as on Linux. */
        CHECK(mr_setsockopt(there, IPPROTO_IP, telling[at], &on, 0) == 0);
        CHECK(mr_getsockopt(there, IPPROTO_IP, telling[at], &is, &len) == 0 && is == 0);
        CHECK(mr_setsockopt(there, IPPROTO_IP, telling[at], &on, sizeof on) == 0);
        FAILS(mr_setsockopt(stream, IPPROTO_IP, telling[at], &on, sizeof on), ENOPROTOOPT);
    }
    FAILS(mr_setsockopt(there, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on), ENOPROTOOPT);
    CHECK(mr_stack_use(pair.stacks[0]) == 0);
    int here = mr_socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    struct msghdr out = message(&server, sizeof server, &piece, 1), in = message(NULL, 0, &piece, 1);
    out.msg_control = control.bytes;
    info.ipi_spec_dst.s_addr = htonl(0x0a000001);
    add(&out, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    add(&out, IPPROTO_IP, IP_TTL, &hops, sizeof hops);
    add(&out, IPPROTO_IP, IP_TOS, &tos, sizeof tos);
    CHECK(mr_sendmsg(here, &out, 0) == 5 && mr_sendmsg(here, &out, 0) == 5);
    // Not ours.
    info.ipi_spec_dst.s_addr = htonl(0x0a000009);
    out.msg_controllen = 0;
    add(&out, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    FAILS(mr_sendmsg(here, &out, 0), EINVAL);
    out.msg_control = (void *)8;
    FAILS(mr_sendmsg(here, &out, 0), EFAULT);
    run(&pair, 1);
    in.msg_control = (void *)8, in.msg_controllen = 16;
    FAILS(mr_recvmsg(there, &in, 0), EFAULT);
    in.msg_control = control.bytes, in.msg_controllen = sizeof control;
    CHECK(mr_recvmsg(there, &in, 0) == 5 && in.msg_flags == 0);
    for (struct cmsghdr *rider = CMSG_FIRSTHDR(&in); rider; rider = CMSG_NXTHDR(&in, rider)) {
        CHECK(rider->cmsg_level == IPPROTO_IP);
        int number = 0;
        switch (rider->cmsg_type) {
        case IP_PKTINFO:
            memcpy(&info, CMSG_DATA(rider), sizeof info);
            CHECK(info.ipi_ifindex == 2 && info.ipi_spec_dst.s_addr == htonl(0x0a000002));
            CHECK(info.ipi_addr.s_addr == htonl(0x0a000002));
            break;
        case IP_TTL:
            memcpy(&number, CMSG_DATA(rider), sizeof number);
            CHECK(number == hops);
            break;
        default:
            CHECK(rider->cmsg_type == IP_TOS && *CMSG_DATA(rider) == tos);
        }
        heard++;
    }
    CHECK(heard == 3);
    in.msg_control = NULL, in.msg_controllen = 0;
    CHECK(mr_recvmsg(there, &in, 0) == 5 && in.msg_flags == MSG_CTRUNC && in.msg_controllen == 0);
    pair_close(&pair);
}

static void of_streams(void)
{
    struct pair pair;
    int ends[2];
    char buffer[16];
    struct sockaddr_in from;
    struct iovec sent[2] = {{(void *)"abc", 3}, {(void *)"defg", 4}};
    struct iovec got[2] = {{buffer, 2}, {buffer + 8, 3}};
    pair_open(&pair);
    connected(&pair, ends);
    struct msghdr out = message(NULL, 0, sent, 2), in = message(&from, sizeof from, got, 2);
    FAILS(mr_recvmsg(ends[1], &in, 0), EAGAIN);
    CHECK(mr_sendmsg(ends[0], &out, MSG_NOSIGNAL) == 7);
    run(&pair, 1);
    CHECK(mr_recvmsg(ends[1], &in, MSG_PEEK) == 5 && !memcmp(buffer, "ab", 2));
    CHECK(mr_recvmsg(ends[1], &in, MSG_WAITALL) == 5 && !memcmp(buffer + 8, "cde", 3));
    CHECK(in.msg_namelen == 0 && in.msg_flags == 0);
    CHECK(mr_recvmsg(ends[1], &in, 0) == 2 && !memcmp(buffer, "fg", 2));
    CHECK(mr_shutdown(ends[0], SHUT_WR) == 0);
    run(&pair, 1);
    CHECK(mr_recvmsg(ends[1], &in, 0) == 0);
    FAILS(mr_sendmsg(ends[0], &out, 0), EPIPE);
    // What cannot be.
    FAILS(mr_sendmsg(ends[1], NULL, 0), EFAULT);
    FAILS(mr_recvmsg(ends[1], NULL, 0), EFAULT);
    FAILS(mr_sendmsg(ends[1], &out, MSG_OOB), EOPNOTSUPP);
    out.msg_iovlen = 1025;
    FAILS(mr_sendmsg(ends[1], &out, 0), EMSGSIZE);
    out.msg_iovlen = (size_t)-1;
    FAILS(mr_sendmsg(ends[1], &out, 0), EMSGSIZE);
    out.msg_iov = NULL, out.msg_iovlen = 1;
    FAILS(mr_sendmsg(ends[1], &out, 0), EFAULT);
    in.msg_iovlen = 1025;
    FAILS(mr_recvmsg(ends[1], &in, 0), EMSGSIZE);
    in.msg_iovlen = 2, in.msg_name = (void *)8, in.msg_namelen = sizeof from;
    FAILS(mr_recvmsg(ends[1], &in, 0), EFAULT);
    FAILS(mr_recvmsg(0, &in, 0), EBADF);
    FAILS(mr_sendmsg(0, &out, 0), EBADF);
    pair_close(&pair);
}

static void of_pipes(struct pair *pair)
{
    int ends[2];
    char byte = 'x';
    struct iovec piece = {&byte, 1};
    struct msghdr all = message(NULL, 0, &piece, 1);
    CHECK(mr_stack_use(pair->stacks[0]) == 0 && mr_pipe(ends, 0) == 0);
    struct pollfd both[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLOUT, 0}};
    CHECK(mr_poll(both, 2, -1) == 1 && both[0].revents == 0 && both[1].revents == POLLOUT);
    CHECK(mr_write(ends[1], &byte, 1) == 1);
    CHECK(mr_poll(both, 2, -1) == 2 && both[0].revents == POLLIN);
    FAILS(mr_recvmsg(ends[0], &all, 0), ENOTSOCK);
    FAILS(mr_sendmsg(ends[1], &all, 0), ENOTSOCK);
    CHECK(mr_close(ends[0]) == 0 && mr_close(ends[1]) == 0);
}

static void polled(void)
{
    struct pair pair;
    int ends[2];
    char buffer[8];
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_stack_use(pair.stacks[1]) == 0);
    int set = mr_epoll_create(0);
    struct pollfd all[4] = {{ends[1], POLLIN, 77}, {-1, POLLIN, 77}, {0, POLLIN, 77}, {set, POLLIN, 77}};
    // Nothing has come; the rest can never be waited for.
    CHECK(mr_poll(all, 1, 1000) == 0 && all[0].revents == 0);
    CHECK(mr_poll(all, 2, 0) == 0 && all[1].revents == 0);
    CHECK(mr_poll(all, 4, -1) == 2 && all[2].revents == POLLNVAL && all[3].revents == POLLNVAL);
    CHECK(mr_poll(all + 2, 1, -1) == 1 && all[2].revents == POLLNVAL);
    CHECK(mr_write(ends[0], "abc", 3) == 3);
    run(&pair, 1);
    CHECK(mr_poll(all, 2, -1) == 1 && all[0].revents == POLLIN);
    CHECK(mr_poll(all, 2, -1) == 1 && all[0].revents == POLLIN);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 3);
    CHECK(mr_poll(all, 2, 0) == 0);
    all[0].events |= POLLOUT;
    CHECK(mr_poll(all, 1, -1) == 1 && all[0].revents == POLLOUT);
    CHECK(mr_abort(ends[0]) == 0);
    run(&pair, 1);
    all[0].events = 0;
    CHECK(mr_poll(all, 1, -1) == 1 && all[0].revents == (POLLERR | POLLHUP));
    of_pipes(&pair);
    // Nobody at all: the stack works.
    CHECK(mr_poll(NULL, 0, 0) == 0);
    FAILS(mr_poll(NULL, 1, 0), EFAULT);
    FAILS(mr_poll(all, (nfds_t)-1, 0), EINVAL);
    CHECK(mr_stack_use(pair.stacks[0]) == 0);
    int other = mr_socket(AF_INET, SOCK_STREAM, 0);
    all[1].fd = other;
    FAILS(mr_poll(all, 2, 0), EINVAL);
    pair_close(&pair);
    FAILS(mr_poll(NULL, 0, 0), ENODEV);
}

static void told(void)
{
    struct pair pair;
    int ends[2];
    static char buffer[100000];
    struct tcp_info info;
    socklen_t len = sizeof info;
    pair_open(&pair);
    connected(&pair, ends);
    CHECK(mr_stack_use(pair.stacks[0]) == 0);
    int fd = mr_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(mr_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && len == sizeof info);
    CHECK(info.tcpi_state == TCP_CLOSE && info.tcpi_snd_mss == 0);
    CHECK(mr_listen(fd, 5) == 0);
    CHECK(mr_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    CHECK(info.tcpi_state == TCP_LISTEN && info.tcpi_unacked == 0 && info.tcpi_sacked == 5);
    CHECK(mr_write(ends[0], buffer, 1000) == 1000);
    run(&pair, 50);
    CHECK(mr_read(ends[1], buffer, sizeof buffer) == 1000);
    CHECK(mr_getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    CHECK(info.tcpi_state == TCP_ESTABLISHED && info.tcpi_ca_state == 0);
    CHECK(info.tcpi_options & TCPI_OPT_SACK && info.tcpi_options & TCPI_OPT_TIMESTAMPS);
    CHECK(info.tcpi_options & TCPI_OPT_WSCALE && info.tcpi_snd_wscale && info.tcpi_rcv_wscale);
    CHECK(info.tcpi_snd_mss > 1000 && info.tcpi_snd_mss <= 1448 && info.tcpi_pmtu == 1500);
    CHECK(info.tcpi_snd_cwnd >= 10 && info.tcpi_unacked == 0 && info.tcpi_rto >= 200000);
    CHECK(info.tcpi_last_data_sent >= 49 && info.tcpi_last_data_sent < 60);
    CHECK(info.tcpi_total_retrans == 0);
    // What is lost is counted; a shorter room has the beginning.
    pair.lose = 1;
    CHECK(mr_write(ends[0], buffer, 1000) == 1000);
    run(&pair, 5000);
    len = 8;
    CHECK(mr_getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && len == 8);
    CHECK(info.tcpi_total_retrans == 0);
    len = sizeof info;
    CHECK(mr_getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    CHECK(info.tcpi_total_retrans >= 1);
    FAILS(mr_setsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, sizeof info), ENOPROTOOPT);
    int datagrams = mr_socket(AF_INET, SOCK_DGRAM, 0);
    FAILS(mr_getsockopt(datagrams, IPPROTO_TCP, TCP_INFO, &info, &len), ENOPROTOOPT);
    pair_close(&pair);
}

// A shard that cannot be taken for want of descriptors can be taken later.
static void taken_later(void)
{
    struct rlimit before, none;
    int engine = mr_engine_new();
    CHECK(engine > 0 && mr_engine_start(engine) == 0);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 3;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    FAILS(mr_stack_open(engine, 0), EMFILE);
    FAILS(mr_stack_open(engine, 0), EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    int stack = mr_stack_open(engine, 0);
    CHECK(stack > 0 && mr_stack_close(stack, 0) == 0);
    CHECK(mr_engine_close(engine) == 0);
}

void test_messages(void)
{
    of_datagrams();
    riding();
    of_streams();
    polled();
    told();
    taken_later();
}
