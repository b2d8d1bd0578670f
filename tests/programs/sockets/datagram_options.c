/* Datagram sockets: what rides along with a datagram, groups, and ways to send many at once. */
#include "harness.h"
#include <net/if.h>
#include <linux/errqueue.h>
#include <netinet/ip.h>
#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

static struct sockaddr *any(struct sockaddr_in *address)
{
    return (struct sockaddr *)address;
}

static void set(int fd, int level, int name, int value)
{
    EQUAL(setsockopt(fd, level, name, &value, sizeof value), 0);
}

static int get(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(fd, level, name, &value, &length), 0);
    EQUAL(length, sizeof value);
    return value;
}

/* A message received with what rides along. */
struct received {
    char data[70000];
    ssize_t length;
    char control[512];
    struct sockaddr_storage from;
    struct msghdr header;
    struct iovec part;
};

static struct received *receive(int fd, int flags)
{
    static struct received it;
    memset(&it.header, 0, sizeof it.header);
    it.part = (struct iovec){ it.data, sizeof it.data };
    it.header.msg_iov = &it.part;
    it.header.msg_iovlen = 1;
    it.header.msg_control = it.control;
    it.header.msg_controllen = sizeof it.control;
    it.header.msg_name = &it.from;
    it.header.msg_namelen = sizeof it.from;
    wait_for(fd, flags & MSG_ERRQUEUE ? POLLERR : POLLIN);
    it.length = recvmsg(fd, &it.header, flags);
    CHECK(it.length >= 0);
    return &it;
}

/* What rides along under this name; NULL when nothing does. */
static void *rider(struct received *it, int level, int type)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&it->header); c; c = CMSG_NXTHDR(&it->header, c))
        if (c->cmsg_level == level && c->cmsg_type == type)
            return CMSG_DATA(c);
    return NULL;
}

/* Sends with something riding along. */
static ssize_t send_with(int fd, const void *data, size_t length, struct sockaddr *to, socklen_t to_length, int level, int type,
                         const void *value, size_t value_length)
{
    char control[256];
    memset(control, 0, sizeof control);
    struct iovec part = { (void *)data, length };
    struct msghdr message = { .msg_name = to, .msg_namelen = to_length, .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                              .msg_controllen = CMSG_SPACE(value_length) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = level;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(value_length);
    memcpy(CMSG_DATA(c), value, value_length);
    return sendmsg(fd, &message, 0);
}

STATEMENT(u7_a_wildcard_socket_learns_its_address)
{
    struct sockaddr_in far, near = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), other = datagram_far(&far);
    socklen_t length = sizeof near;
    EQUAL(bind(fd, any(&near), sizeof near), 0);
    EQUAL(getsockname(fd, any(&near), &length), 0);
    near.sin_addr = near_address(0).sin_addr;
    EQUAL(get(fd, IPPROTO_IP, IP_PKTINFO), 0);
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    EQUAL(get(fd, IPPROTO_IP, IP_PKTINFO), 1);
    EQUAL(sendto(other, "?", 1, 0, any(&near), sizeof near), 1);
    struct received *it = receive(fd, 0);
    struct in_pktinfo *info = rider(it, IPPROTO_IP, IP_PKTINFO);
    CHECK(info);
    EQUAL(info->ipi_addr.s_addr, near.sin_addr.s_addr);
    EQUAL(info->ipi_spec_dst.s_addr, near.sin_addr.s_addr);
    CHECK(info->ipi_ifindex > 0);
    EQUAL(it->header.msg_flags, 0);
    /* The answer leaves from there. */
    struct in_pktinfo from = { .ipi_spec_dst = near.sin_addr };
    EQUAL(send_with(fd, "!", 1, any(&far), sizeof far, IPPROTO_IP, IP_PKTINFO, &from, sizeof from), 1);
    it = receive(other, 0);
    EQUAL(((struct sockaddr_in *)&it->from)->sin_addr.s_addr, near.sin_addr.s_addr);
    EQUAL(((struct sockaddr_in *)&it->from)->sin_port, near.sin_port);
    /* No room for it is said. */
    EQUAL(sendto(other, "?", 1, 0, any(&near), sizeof near), 1);
    char byte, little[4];
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = little, .msg_controllen = sizeof little };
    wait_for(fd, POLLIN);
    EQUAL(recvmsg(fd, &message, 0), 1);
    CHECK(message.msg_flags & MSG_CTRUNC);
    close(fd);
    close(other);
}

STATEMENT(u7_time_to_live_and_class_ride_along)
{
    struct sockaddr_in near, far;
    int fd = datagram_near(&near), other = datagram_far(&far);
    set(fd, IPPROTO_IP, IP_RECVTTL, 1);
    set(fd, IPPROTO_IP, IP_RECVTOS, 1);
    set(other, IPPROTO_IP, IP_RECVTTL, 1);
    set(other, IPPROTO_IP, IP_RECVTOS, 1);
    set(fd, IPPROTO_IP, IP_TTL, 77);
    set(fd, IPPROTO_IP, IP_TOS, 0x28);
    set(other, IPPROTO_IP, IP_TTL, 78);
    set(other, IPPROTO_IP, IP_TOS, 0x48);
    EQUAL(get(fd, IPPROTO_IP, IP_TTL), 77);
    EQUAL(get(fd, IPPROTO_IP, IP_TOS), 0x28);
    EQUAL(get(fd, IPPROTO_IP, IP_RECVTTL), 1);
    EQUAL(sendto(fd, "?", 1, 0, any(&far), sizeof far), 1);
    struct received *it = receive(other, 0);
    int *ttl = rider(it, IPPROTO_IP, IP_TTL);
    unsigned char *tos = rider(it, IPPROTO_IP, IP_TOS);
    CHECK(ttl && tos);
    EQUAL(*ttl, 77);
    EQUAL(*tos, 0x28);
    EQUAL(sendto(other, "!", 1, 0, any(&near), sizeof near), 1);
    it = receive(fd, 0);
    ttl = rider(it, IPPROTO_IP, IP_TTL);
    tos = rider(it, IPPROTO_IP, IP_TOS);
    CHECK(ttl && tos);
    EQUAL(*ttl, 78);
    EQUAL(*tos, 0x48);
    /* For one datagram alone. */
    int other_ttl = 9;
    EQUAL(send_with(fd, "?", 1, any(&far), sizeof far, IPPROTO_IP, IP_TTL, &other_ttl, sizeof other_ttl), 1);
    it = receive(other, 0);
    EQUAL(*(int *)rider(it, IPPROTO_IP, IP_TTL), 9);
    EQUAL(sendto(fd, "?", 1, 0, any(&far), sizeof far), 1);
    it = receive(other, 0);
    EQUAL(*(int *)rider(it, IPPROTO_IP, IP_TTL), 77);
    close(fd);
    close(other);
}

STATEMENT(u7_errors_wait_in_their_queue)
{
    struct sockaddr_in near, far;
    int fd = datagram_near(&near), other = datagram_far(&far);
    close(other);
    set(fd, IPPROTO_IP, IP_RECVERR, 1);
    EQUAL(get(fd, IPPROTO_IP, IP_RECVERR), 1);
    /* Not connected, and told all the same. */
    EQUAL(sendto(fd, "lost", 4, 0, any(&far), sizeof far), 4);
    struct received *it = receive(fd, MSG_ERRQUEUE);
    CHECK(it->header.msg_flags & MSG_ERRQUEUE);
    EQUAL(it->length, 4);
    CHECK(memcmp(it->data, "lost", 4) == 0);
    EQUAL(((struct sockaddr_in *)&it->from)->sin_port, far.sin_port);
    EQUAL(((struct sockaddr_in *)&it->from)->sin_addr.s_addr, far.sin_addr.s_addr);
    struct sock_extended_err *error = rider(it, IPPROTO_IP, IP_RECVERR);
    CHECK(error);
    EQUAL(error->ee_errno, ECONNREFUSED);
    EQUAL(error->ee_origin, SO_EE_ORIGIN_ICMP);
    EQUAL(error->ee_type, 3);
    EQUAL(error->ee_code, 3);
    struct sockaddr_in *offender = (struct sockaddr_in *)SO_EE_OFFENDER(error);
    EQUAL(offender->sin_family, AF_INET);
    EQUAL(offender->sin_addr.s_addr, far.sin_addr.s_addr);
    char byte;
    FAILS(recv(fd, &byte, 1, MSG_ERRQUEUE), EAGAIN);
    struct pollfd watched = { .fd = fd, .events = POLLIN };
    EQUAL(poll(&watched, 1, 0), 0);
    /* An ordinary receive is told of it, too, and leaves it in the queue. */
    EQUAL(sendto(fd, "lost", 4, 0, any(&far), sizeof far), 4);
    wait_for(fd, POLLERR);
    FAILS(recv(fd, &byte, 1, MSG_DONTWAIT), ECONNREFUSED);
    it = receive(fd, MSG_ERRQUEUE);
    EQUAL(it->length, 4);
    close(fd);
}

STATEMENT(u7_path_mtu_discovery_is_a_choice)
{
    struct sockaddr_in far;
    static char large[65000];
    int fd = socket(AF_INET, SOCK_DGRAM, 0), other = datagram_far(&far);
    set(other, SOL_SOCKET, SO_RCVBUF, 1 << 18);
    FAILS(setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &(int){ 9 }, sizeof(int)), EINVAL);
    set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
    EQUAL(get(fd, IPPROTO_IP, IP_MTU_DISCOVER), IP_PMTUDISC_DO);
    FAILS(getsockopt(fd, IPPROTO_IP, IP_MTU, &(int){ 0 }, &(socklen_t){ sizeof(int) }), ENOTCONN);
    EQUAL(connect(fd, any(&far), sizeof far), 0);
    int mtu = get(fd, IPPROTO_IP, IP_MTU);
    CHECK(mtu >= 1280 && mtu <= 65536);
    if (mtu - 27 <= (int)sizeof large)
        FAILS(send(fd, large, mtu - 27, 0), EMSGSIZE);
    if (mtu - 28 <= (int)sizeof large) {
        EQUAL(send(fd, large, mtu - 28, 0), mtu - 28);
        EQUAL(receive(other, 0)->length, mtu - 28);
    }
    set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT);
    EQUAL(send(fd, large, 30000, 0), 30000);
    EQUAL(receive(other, 0)->length, 30000);
    close(fd);
    close(other);
}

STATEMENT(u7_broadcast_needs_leave)
{
    struct sockaddr_in near, to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x7fffffff) };
    int fd = datagram_near(&near);
    if (!is_loopback)
        to.sin_addr.s_addr = near.sin_addr.s_addr | htonl(0xff);
    EQUAL(get(fd, SOL_SOCKET, SO_BROADCAST), 0);
    FAILS(sendto(fd, "x", 1, 0, any(&to), sizeof to), EACCES);
    FAILS(connect(fd, any(&to), sizeof to), EACCES);
    set(fd, SOL_SOCKET, SO_BROADCAST, 1);
    EQUAL(sendto(fd, "x", 1, 0, any(&to), sizeof to), 1);
    close(fd);
}

STATEMENT(u7_options_of_datagrams_hold)
{
    struct sockaddr_in near;
    int fd = datagram_near(&near);
    static const int switches[] = { IP_PKTINFO, IP_RECVTTL, IP_RECVTOS, IP_RECVERR, IP_MULTICAST_LOOP };
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        set(fd, IPPROTO_IP, switches[i], 1);
        EQUAL(get(fd, IPPROTO_IP, switches[i]), 1);
        set(fd, IPPROTO_IP, switches[i], 0);
        EQUAL(get(fd, IPPROTO_IP, switches[i]), 0);
    }
    EQUAL(get(fd, IPPROTO_IP, IP_MULTICAST_TTL), 1);
    set(fd, IPPROTO_IP, IP_MULTICAST_TTL, 7);
    EQUAL(get(fd, IPPROTO_IP, IP_MULTICAST_TTL), 7);
    FAILS(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &(int){ 256 }, sizeof(int)), EINVAL);
    FAILS(setsockopt(fd, IPPROTO_IP, IP_TTL, &(int){ 256 }, sizeof(int)), EINVAL);
    FAILS(setsockopt(fd, IPPROTO_IP, 63, &(int){ 1 }, sizeof(int)), ENOPROTOOPT);
    FAILS(setsockopt(fd, IPPROTO_UDP, 200, &(int){ 1 }, sizeof(int)), ENOPROTOOPT);
    FAILS(setsockopt(fd, IPPROTO_IP, IP_RECVTTL, NULL, sizeof(int)), EFAULT);
    set(fd, SOL_SOCKET, SO_RCVBUF, 50000);
    EQUAL(get(fd, SOL_SOCKET, SO_RCVBUF), 100000);
    set(fd, SOL_SOCKET, SO_SNDBUF, 50000);
    EQUAL(get(fd, SOL_SOCKET, SO_SNDBUF), 100000);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    EQUAL(get(fd, SOL_SOCKET, SO_REUSEADDR), 1);
    close(fd);
}

STATEMENT(u8_pieces_are_corked_into_one)
{
    struct pair pair = datagram_pair();
    EQUAL(send(pair.near, "abc", 3, MSG_MORE), 3);
    EQUAL(send(pair.near, "def", 3, MSG_MORE), 3);
    EQUAL(send(pair.near, "g", 1, 0), 1);
    struct received *it = receive(pair.far, 0);
    EQUAL(it->length, 7);
    CHECK(memcmp(it->data, "abcdefg", 7) == 0);
    set(pair.near, IPPROTO_UDP, UDP_CORK, 1);
    EQUAL(get(pair.near, IPPROTO_UDP, UDP_CORK), 1);
    EQUAL(send(pair.near, "hi", 2, 0), 2);
    EQUAL(write(pair.near, "jk", 2), 2);
    struct pollfd watched = { .fd = pair.far, .events = POLLIN };
    EQUAL(poll(&watched, 1, 50), 0);
    set(pair.near, IPPROTO_UDP, UDP_CORK, 0);
    it = receive(pair.far, 0);
    EQUAL(it->length, 4);
    CHECK(memcmp(it->data, "hijk", 4) == 0);
    close_pair(&pair);
}

STATEMENT(u8_one_send_makes_many_datagrams)
{
    static char data[10 * 1000 + 1];
    struct pair pair = datagram_pair();
    fill(data, sizeof data, 0);
    EQUAL(get(pair.near, IPPROTO_UDP, UDP_SEGMENT), 0);
    set(pair.near, IPPROTO_UDP, UDP_SEGMENT, 1000);
    EQUAL(get(pair.near, IPPROTO_UDP, UDP_SEGMENT), 1000);
    EQUAL(send(pair.near, data, 3500, 0), 3500);
    for (int i = 0; i < 4; i++) {
        struct received *it = receive(pair.far, 0);
        EQUAL(it->length, i < 3 ? 1000 : 500);
        CHECK(matches(it->data, it->length, i * 1000));
    }
    set(pair.near, IPPROTO_UDP, UDP_SEGMENT, 0);
    uint16_t size = 1000;
    EQUAL(send_with(pair.near, data, sizeof data, NULL, 0, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size), (ssize_t)sizeof data);
    for (int i = 0; i < 11; i++) {
        struct received *it = receive(pair.far, 0);
        EQUAL(it->length, i < 10 ? 1000 : 1);
        CHECK(matches(it->data, it->length, i * 1000));
    }
    FAILS(setsockopt(pair.near, IPPROTO_UDP, UDP_SEGMENT, &(int){ -1 }, sizeof(int)), EINVAL);
    FAILS(setsockopt(pair.near, IPPROTO_UDP, UDP_SEGMENT, &(int){ 65536 }, sizeof(int)), EINVAL);
    close_pair(&pair);
}

STATEMENT(u8_many_datagrams_may_be_received_as_one)
{
    static char data[8 * 1000];
    struct pair pair = datagram_pair();
    fill(data, sizeof data, 0);
    set(pair.near, IPPROTO_UDP, UDP_GRO, 1);
    EQUAL(get(pair.near, IPPROTO_UDP, UDP_GRO), 1);
    set(pair.far, IPPROTO_UDP, UDP_SEGMENT, 1000);
    EQUAL(send(pair.far, data, sizeof data, 0), (ssize_t)sizeof data);
    size_t sum = 0;
    while (sum < sizeof data) {
        struct received *it = receive(pair.near, 0);
        int *size = rider(it, IPPROTO_UDP, UDP_GRO);
        /* How many come as one is chance, but they come whole. */
        if (it->length != 1000)
            CHECK(size);
        if (size)
            EQUAL(*size, 1000);
        EQUAL(it->length % 1000, 0);
        CHECK(matches(it->data, it->length, sum));
        sum += it->length;
    }
    EQUAL(sum, sizeof data);
    close_pair(&pair);
}

/* A socket that has joined a group at an address, and hears what is sent there. */
static int member(struct sockaddr_in *group, struct in_addr interface)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    EQUAL(bind(fd, any(group), sizeof *group), 0);
    socklen_t length = sizeof *group;
    EQUAL(getsockname(fd, any(group), &length), 0);
    struct ip_mreq request = { .imr_multiaddr = group->sin_addr, .imr_interface = interface };
    EQUAL(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request), 0);
    FAILS(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request), EADDRINUSE);
    return fd;
}

STATEMENT(u8_members_of_a_group_all_hear)
{
    struct sockaddr_in near, group = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("239.9.8.7") };
    struct in_addr interface = near_address(0).sin_addr;
    int one = member(&group, interface), two = member(&group, interface), fd = datagram_near(&near);
    struct ip_mreq request = { .imr_multiaddr = group.sin_addr, .imr_interface = interface };
    EQUAL(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface), 0);
    EQUAL(get(fd, IPPROTO_IP, IP_MULTICAST_IF), (int)interface.s_addr);
    EQUAL(sendto(fd, "all", 3, 0, any(&group), sizeof group), 3);
    EQUAL(receive(one, 0)->length, 3);
    struct received *it = receive(two, 0);
    EQUAL(it->length, 3);
    EQUAL(((struct sockaddr_in *)&it->from)->sin_port, near.sin_port);
    /* Not to itself, when it says so; but a loopback device turns everything round. */
    if (!is_loopback) {
        set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0);
        EQUAL(sendto(fd, "none", 4, 0, any(&group), sizeof group), 4);
        set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
    }
    EQUAL(setsockopt(two, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request, sizeof request), 0);
    FAILS(setsockopt(two, IPPROTO_IP, IP_DROP_MEMBERSHIP, &request, sizeof request), EADDRNOTAVAIL);
    request.imr_multiaddr.s_addr = near.sin_addr.s_addr;
    FAILS(setsockopt(two, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request), EINVAL);
    EQUAL(sendto(fd, "last", 4, 0, any(&group), sizeof group), 4);
    it = receive(one, 0);
    EQUAL(it->length, 4);
    CHECK(memcmp(it->data, "last", 4) == 0);
    close(one);
    close(two);
    close(fd);
}

STATEMENT(u8_groups_are_joined_by_device)
{
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in group = { .sin_family = AF_INET };
    struct group_req request = { .gr_interface = if_nametoindex("lo") };
    EQUAL(inet_pton(AF_INET, "239.1.2.4", &group.sin_addr), 1);
    memcpy(&request.gr_group, &group, sizeof group);
    FAILS(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request - 1), EINVAL);
    request.gr_interface = 9999;
    FAILS(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request), ENODEV);
    request.gr_interface = if_nametoindex("lo");
    EQUAL(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request), 0);
    FAILS(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request), EADDRINUSE);
    EQUAL(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &request, sizeof request), 0);
    FAILS(setsockopt(fd, IPPROTO_IP, MCAST_LEAVE_GROUP, &request, sizeof request), EADDRNOTAVAIL);
    close(fd);
}

STATEMENT(u8_groups_reach_over_the_link)
{
    if (is_loopback)
        return;
    struct sockaddr_in near, far, group = { .sin_family = AF_INET, .sin_addr.s_addr = inet_addr("239.9.8.8") };
    int hears = member(&group, near_address(0).sin_addr), sends = datagram_near(&near), other = datagram_far(&far);
    struct in_addr interface = far.sin_addr;
    EQUAL(setsockopt(other, IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface), 0);
    EQUAL(sendto(other, "in", 2, 0, any(&group), sizeof group), 2);
    struct sockaddr_in outward = group;
    outward.sin_port = 0;
    int far_member = datagram_far_at(&outward);
    struct ip_mreq request = { .imr_multiaddr = group.sin_addr, .imr_interface = interface };
    EQUAL(setsockopt(far_member, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request), 0);
    EQUAL(sendto(sends, "out", 3, 0, any(&outward), sizeof outward), 3);
    /* The kernel has both ends, on two devices that do not hear each other. */
    if (getenv("MILLRACE_ENGINE")) {
        EQUAL(receive(hears, 0)->length, 2);
        EQUAL(receive(far_member, 0)->length, 3);
    }
    close(far_member);
    close(hears);
    close(sends);
    close(other);
}

static struct sockaddr_in6 address6(const char *text, int port)
{
    struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    EQUAL(inet_pton(AF_INET6, text, &address.sin6_addr), 1);
    return address;
}

STATEMENT(u9_a_v6_socket_hears_v4_as_mapped)
{
    struct sockaddr_in6 address = address6("::", 0);
    struct sockaddr_in far, near = near_address(0);
    int fd = socket(AF_INET6, SOCK_DGRAM, 0), other = datagram_far(&far);
    socklen_t length = sizeof address;
    set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    EQUAL(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    near.sin_port = address.sin6_port;
    set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    EQUAL(get(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO), 1);
    EQUAL(sendto(other, "four", 4, 0, any(&near), sizeof near), 4);
    struct received *it = receive(fd, 0);
    EQUAL(it->length, 4);
    struct sockaddr_in6 *from = (struct sockaddr_in6 *)&it->from;
    EQUAL(from->sin6_family, AF_INET6);
    CHECK(IN6_IS_ADDR_V4MAPPED(&from->sin6_addr));
    EQUAL(from->sin6_port, far.sin_port);
    struct in6_pktinfo *info = rider(it, IPPROTO_IPV6, IPV6_PKTINFO);
    CHECK(info && IN6_IS_ADDR_V4MAPPED(&info->ipi6_addr));
    CHECK(memcmp(&info->ipi6_addr.s6_addr[12], &near.sin_addr, 4) == 0);
    EQUAL(sendto(fd, "back", 4, 0, (struct sockaddr *)from, sizeof *from), 4);
    EQUAL(receive(other, 0)->length, 4);
    close(fd);
    close(other);
}

STATEMENT(u9_v6_datagrams_flow)
{
    if (!is_loopback)
        return;
    struct sockaddr_in6 address = address6("::1", 0), from;
    int fd = socket(AF_INET6, SOCK_DGRAM, 0), other = socket(AF_INET6, SOCK_DGRAM, 0);
    socklen_t length = sizeof address;
    static char data[30000];
    EQUAL(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    set(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
    set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    set(other, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33);
    set(other, IPPROTO_IPV6, IPV6_TCLASS, 0x28);
    EQUAL(connect(other, (struct sockaddr *)&address, sizeof address), 0);
    fill(data, sizeof data, 3);
    EQUAL(send(other, data, sizeof data, 0), (ssize_t)sizeof data);
    struct received *it = receive(fd, 0);
    EQUAL(it->length, (ssize_t)sizeof data);
    CHECK(matches(it->data, it->length, 3));
    struct in6_pktinfo *info = rider(it, IPPROTO_IPV6, IPV6_PKTINFO);
    CHECK(info && memcmp(&info->ipi6_addr, &address.sin6_addr, 16) == 0);
    EQUAL(*(int *)rider(it, IPPROTO_IPV6, IPV6_HOPLIMIT), 33);
    EQUAL(*(int *)rider(it, IPPROTO_IPV6, IPV6_TCLASS), 0x28);
    from = *(struct sockaddr_in6 *)&it->from;
    EQUAL(sendto(fd, "back", 4, 0, (struct sockaddr *)&from, sizeof from), 4);
    EQUAL(receive(other, 0)->length, 4);
    close(fd);
    char byte;
    EQUAL(send(other, "x", 1, 0), 1);
    wait_for(other, POLLERR);
    FAILS(recv(other, &byte, 1, 0), ECONNREFUSED);
    close(other);
}
