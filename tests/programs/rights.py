"""Sockets that travel between processes in messages (SCM_RIGHTS), at random from a seed.

One process keeps a model of who holds which socket, and in how many messages it is on its way; it has the others send, receive,
peek, truncate, close and die, and finds out after each step whether a socket is open exactly as long as the model says.
"""

import ctypes
import os
import random
import signal
import socket
import struct
import sys

HOST = sys.argv[1]
SEEDS = range(int(sys.argv[2]), int(sys.argv[3]))
WORKERS = 4
STEPS = 60
PATIENCE = 10

libc = ctypes.CDLL(None, use_errno=True)


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Msghdr(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.POINTER(Iovec)), ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int),
    ]


class Mmsghdr(ctypes.Structure):
    _fields_ = [("header", Msghdr), ("len", ctypes.c_uint)]


def rights(fds):
    return struct.pack("@Nii", 16 + 4 * len(fds), socket.SOL_SOCKET, socket.SCM_RIGHTS) + struct.pack(f"@{len(fds)}i", *fds)


def control_len(room):
    """Of control data: what begins with credentials has room for all the same, if that is for many."""
    return (32 if room > 2 else 0) + 16 + 4 * room


def sendmmsg(channel, messages):
    """Messages of one byte each, with descriptors."""
    count = len(messages)
    array, keep = (Mmsghdr * count)(), []
    for entry, fds in zip(array, messages):
        data, control = ctypes.create_string_buffer(b"m", 1), rights(fds)
        control = ctypes.create_string_buffer(control, -(-len(control) // 8) * 8)
        iov = Iovec(ctypes.addressof(data), 1)
        keep += [data, control, iov]
        entry.header = Msghdr(None, 0, ctypes.pointer(iov), 1, ctypes.addressof(control), 16 + 4 * len(fds), 0)
    sent = libc.sendmmsg(channel.fileno(), array, count, 0)
    assert sent == count, os.strerror(ctypes.get_errno())


def recvmmsg(channel, count, room):
    """The descriptors of so many messages."""
    array, keep = (Mmsghdr * count)(), []
    for entry in array:
        data, control = ctypes.create_string_buffer(1), ctypes.create_string_buffer(control_len(room))
        iov = Iovec(ctypes.addressof(data), 1)
        keep.append((data, control, iov))
        entry.header = Msghdr(None, 0, ctypes.pointer(iov), 1, ctypes.addressof(control), control_len(room), 0)
    got = libc.recvmmsg(channel.fileno(), array, count, socket.MSG_CMSG_CLOEXEC, None)
    assert got == count, (got, os.strerror(ctypes.get_errno()))
    messages = []
    for entry, (_, control, _) in zip(array, keep):
        fds, left = [], control.raw[:entry.header.controllen]
        while len(left) >= 16:
            size, level, kind = struct.unpack("@Nii", left[:16])
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds += struct.unpack(f"@{(size - 16) // 4}i", left[16:size])
            left = left[-(-size // 8) * 8:]
        messages.append(fds)
    return messages


class Holder:
    """What a process does for the model: its sockets are by number of descriptor."""

    def __init__(self, own, channels):
        self.own, self.channels, self.sockets = own, channels, {}

    def send(self, to, messages, how):
        channel = self.channels[self.own, to][0]
        if how == "sendmmsg":
            sendmmsg(channel, messages)
        else:
            for fds in messages:
                sent = channel.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"@{len(fds)}i", *fds))])
                assert sent == 1

    def receive(self, source, how, count, room):
        channel = self.channels[source, self.own][1]
        if how == "read":
            for _ in range(count):
                assert channel.recv(1) == b"m"
            return [[] for _ in range(count)]
        if how == "recvmmsg":
            messages = recvmmsg(channel, count, room)
        else:
            messages = []
            flags = socket.MSG_PEEK if how == "peek" else 0
            for _ in range(count):
                data, ancillary, _, _ = channel.recvmsg(1, control_len(room), flags)
                assert data == b"m", data
                fds = []
                for level, kind, words in ancillary:
                    if kind == socket.SCM_RIGHTS:
                        fds += struct.unpack(f"@{len(words) // 4}i", words[:len(words) // 4 * 4])
                messages.append(fds)
        for fd in sum(messages, []):
            kept = socket.socket(fileno=fd)
            assert kept.family == socket.AF_INET, kept
            kept.settimeout(PATIENCE)
            self.sockets[fd] = kept
        return messages

    def adopt(self, kept):
        kept.settimeout(PATIENCE)
        self.sockets[kept.fileno()] = kept
        return kept.fileno()

    def dup(self, fd):
        return self.adopt(self.sockets[fd].dup())

    def close(self, fd):
        self.sockets.pop(fd).close()

    def name(self, fd):
        return self.sockets[fd].getsockname()

    def echo(self, fd):
        kept = self.sockets[fd]
        if kept.type == socket.SOCK_DGRAM:
            data, source = kept.recvfrom(64)
            kept.sendto(data, source)
        elif kept.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            taken = kept.accept()[0]
            taken.sendall(taken.recv(64))
            taken.close()
        else:
            kept.sendall(kept.recv(64))


def serve(holder, commands):
    while True:
        line = commands.recv(65536)
        if not line:
            os._exit(0)
        name, arguments = eval(line)
        try:
            answer = ("done", getattr(holder, name)(*arguments))
        except BaseException as error:
            answer = ("failed", f"{name}{arguments}: {error!r}")
        commands.send(repr(answer).encode())


class Thing:
    """A socket that travels. `holds`: process and descriptor; `flying`: messages that it is in, once for each time."""

    def __init__(self, kind):
        self.kind, self.holds, self.flying = kind, set(), 0


class Model:
    def __init__(self, seed):
        self.random = random.Random(seed)
        kinds = [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET]
        pairs = [(a, b) for a in range(WORKERS + 1) for b in range(WORKERS + 1)]
        channels = {pair: socket.socketpair(socket.AF_UNIX, self.random.choice(kinds)) for pair in pairs}
        for _, end in channels.values():
            if self.random.random() < 0.3:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.queues = {pair: [] for pair in pairs}
        self.commands, self.pids = {}, {}
        self.things, self.port = [], 0
        for own in range(1, WORKERS + 1):
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                here.close()
                for commands in self.commands.values():
                    commands.close()
                for (a, b), (sender, receiver) in channels.items():
                    if a != own:
                        sender.close()
                    if b != own:
                        receiver.close()
                serve(Holder(own, channels), there)
            there.close()
            self.commands[own], self.pids[own] = here, pid
        for (a, b), (sender, receiver) in channels.items():
            if a != 0:
                sender.close()
            if b != 0:
                receiver.close()
        self.holder = Holder(0, channels)
        self.listener = socket.create_server((HOST, 0))
        self.listener.settimeout(PATIENCE)

    def alive(self):
        return [0, *self.commands]

    def call(self, process, name, *arguments):
        if process == 0:
            return getattr(self.holder, name)(*arguments)
        self.commands[process].send(repr((name, arguments)).encode())
        outcome, answer = eval(self.commands[process].recv(65536))
        assert outcome == "done", answer
        return answer

    def open(self):
        kind = self.random.choice(["connection", "connection", "listener", "datagrams", "bound"])
        thing = Thing(kind)
        if kind == "connection":
            thing.peer = socket.create_connection(self.listener.getsockname(), PATIENCE)
            kept = self.listener.accept()[0]
        elif kind == "datagrams":
            kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            kept.bind((HOST, 0))
        else:
            kept = socket.socket()
            kept.bind((HOST, 0))
            if kind == "listener":
                kept.listen(8)
        thing.name = kept.getsockname()
        thing.holds.add((0, self.holder.adopt(kept)))
        self.things.append(thing)

    def holds(self, process):
        return [(thing, fd) for thing in self.things for holder, fd in sorted(thing.holds) if holder == process]

    def send(self):
        process = self.random.choice(self.alive())
        held = self.holds(process)
        to = self.random.choice(self.alive())
        if not held:
            return
        how = self.random.choice(["sendmsg", "sendmsg", "sendmmsg"])
        messages = []
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            many = self.random.choice([1, 1, 1, 2, 3, 5, self.random.choice([9, 20, 70, 253])])
            messages.append([self.random.choice(held) for _ in range(many)])
        if len(self.queues[process, to]) + len(messages) > 5 or sum(map(len, messages)) > 400:
            return
        self.call(process, "send", to, [[fd for _, fd in message] for message in messages], how)
        for message in messages:
            self.queues[process, to].append([thing for thing, _ in message])
            for thing, _ in message:
                thing.flying += 1
        for thing, fd in {entry for message in messages for entry in message}:
            if self.random.random() < 0.7:
                self.close(thing, process, fd)

    def receive(self):
        ready = [pair for pair, queue in self.queues.items() if queue and pair[1] in self.alive()]
        if not ready:
            return
        pair = self.random.choice(ready)
        queue = self.queues[pair]
        how = self.random.choice(["recvmsg", "recvmsg", "recvmsg", "recvmmsg", "peek", "read"])
        count = 1 if how == "peek" else self.random.randint(1, len(queue))
        room = self.random.choice([253, 253, 253, 2])
        if any(len(message) > 253 for message in queue):
            return
        answer = self.call(pair[1], "receive", pair[0], how, count, room)
        for fds, things in zip(answer, list(queue)):
            expected = 0 if how == "read" else min(room, len(things))
            # Where there is little room credentials may have taken it.
            assert len(fds) in ([expected] if room > 2 else [0, expected]), (how, fds, expected)
            for fd, thing in zip(fds, things):
                assert tuple(self.call(pair[1], "name", fd)) == thing.name
                thing.holds.add((pair[1], fd))
            if how != "peek":
                queue.pop(0)
                for thing in things:
                    thing.flying -= 1

    def close(self, thing, process, fd):
        self.call(process, "close", fd)
        thing.holds.remove((process, fd))

    def close_one(self):
        process = self.random.choice(self.alive())
        held = self.holds(process)
        if held:
            thing, fd = self.random.choice(held)
            self.close(thing, process, fd)

    def dup_one(self):
        process = self.random.choice(self.alive())
        held = self.holds(process)
        if held:
            thing, fd = self.random.choice(held)
            thing.holds.add((process, self.call(process, "dup", fd)))

    def die(self):
        if len(self.commands) < 2:
            return
        process = self.random.choice(list(self.commands))
        if self.random.random() < 0.5:
            os.kill(self.pids[process], signal.SIGKILL)
        self.commands.pop(process).close()
        os.waitpid(self.pids.pop(process), 0)
        for thing in self.things:
            thing.holds = {(holder, fd) for holder, fd in thing.holds if holder != process}
        for pair, queue in self.queues.items():
            # What it has sent and others have not read is still theirs to read.
            if pair[1] == process:
                for thing in sum(queue, []):
                    thing.flying -= 1
                queue.clear()

    def check(self, thing):
        if thing.holds:
            process, fd = self.random.choice(sorted(thing.holds))
            word = self.random.randbytes(8)
            if thing.kind == "connection":
                thing.peer.sendall(word)
                self.call(process, "echo", fd)
                assert thing.peer.recv(64) == word
            elif thing.kind == "listener":
                with socket.create_connection(thing.name, PATIENCE) as peer:
                    peer.sendall(word)
                    self.call(process, "echo", fd)
                    assert peer.recv(64) == word
            elif thing.kind == "datagrams":
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
                    peer.settimeout(PATIENCE)
                    peer.connect(thing.name)
                    peer.send(word)
                    self.call(process, "echo", fd)
                    assert peer.recv(64) == word
            else:
                assert tuple(self.call(process, "name", fd)) == thing.name
            return True
        if thing.flying:
            # Nobody has it, and it is open all the same.
            if thing.kind == "connection":
                thing.peer.setblocking(False)
                try:
                    got = thing.peer.recv(1)
                    raise AssertionError(f"closed on its way: {got}")
                except BlockingIOError:
                    pass
                thing.peer.settimeout(PATIENCE)
            elif thing.kind == "listener":
                socket.create_connection(thing.name, PATIENCE).close()
                thing.kind = "crowded"
            return True
        # Nobody has it any more.
        if thing.kind == "connection":
            try:
                assert thing.peer.recv(1) == b""
            except ConnectionResetError:
                pass
            thing.peer.close()
        elif thing.kind in ("listener", "crowded"):
            self.until(lambda: self.is_refused(thing.name))
        else:
            kind = socket.SOCK_DGRAM if thing.kind == "datagrams" else socket.SOCK_STREAM
            self.until(lambda: self.is_free(kind, thing.name))
        return False

    def until(self, true):
        """The last close may be one that nobody waits for."""
        for _ in range(1000):
            if true():
                return
            signal.sigtimedwait([], 0.01)
        raise AssertionError("it is still open")

    def is_refused(self, name):
        try:
            socket.create_connection(name, PATIENCE).close()
            return False
        except ConnectionError:
            return True

    def is_free(self, kind, name):
        with socket.socket(socket.AF_INET, kind) as other:
            try:
                other.bind(name)
                return True
            except OSError:
                return False

    def step(self):
        actions = [self.open, self.send, self.send, self.send, self.receive, self.receive, self.receive, self.close_one, self.dup_one]
        if self.random.random() < 0.03:
            actions = [self.die]
        self.random.choice(actions)()
        chosen = [thing for thing in self.things if self.random.random() < 0.5]
        for thing in chosen:
            if not self.check(thing):
                self.things.remove(thing)

    def end(self):
        """All go as they are: nothing may stay."""
        for process in list(self.commands):
            self.commands.pop(process).close()
            os.waitpid(self.pids.pop(process), 0)
        for thing, fd in self.holds(0):
            self.holder.close(fd)
        for sender, receiver in self.holder.channels.values():
            sender.close()
            receiver.close()
        for thing in self.things:
            thing.holds, thing.flying = set(), 0
            assert not self.check(thing)
        self.listener.close()


def main():
    done = 0
    for seed in SEEDS:
        model = Model(seed)
        step = 0
        try:
            for step in range(STEPS):
                model.step()
            step = "the end"
            model.end()
        except BaseException as error:
            print(f"seed {seed}, step {step}: {error!r}", flush=True)
            raise
        done += 1
    print(f"{done} seeds")


main()
