#!/usr/bin/env python3
"""Sets and reads every socket option with every kind of value, and says what came of it.

The first argument has a line for each option: its name, level and number, and TCP or UDP. Run on the kernel and on millrace, the outputs are
compared line by line.
"""

import errno
import socket
import struct
import sys

INT_MAX = 2**31 - 1
NUMBERS = [-(2**31), -2, -1, 0, 1, 2, 5, 6, 88, 127, 128, 255, 256, 1280, 32767, 32768, 65535, 65536, INT_MAX]


def values():
    for number in NUMBERS:
        yield struct.pack("i", number)
    for length in (0, 1, 2, 3):
        yield b"\x01" * length
    yield b"\xff"
    for on in (0, 1):
        for seconds in (0, 9, -1):
            yield struct.pack("ii", on, seconds)
    for seconds, micros in ((0, 0), (0, 250000), (3, 0), (-1, 0), (0, -1), (0, 1000000)):
        yield struct.pack("qq", seconds, micros)
    yield b"reno"
    yield b"nonesuch"
    yield b"\x07" * 33


def streams(family, state, address):
    s = socket.socket(family, socket.SOCK_STREAM)
    if state == "fresh":
        return s, []
    s.bind((address, 0))
    if state == "bound":
        return s, []
    s.listen()
    if state == "listening":
        return s, []
    client = socket.create_connection(s.getsockname()[:2])
    return client, [s, s.accept()[0]]


def datagrams(family, state, address):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if state == "fresh":
        return s, []
    s.bind((address, 0))
    if state == "bound":
        return s, []
    other = socket.socket(family, socket.SOCK_DGRAM)
    other.bind((address, 0))
    s.connect(other.getsockname()[:2])
    return s, [other]


def name_of(error):
    return errno.errorcode.get(error.errno, str(error.errno))


def read(s, level, number, length=64):
    try:
        return s.getsockopt(level, number, length).hex()
    except OSError as error:
        return name_of(error)


def write(s, level, number, value):
    try:
        s.setsockopt(level, number, value)
        return "ok"
    except OSError as error:
        return name_of(error)


def main():
    options = [line.split() for line in sys.argv[1].splitlines()]
    for kind, make, states in (
        ("TCP", streams, ("fresh", "bound", "listening", "connected")),
        ("UDP", datagrams, ("fresh", "bound", "connected")),
    ):
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            for state in states:
                for symbol, level, number, of in options:
                    if of != kind:
                        continue
                    level, number = int(level), int(number)
                    where = f"{kind} {'IPv4' if family == socket.AF_INET else 'IPv6'} {state} {symbol}"
                    s, others = make(family, state, address)
                    for length in (1, 2, 3, 4, 5, 8, 16):
                        print(where, "unset", length, read(s, level, number, length))
                    for value in values():
                        said = write(s, level, number, value)
                        print(where, value.hex() or "-", said, read(s, level, number))
                    for one in [s, *others]:
                        one.close()


main()
