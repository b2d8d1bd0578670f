"""Sockets that are passed to whoever listens at a Unix address, and what becomes of them.

  passed_on.py see PATH               receives one, says what it sees of it, and passes it on to whoever connects next
  passed_on.py give PATH ADDRESS      gives a connection of its own, and takes it back
  passed_on.py limits ADDRESS         what cannot be passed, and how many at once
"""

import ctypes
import errno
import os
import select
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
PATIENCE = 20


def receive(channel):
    data, fds, flags, _ = socket.recv_fds(channel, 1, 1)
    assert (data, len(fds), flags & socket.MSG_CTRUNC) == (b"m", 1, 0), (data, fds, flags)
    return fds[0]


def connect(path):
    channel = socket.socket(socket.AF_UNIX)
    channel.settimeout(PATIENCE)
    channel.connect(path)
    return channel


def look(fd):
    """What one sees who has a descriptor and nothing behind it: a peer that has gone, and no call that waits."""
    kept = socket.socket(fileno=os.dup(fd))
    assert kept.recv(1) == b""
    try:
        kept.send(b"x")
        raise AssertionError("it takes bytes")
    except BrokenPipeError:
        pass
    poll = select.poll()
    poll.register(kept, select.POLLIN)
    assert poll.poll(0)[0][1] & select.POLLHUP
    kept.close()
    print("closed", flush=True)


def see(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        with listener.accept()[0] as giver:
            fd = receive(giver)
        look(fd)
        with listener.accept()[0] as taker:
            socket.send_fds(taker, [b"m"], [fd])
            os.close(fd)
            # Until it has been taken.
            taker.recv(1)


def give(path, address):
    with socket.create_server((address, 0)) as listener:
        peer = socket.create_connection(listener.getsockname(), PATIENCE)
        kept = listener.accept()[0]
    with connect(path) as channel:
        socket.send_fds(channel, [b"m"], [kept.fileno()])
    kept.close()
    # Nobody of the program has it now.
    peer.sendall(b"there and back")
    print("given", flush=True)
    if sys.stdin.readline() == "back\n":
        with connect(path) as channel:
            kept = socket.socket(fileno=receive(channel))
            assert kept.recv(64) == b"there and back"
            kept.sendall(b"again")
            assert peer.recv(64) == b"again"
            kept.close()
    # Bytes that nobody read make it a reset.
    try:
        assert peer.recv(1) == b""
    except ConnectionResetError:
        pass
    print("done", flush=True)


def limits(address):
    def refused(*fds):
        try:
            socket.send_fds(here, [b"m"], fds)
        except OSError as error:
            return error.errno

    here, there = socket.socketpair()
    with socket.create_server((address, 0)) as listener:
        peer = socket.create_connection(listener.getsockname(), PATIENCE)
        with select.epoll() as poller:
            poller.register(peer, select.EPOLLIN)
            assert refused(poller.fileno()) == errno.EOPNOTSUPP
        # Out of a process, in place of from it.
        own = os.pidfd_open(os.getpid())
        assert libc.pidfd_getfd(own, peer.fileno(), 0) == -1 and ctypes.get_errno() == errno.EOPNOTSUPP
        number = libc.syscall(438, own, there.fileno(), 0)
        assert socket.socket(fileno=number).family == socket.AF_UNIX
        # What is not open, and a number that has been closed this moment.
        assert refused(peer.fileno(), 1_000_000) == errno.EBADF
        # More than one message may have.
        assert refused(*[peer.fileno()] * 254) == errno.EINVAL
        # Messages that nobody reads.
        many = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(250)]
        for each in many:
            each.bind((address, 0))
        numbers = [each.fileno() for each in many]
        errors = [refused(*numbers) for _ in range(6)]
        assert errors == [None] * 4 + [errno.ETOOMANYREFS] * 2, errors
        # One that fails holds nothing.
        closed, other = socket.socketpair()
        other.close()
        errors = []
        for _ in range(30):
            try:
                socket.send_fds(closed, [b"m"], numbers[:8])
            except BrokenPipeError:
                errors.append(errno.EPIPE)
        assert errors == [errno.EPIPE] * 30, errors
        there.close()
        here, there = socket.socketpair()
        for each in range(100):
            error = refused(*numbers[:100])
            if error is None:
                break
            assert error == errno.ETOOMANYREFS, error
        got = socket.recv_fds(there, 1, 100)[1]
        assert [socket.socket(fileno=fd).getsockname() for fd in got] == [each.getsockname() for each in many[:100]]
    print("all is as it should be", flush=True)


globals()[sys.argv[1]](*sys.argv[2:])
