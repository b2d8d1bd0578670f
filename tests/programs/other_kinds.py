"""Sockets that are not TCP over IPv4 to the link: each works as the kernel's does."""

import os
import socket
import threading


def exchange(server, client):
    """Bytes both ways on a connected pair."""
    client.sendall(b"ping")
    assert server.recv(4) == b"ping"
    server.sendall(b"pong")
    assert client.recv(4) == b"pong"


def connected(family, address):
    """A listener at the address, a client of it, and what the listener accepted."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    client = socket.socket(family, socket.SOCK_STREAM)
    client.connect(listener.getsockname())
    return listener.accept()[0], client


exchange(*socket.socketpair())
exchange(*connected(socket.AF_UNIX, "\0millrace-test-%d" % os.getpid()))
# Without --loopback, loopback is the kernel's.
exchange(*connected(socket.AF_INET, ("127.0.0.1", 0)))
exchange(*connected(socket.AF_INET6, ("::1", 0)))

receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"datagram", receiver.getsockname())
assert receiver.recv(100) == b"datagram"

netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
netlink.bind((0, 0))
assert netlink.getsockname()[0] != 0
assert socket.if_nameindex()

# Passing a descriptor over a Unix socket is the kernel's business.
left, right = socket.socketpair()
read, write = os.pipe()
socket.send_fds(left, [b"x"], [write])
_, fds, _, _ = socket.recv_fds(right, 1, 1)
threading.Thread(target=os.write, args=(fds[0], b"through")).start()
assert os.read(read, 7) == b"through"
print("ok")
