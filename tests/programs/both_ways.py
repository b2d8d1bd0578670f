"""Listens on every address, and connects to itself by each way that it is told of.

usage: both_ways.py PORT ADDRESS...
"""

import socket
import sys
import threading


def serve(listener):
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(connection.recv(100).upper())


listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
threading.Thread(target=serve, args=(listener,), daemon=True).start()
for address in sys.argv[2:]:
    with socket.create_connection((address, int(sys.argv[1])), timeout=10) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"HELLO"
        print(address, client.getsockname()[0], client.getpeername()[0], flush=True)
print("ready", flush=True)
sys.stdin.read()
