"""ICMP echo requests of several sizes; each must be answered with the same content.

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


for size in (0, 56, 1400):
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    raw.settimeout(5)
    payload = os.urandom(size)
    head = struct.pack("!BBHHH", 8, 0, 0, 7, size)
    head = struct.pack("!BBHHH", 8, 0, checksum(head + payload), 7, size)
    raw.sendto(head + payload, (sys.argv[1], 0))
    answer = raw.recv(10000)[20:]
    # To itself a host also sees the request.
    while answer[0] == 8:
        answer = raw.recv(10000)[20:]
    assert answer[0] == 0 and answer[4:8] == head[4:8] and answer[8:] == payload, size
print("answered")
