"""Queues as much as it can to peers that do not read. Arguments: their address, port, connections.

Says "ready" and how much it has queued, and goes on trying."""

import socket
import sys
import time

PIECE = bytes(262144)


def fill(connection):
    queued = 0
    try:
        while True:
            queued += connection.send(PIECE)
    except BlockingIOError:
        return queued


def main():
    address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    connections, queued = [], 0
    for _ in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 20)
        connection.connect((address, port))
        connection.setblocking(False)
        connections.append(connection)
        queued += fill(connection)
    print("ready:", queued, flush=True)
    while True:
        for connection in connections:
            queued += fill(connection)
        time.sleep(0.01)


main()
