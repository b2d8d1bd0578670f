"""ICMP echo requests of several sizes, some of them in fragments; each must be answered with the same content.

usage: ping.py ADDRESS
"""

import os
import socket
import struct
import sys


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return 0xFFFF - total


v6 = ":" in sys.argv[1]
family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
request, reply, skipped = (128, 129, 0) if v6 else (8, 0, 20)
for size in (0, 56, 1400, 5000, 60000):
    raw = socket.socket(family, socket.SOCK_RAW, protocol)
    raw.settimeout(5)
    payload = os.urandom(size)
    head = struct.pack("!BBHHH", request, 0, 0, 7, size)
    if not v6:  # The kernel does it for IPv6.
        head = struct.pack("!BBHHH", request, 0, checksum(head + payload), 7, size)
    raw.sendto(head + payload, (sys.argv[1], 0))
    answer = raw.recv(70000)[skipped:]
    # To itself a host also sees the request, and over IPv6 neighbour discovery.
    while answer[0] != reply:
        answer = raw.recv(70000)[skipped:]
    assert answer[4:8] == head[4:8] and answer[8:] == payload, size
print("answered")
