"""Sockets that one program passes to another. `drive PATH ADDRESS` makes them, passes them by a Unix socket at PATH, and says what the other, `serve PATH`, is to do
with them; both are right with any stack."""

import ctypes
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time

TIMEOUT = 20


BLOCK = random.Random(1).randbytes(1_000_003)


def pattern(start, length):
    """Bytes of a stream, by their place in it."""
    at = start % len(BLOCK)
    return (BLOCK * ((at + length) // len(BLOCK) + 1))[at : at + length]


def read(sock, length):
    """So many bytes, or fewer at the end."""
    pieces = []
    while length > 0:
        piece = sock.recv(min(length, 1 << 20))
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


class Server:
    """Does what it is told with what it has received."""

    def __init__(self, path):
        self.held = {}
        self.threads = []
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        self.link = listener.accept()[0]

    def run(self):
        while True:
            text, fds, _, _ = socket.recv_fds(self.link, 1 << 16, 16)
            if not text:
                return
            name, *arguments = json.loads(text)
            try:
                if name == "take":
                    for label, fd in zip(arguments, fds):
                        self.held[label] = socket.socket(fileno=fd)
                    answer = [len(fds)]
                else:
                    answer = getattr(self, name)(*arguments)
            except OSError as error:
                answer = ["error", error.errno]
            if answer is not None:
                self.link.send(json.dumps(answer).encode())

    def names(self, label):
        return [self.held[label].getsockname()[:2], self.held[label].getpeername()[:2]]

    def read(self, label, start, length):
        got = read(self.held[label], length)
        return [len(got), got == pattern(start, len(got))]

    def write(self, label, start, length):
        self.held[label].sendall(pattern(start, length))
        return [length]

    def write_later(self, label, start, length):
        thread = threading.Thread(target=self.write, args=(label, start, length))
        thread.start()
        self.threads.append(thread)
        return []

    def join(self):
        for thread in self.threads:
            thread.join(TIMEOUT)
        return []

    def accept(self, listener, label):
        self.held[label], peer = self.held[listener].accept()
        return [peer[1]]

    def poll(self, label, events, ms):
        poll = select.epoll()
        poll.register(self.held[label], events)
        return [bits for _, bits in poll.poll(ms / 1000)]

    def hear(self, label):
        select.select([self.held[label]], [], [], TIMEOUT)
        data, peer = self.held[label].recvfrom(1 << 16)
        return [data.decode(), peer[1]]

    def say(self, label, text, port):
        self.held[label].sendto(text.encode(), (self.held[label].getsockname()[0], port))
        return []

    def shut(self, label, how):
        self.held[label].shutdown(how)
        return []

    def close(self, label):
        self.held.pop(label).close()
        return []

    def option(self, label):
        return [self.held[label].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)]

    def give(self, label):
        socket.send_fds(self.link, [b"[]"], [self.held[label].fileno()])

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Driver:
    def __init__(self, path, address):
        self.path, self.address = path, address
        self.connect()

    def connect(self):
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return self.link.connect(self.path)
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def ask(self, *words):
        self.link.send(json.dumps(words).encode())
        return json.loads(self.link.recv(1 << 16))

    def give(self, **sockets):
        fds = [sock.fileno() for sock in sockets.values()]
        socket.send_fds(self.link, [json.dumps(["take", *sockets]).encode()], fds)
        assert json.loads(self.link.recv(1 << 16)) == [len(fds)]

    def listener(self):
        listener = socket.create_server((self.address, 0))
        listener.settimeout(TIMEOUT)
        return listener, listener.getsockname()

    def pair(self):
        listener, at = self.listener()
        client = socket.create_connection(at, TIMEOUT)
        server, _ = listener.accept()
        server.settimeout(None)
        listener.close()
        return client, server

    # What is passed, and not kept.

    def unread(self):
        client, server = self.pair()
        client.sendall(pattern(0, 150_000))
        assert read(server, 10_001) == pattern(0, 10_001)
        names = [list(server.getsockname()), list(server.getpeername())]
        self.give(a=server)
        server.close()
        assert self.ask("names", "a") == names
        assert self.ask("read", "a", 10_001, 139_999) == [139_999, True]
        client.sendall(pattern(150_000, 50_000))
        client.shutdown(socket.SHUT_WR)
        assert self.ask("write_later", "a", 0, 3_000_000) == []
        assert self.ask("read", "a", 150_000, 1 << 20) == [50_000, True]
        assert read(client, 3_000_000) == pattern(0, 3_000_000)
        self.ask("join")
        assert self.ask("close", "a") == []
        assert client.recv(1) == b""

    def unsent(self):
        client, server = self.pair()
        server.setblocking(False)
        sent = 0
        data = pattern(0, 64 << 20)
        try:
            while True:
                sent += server.send(data[sent:])
        except BlockingIOError:
            pass
        server.setblocking(True)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.give(a=server)
        server.close()
        assert self.ask("option", "a") == [1]
        assert self.ask("write_later", "a", sent, 1_000_000) == []
        assert read(client, sent + 1_000_000) == pattern(0, sent + 1_000_000)
        self.ask("join")
        assert self.ask("close", "a") == []
        assert client.recv(1) == b""

    def half_closed(self):
        client, server = self.pair()
        client.sendall(pattern(0, 1000))
        client.shutdown(socket.SHUT_WR)
        self.give(a=server)
        server.close()
        assert self.ask("poll", "a", select.EPOLLIN | select.EPOLLRDHUP, 5000) == [select.EPOLLIN | select.EPOLLRDHUP]
        assert self.ask("read", "a", 0, 2000) == [1000, True]
        assert self.ask("write", "a", 0, 1000) == [1000]
        assert self.ask("close", "a") == []
        assert read(client, 2000) == pattern(0, 1000)
        client, server = self.pair()
        server.shutdown(socket.SHUT_WR)
        client.sendall(pattern(0, 1000))
        self.give(a=server)
        server.close()
        assert client.recv(1) == b""
        assert self.ask("write", "a", 0, 10) == ["error", 32]
        assert self.ask("read", "a", 0, 1000) == [1000, True]
        assert self.ask("close", "a") == []

    def waiting(self):
        listener, at = self.listener()
        clients = [socket.create_connection(at, TIMEOUT) for _ in range(5)]
        for number, client in enumerate(clients):
            client.sendall(pattern(number * 1000, 1000))
        kept, _ = listener.accept()
        listener.settimeout(None)
        self.give(l=listener)
        listener.close()
        clients.append(socket.create_connection(at, TIMEOUT))
        clients[-1].sendall(pattern(5000, 1000))
        assert read(kept, 1000) in [pattern(number * 1000, 1000) for number in range(5)]
        ports = {client.getsockname()[1]: number for number, client in enumerate(clients)}
        for turn in range(5):
            [port] = self.ask("accept", "l", "c")
            number = ports.pop(port)
            assert self.ask("read", "c", number * 1000, 1000) == [1000, True], (turn, number)
            assert self.ask("write", "c", number, 100) == [100]
            assert read(clients[number], 100) == pattern(number, 100)
            self.ask("close", "c")
            assert clients[number].recv(1) == b""
        assert list(ports) == [kept.getpeername()[1]]
        assert self.ask("close", "l") == []
        try:
            socket.create_connection(at, TIMEOUT)
            raise AssertionError("nobody listens")
        except ConnectionRefusedError:
            pass

    def many(self):
        """By one sendmmsg, each with one socket."""
        pairs = [self.pair() for _ in range(4)]

        class Vector(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]

        class Message(ctypes.Structure):
            _fields_ = [
                ("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(Vector)), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_long), ("len", ctypes.c_uint),
            ]

        messages, kept = (Message * 4)(), []
        for at, (_, server) in enumerate(pairs):
            text = ctypes.create_string_buffer(json.dumps(["take", f"m{at}"]).encode())
            vector = Vector(ctypes.addressof(text), len(text) - 1)
            head = struct.pack("@Liii", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, server.fileno())
            control = ctypes.create_string_buffer(head, 24)
            kept += [text, vector, control]
            messages[at] = Message(None, 0, ctypes.pointer(vector), 1, ctypes.addressof(control), 24, 0, 0)
        assert ctypes.CDLL(None).sendmmsg(self.link.fileno(), messages, 4, 0) == 4
        for _ in range(4):
            assert json.loads(self.link.recv(1 << 16)) == [1]
        for at, (client, server) in enumerate(pairs):
            server.close()
            assert self.ask("write", f"m{at}", at, 5000) == [5000]
            assert self.ask("close", f"m{at}") == []
            assert read(client, 6000) == pattern(at, 5000)

    def datagrams(self):
        server, client = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for sock in server, client:
            sock.bind((self.address, 0))
            sock.settimeout(TIMEOUT)
        at, port = server.getsockname(), client.getsockname()[1]
        for number in range(3):
            client.sendto(b"early %d" % number, at)
        assert server.recv(100) == b"early 0"
        server.settimeout(None)
        self.give(u=server)
        server.close()
        client.sendto(b"late", at)
        for text in "early 1", "early 2", "late":
            assert self.ask("hear", "u") == [text, port]
        for number in range(20):
            assert self.ask("say", "u", f"answer {number}", port) == []
            assert client.recvfrom(100) == (b"answer %d" % number, at)
        assert self.ask("close", "u") == []

    # What both keep.

    def shared_connection(self, ends="close"):
        client, server = self.pair()
        server.settimeout(TIMEOUT)
        client.sendall(pattern(0, 400_000))
        self.give(a=server)
        at = 0
        for turn in range(10):
            if turn % 2 == 0:
                got = read(server, 7001)
                assert got == pattern(at, 7001), turn
                server.sendall(pattern(at, 7001))
            else:
                assert self.ask("read", "a", at, 7001) == [7001, True], turn
                assert self.ask("write", "a", at, 7001) == [7001]
            at += 7001
        assert read(client, at) == pattern(0, at)
        if ends == "kill":
            self.ask_to_die()
        else:
            assert self.ask("close", "a") == []
        assert read(server, 400_000 - at) == pattern(at, 400_000 - at)
        client.settimeout(0.05)
        try:
            client.recv(1)
            raise AssertionError("it is not closed")
        except TimeoutError:
            client.settimeout(TIMEOUT)
        server.sendall(pattern(0, 100_000))
        server.close()
        assert read(client, 200_000) == pattern(0, 100_000)

    def killed_with_a_connection(self):
        self.shared_connection("kill")

    def shared_listener(self, ends="close"):
        listener, at = self.listener()
        self.give(l=listener)
        for turn in range(6):
            client = socket.create_connection(at, TIMEOUT)
            if turn % 2 == 0:
                assert self.ask("accept", "l", "c") == [client.getsockname()[1]]
                assert self.ask("write", "c", turn, 100) == [100]
                assert self.ask("close", "c") == []
            else:
                accepted, _ = listener.accept()
                accepted.sendall(pattern(turn, 100))
                accepted.close()
            assert read(client, 200) == pattern(turn, 100), turn
        client = socket.create_connection(at, TIMEOUT)
        assert self.ask("poll", "l", select.EPOLLIN, 0) in ([], [select.EPOLLIN])
        if ends == "kill":
            self.ask_to_die()
        else:
            assert self.ask("close", "l") == []
        poll = select.epoll()
        poll.register(listener, select.EPOLLIN)
        assert poll.poll(TIMEOUT) == [(listener.fileno(), select.EPOLLIN)]
        accepted, _ = listener.accept()
        client.sendall(b"through")
        assert accepted.recv(100) == b"through"

    def killed_with_a_listener(self):
        self.shared_listener("kill")

    def asleep(self):
        """A call that sleeps is served although the other program had the socket last."""
        listener, at = self.listener()
        self.give(l=listener)
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()[0]))
        thread.start()
        assert self.ask("poll", "l", select.EPOLLIN, 0) == []
        client = socket.create_connection(at, TIMEOUT)
        thread.join(TIMEOUT)
        client.sendall(pattern(0, 1000))
        received = []
        thread = threading.Thread(target=lambda: received.append(read(accepted[0], 3000)))
        self.give(a=accepted[0])
        thread.start()
        client.sendall(pattern(1000, 2000))
        thread.join(TIMEOUT)
        assert received == [pattern(0, 3000)]
        assert self.ask("close", "a") == [] and self.ask("close", "l") == []

    def there_and_back(self):
        client, server = self.pair()
        client.sendall(pattern(0, 5000))
        self.give(a=server)
        server.close()
        assert self.ask("read", "a", 0, 1000) == [1000, True]
        self.link.send(b'["give", "a"]')
        _, [fd], _, _ = socket.recv_fds(self.link, 100, 1)
        again = socket.socket(fileno=fd)
        assert read(again, 1000) == pattern(1000, 1000)
        assert self.ask("read", "a", 2000, 1000) == [1000, True]
        assert self.ask("close", "a") == []
        assert read(again, 2000) == pattern(3000, 2000)
        again.close()
        assert client.recv(1) == b""

    def shared_datagrams(self):
        server, client = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for sock in server, client:
            sock.bind((self.address, 0))
            sock.settimeout(TIMEOUT)
        at, port = server.getsockname(), client.getsockname()[1]
        self.give(u=server)
        for turn in range(10):
            client.sendto(b"question %d" % turn, at)
            if turn % 2 == 0:
                heard = self.ask("hear", "u")
                assert heard == [f"question {turn}", port], (turn, heard)
                assert self.ask("say", "u", "answer", port) == []
            else:
                assert server.recvfrom(100) == (b"question %d" % turn, ("%s" % self.address, port))
                server.sendto(b"answer", client.getsockname())
            assert client.recvfrom(100) == (b"answer", at)
        client.sendto(b"last", at)
        self.ask_to_die()
        assert server.recv(100) == b"last"

    def ask_to_die(self):
        self.link.send(b'["die"]')
        assert self.link.recv(100) == b""
        self.link.close()
        print("another", flush=True)
        sys.stdin.readline()
        self.connect()


CASES = [
    "unread", "unsent", "half_closed", "waiting", "many", "datagrams", "shared_connection", "shared_listener", "asleep", "there_and_back",
    "killed_with_a_connection", "killed_with_a_listener", "shared_datagrams",
]


def main():
    what, path = sys.argv[1:3]
    if what == "serve":
        if os.path.exists(path):
            os.unlink(path)
        return Server(path).run()
    driver = Driver(path, sys.argv[3])
    for case in sys.argv[4:] or CASES:
        getattr(driver, case)()
        print("passed", case, flush=True)


main()
