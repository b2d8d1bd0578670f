"""A program on millrace: what is behind a router of the link is millrace's from when the router advertises itself until it says that it is none.

The router is the kernel at the other end of the link, for which this program speaks through a raw socket. Arguments: the link's device, the
program's own address there, and a far address (with a port on which something listens) that the kernel has elsewhere.
"""

import socket
import struct
import sys
import time

device, own, far, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
router = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.getprotobyname("ipv6-icmp"))
router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
router.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(device))


def advertise(lifetime):
    try:
        router.sendto(struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, lifetime, 0, 0), ("ff02::1", 0))
    except OSError:
        pass  # The kernel has no address of its own on the link yet.


def local():
    with socket.create_connection((far, port), timeout=10) as connection:
        return connection.getsockname()[0]


def until(expected, lifetime):
    end = time.monotonic() + 30
    while (found := local()) != expected:
        assert time.monotonic() < end, found
        advertise(lifetime)
        time.sleep(0.1)


assert local() == far, "the kernel's own stack, by way of its loopback"
until(own, 600)
until(far, 0)
print("both ways")
