/* IPv6, and sockets of both families. What needs ::1 is said of loopback alone. */
#include "harness.h"

static struct sockaddr_in6 address6(const char *text, int port)
{
    struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    EQUAL(inet_pton(AF_INET6, text, &address.sin6_addr), 1);
    return address;
}

static int port_of(int fd)
{
    struct sockaddr_in6 name;
    socklen_t length = sizeof name;
    EQUAL(getsockname(fd, (struct sockaddr *)&name, &length), 0);
    return ntohs(name.sin6_port);
}

static void is_at(const struct sockaddr_in6 *name, socklen_t length, const char *text, int port)
{
    struct sockaddr_in6 expected = address6(text, port);
    EQUAL(length, sizeof *name);
    EQUAL(name->sin6_family, AF_INET6);
    EQUAL(name->sin6_flowinfo, 0);
    EQUAL(name->sin6_scope_id, 0);
    EQUAL(ntohs(name->sin6_port), port);
    CHECK(memcmp(&name->sin6_addr, &expected.sin6_addr, 16) == 0);
}

/* A listener of IPv6 at a port of its own. */
static int listen6(const char *text, int only)
{
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 address = address6(text, 0);
    CHECK(fd >= 0);
    EQUAL(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), 0);
    EQUAL(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(listen(fd, 5), 0);
    return fd;
}

static int connect6(const char *text, int port)
{
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 address = address6(text, port);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

STATEMENT(v6_streams_flow_and_have_names)
{
    if (!is_loopback)
        return;
    int listener = listen6("::1", 0), port = port_of(listener);
    int near = connect6("::1", port);
    CHECK(near >= 0);
    struct sockaddr_in6 name, peer;
    socklen_t length = sizeof peer;
    int accepted = accept(listener, (struct sockaddr *)&peer, &length);
    CHECK(accepted >= 0);
    is_at(&peer, length, "::1", port_of(near));
    length = sizeof name;
    EQUAL(getpeername(near, (struct sockaddr *)&name, &length), 0);
    is_at(&name, length, "::1", port);
    length = sizeof name;
    EQUAL(getsockname(accepted, (struct sockaddr *)&name, &length), 0);
    is_at(&name, length, "::1", port);
    int domain = 0;
    length = sizeof domain;
    EQUAL(getsockopt(accepted, SOL_SOCKET, SO_DOMAIN, &domain, &length), 0);
    EQUAL(domain, AF_INET6);
    char sent[100000], got[sizeof sent];
    fill(sent, sizeof sent, 0);
    write_all(near, sent, sizeof sent);
    read_all(accepted, got, sizeof got);
    CHECK(matches(got, sizeof got, 0));
    close(near);
    expect_end(accepted);
    close(accepted);
    close(listener);
    errno = 0;
    EQUAL(connect6("::1", port), -1);
    EQUAL(errno, ECONNREFUSED);
}

STATEMENT(v6_listener_takes_v4_as_mapped)
{
    int listener = listen6("::", 0), port = port_of(listener);
    struct sockaddr_in address = near_address(port), far_name;
    int far = connect_far(&address);
    struct sockaddr_in6 peer, expected = address6("::ffff:0.0.0.0", 0);
    socklen_t length = sizeof peer;
    int accepted = accept(listener, (struct sockaddr *)&peer, &length);
    CHECK(accepted >= 0);
    EQUAL(length, sizeof peer);
    EQUAL(peer.sin6_family, AF_INET6);
    length = sizeof far_name;
    EQUAL(getsockname(far, (struct sockaddr *)&far_name, &length), 0);
    memcpy(&expected.sin6_addr.s6_addr[12], &far_name.sin_addr, 4);
    CHECK(memcmp(&peer.sin6_addr, &expected.sin6_addr, 16) == 0);
    EQUAL(peer.sin6_port, far_name.sin_port);
    length = sizeof peer;
    EQUAL(getsockname(accepted, (struct sockaddr *)&peer, &length), 0);
    memcpy(&expected.sin6_addr.s6_addr[12], &address.sin_addr, 4);
    CHECK(memcmp(&peer.sin6_addr, &expected.sin6_addr, 16) == 0);
    write_all(far, "four", 4);
    char got[4];
    read_all(accepted, got, 4);
    /* What is bound to all of both families leaves nothing for one of them. */
    int other = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(port) };
    FAILS(bind(other, (struct sockaddr *)&any, sizeof any), EADDRINUSE);
    close(other);
    close(far);
    close(accepted);
    close(listener);
}

STATEMENT(v6_only_leaves_v4_to_others)
{
    if (!is_loopback)
        return;
    int six = listen6("::", 1), port = port_of(six);
    int four = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(port) };
    EQUAL(bind(four, (struct sockaddr *)&any, sizeof any), 0);
    EQUAL(listen(four, 5), 0);
    struct sockaddr_in address = near_address(port);
    int over_four = connect_far(&address), over_six = connect6("::1", port);
    CHECK(over_six >= 0);
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    int a = accept(four, (struct sockaddr *)&peer, &length);
    CHECK(a >= 0);
    EQUAL(peer.ss_family, AF_INET);
    length = sizeof peer;
    int b = accept(six, (struct sockaddr *)&peer, &length);
    CHECK(b >= 0);
    EQUAL(peer.ss_family, AF_INET6);
    close(a);
    close(b);
    close(over_four);
    close(over_six);
    close(four);
    close(six);
}

STATEMENT(v6_connects_to_mapped_addresses)
{
    struct sockaddr_in address;
    int listener = listen_far(&address);
    int near = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 to = address6("::ffff:0.0.0.0", ntohs(address.sin_port)), name;
    memcpy(&to.sin6_addr.s6_addr[12], &address.sin_addr, 4);
    EQUAL(connect(near, (struct sockaddr *)&to, sizeof to), 0);
    int far = accept_far(listener);
    socklen_t length = sizeof name;
    EQUAL(getpeername(near, (struct sockaddr *)&name, &length), 0);
    CHECK(memcmp(&name.sin6_addr, &to.sin6_addr, 16) == 0 && name.sin6_port == to.sin6_port);
    EQUAL(getsockname(near, (struct sockaddr *)&name, &length), 0);
    CHECK(IN6_IS_ADDR_V4MAPPED(&name.sin6_addr));
    write_all(near, "four", 4);
    char got[4];
    read_all(far, got, 4);
    close(near);
    close(far);
    /* Not from a socket of IPv6 alone. */
    near = socket(AF_INET6, SOCK_STREAM, 0);
    int on = 1;
    EQUAL(setsockopt(near, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on), 0);
    FAILS(connect(near, (struct sockaddr *)&to, sizeof to), ENETUNREACH);
    close(near);
    close(listener);
}

STATEMENT(v6_options_hold)
{
    int fds[2] = { listen6("::", 0), socket(AF_INET6, SOCK_STREAM, 0) };
    for (int i = 0; i < 2; i++) {
        int fd = fds[i], value;
        socklen_t length = sizeof value;
        static const struct {
            int option, good, reads, bad;
        } options[] = {
            { IPV6_UNICAST_HOPS, 7, 7, 256 },
            { IPV6_UNICAST_HOPS, -1, 64, -2 },
            { IPV6_TCLASS, 0x28, 0x28, 256 },
            { IPV6_TCLASS, -1, 0, -2 },
        };
        for (size_t at = 0; at < sizeof options / sizeof options[0]; at++) {
            value = options[at].good;
            EQUAL(setsockopt(fd, IPPROTO_IPV6, options[at].option, &value, sizeof value), 0);
            EQUAL(getsockopt(fd, IPPROTO_IPV6, options[at].option, &value, &length), 0);
            EQUAL(length, sizeof value);
            EQUAL(value, options[at].reads);
            value = options[at].bad;
            FAILS(setsockopt(fd, IPPROTO_IPV6, options[at].option, &value, sizeof value), EINVAL);
        }
        EQUAL(getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &value, &length), 0);
        EQUAL(value, 0);
    }
    /* Once bound it is too late. */
    int on = 1;
    FAILS(setsockopt(fds[0], IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on), EINVAL);
    EQUAL(setsockopt(fds[1], IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on), 0);
    close(fds[0]);
    close(fds[1]);
    /* A socket of IPv4 has none of these, but those of its own. */
    struct sockaddr_in address;
    int four = listen_near(&address), value = 33;
    socklen_t length = sizeof value;
    FAILS(setsockopt(four, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on), ENOPROTOOPT);
    EQUAL(setsockopt(four, IPPROTO_IP, IP_TTL, &value, sizeof value), 0);
    EQUAL(getsockopt(four, IPPROTO_IP, IP_TTL, &value, &length), 0);
    EQUAL(value, 33);
    value = 0;
    FAILS(setsockopt(four, IPPROTO_IP, IP_TTL, &value, sizeof value), EINVAL);
    close(four);
}

STATEMENT(v6_unconnected_sockets_show_nowhere)
{
    struct sockaddr_in6 name;
    socklen_t length = sizeof name;
    int listener = listen6("::", 0);
    EQUAL(getsockname(listener, (struct sockaddr *)&name, &length), 0);
    is_at(&name, length, "::", ntohs(name.sin6_port));
    FAILS(getpeername(listener, (struct sockaddr *)&name, &length), ENOTCONN);
    close(listener);
    /* Listening without a bind is listening on every address. */
    int fresh = socket(AF_INET6, SOCK_STREAM, 0);
    EQUAL(listen(fresh, 5), 0);
    length = sizeof name;
    EQUAL(getsockname(fresh, (struct sockaddr *)&name, &length), 0);
    CHECK(name.sin6_port != 0);
    is_at(&name, length, "::", ntohs(name.sin6_port));
    struct sockaddr_in address = near_address(ntohs(name.sin6_port));
    close(connect_far(&address));
    close(accept(fresh, NULL, NULL));
    close(fresh);
}
