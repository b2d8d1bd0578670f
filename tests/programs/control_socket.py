"""Says to an engine's control socket what nobody should. Arguments: the attack, more of its own.

ghosts ENGINE: attaches, says of itself that its fork has failed, forks, and takes all pollers that it gets.
unread ENGINE: sends requests and reads no answer.
connections ENGINE: connects until it can no more.
lingering ENGINE: sends the last descriptors of sockets that take a minute to close, attached and not.
random ENGINE SEED COUNT: requests that are wrong somehow.
"""

import os
import random
import socket
import struct
import sys
import threading
import time

ATTACH, FORK, FORKED, POLLER, CLAIM = 1, 2, 3, 4, 13


def connect(engine):
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect("/run/millrace/" + engine)
    return control


def request(version, kind, token=bytes(16), arguments=(0, 0, 0, 0)):
    return struct.pack("<II16s4Q", version, kind, token, *arguments)


def version_of(engine):
    """An engine says its version in every answer."""
    control = connect(engine)
    control.send(request(0, ATTACH))
    return struct.unpack("<iI", control.recv(200)[:8])[1]


def ghosts(engine):
    token = bytes.fromhex(os.environ["MILLRACE_TOKEN"])
    version = version_of(engine)
    control = connect(engine)

    def call(kind, *arguments):
        control.send(request(version, kind, token, (arguments + (0,) * 4)[:4]))
        return struct.unpack("<iI8Q", control.recv(200))

    own = call(ATTACH)[5] >> 32
    control.send(request(version, FORKED, token, (own, 0, 0, 0)))
    control.send(request(version, FORKED, token, (own, 1, 0, 0)))
    child = call(FORK)[2]
    control.send(request(version, FORKED, token, (child, 1, 0, 0)))
    control.send(request(version, FORKED, token, (child + 65536, 0, 0, 0)))
    pollers = 0
    while call(POLLER)[0] == 0:
        pollers += 1
    print("ready:", own, child, pollers, flush=True)


def unread(engine):
    version = version_of(engine)
    control = connect(engine)
    control.setblocking(False)
    sent, end = 0, time.monotonic() + 60
    try:
        while time.monotonic() < end:
            try:
                control.send(request(version, ATTACH))
                sent += 1
            except BlockingIOError:
                time.sleep(0.001)
    except OSError as error:
        print("ready: closed after", sent, error, flush=True)


def connections(engine):
    open_ones = []
    try:
        while len(open_ones) < 30_000:
            open_ones.append(connect(engine))
    except OSError as error:
        print("ready:", len(open_ones), error, flush=True)
    print("ready:", len(open_ones), flush=True)
    sys.stdin.read()


def lingering_socket():
    """A socket of the kernel's that waits for its peer when it is closed, and the listener that the peer waits at."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    lingers = socket.socket()
    lingers.connect(listener.getsockname())
    lingers.setblocking(False)
    try:
        while True:
            lingers.send(bytes(65536))
    except BlockingIOError:
        pass
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return lingers, listener


def lingering(engine):
    token = bytes.fromhex(os.environ["MILLRACE_TOKEN"])
    version = version_of(engine)
    kept, refused = [], 0
    for attached in (True, False) * 3:
        control = connect(engine)
        if attached:
            control.send(request(version, ATTACH, token))
            control.recv(200)
        lingers, listener = lingering_socket()
        try:
            socket.send_fds(control, [request(version, CLAIM, token)], [lingers.fileno()])
            # Whoever closes it last waits, and that may be this program.
            threading.Thread(target=lingers.close, daemon=True).start()
        except PermissionError:
            refused += 1
            kept.append(lingers)
        kept.append(listener)
        if not attached:
            # What lies unread in it is closed with it.
            control.close()
        else:
            kept.append(control)
    print("ready:", refused, "refused", flush=True)
    sys.stdin.read()


def one_of(version, randomly):
    token = bytes.fromhex(os.environ["MILLRACE_TOKEN"])
    token = token if randomly.random() < 0.7 else randomly.randbytes(16)
    word = lambda: randomly.choice(
        (0, 1, 2, 3, randomly.getrandbits(4), randomly.getrandbits(16), randomly.getrandbits(64), os.getpid(), 1)
    )
    kind = randomly.choice((1, 2, 3, 4, 5, 9, randomly.randrange(20), randomly.getrandbits(32)))
    version = version if randomly.random() < 0.95 else randomly.getrandbits(32)
    message = request(version, kind, token, (word(), word(), word(), word()))
    more = randomly.choice((0, 0, 0, 8, 64, randomly.randrange(9000)))
    message += randomly.randbytes(more)
    return message[: randomly.randrange(60)] if randomly.random() < 0.05 else message


def at_random(engine, seed, count):
    version = version_of(engine)
    randomly = random.Random(int(seed))
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    done = 0
    while done < int(count):
        control = connect(engine)
        control.settimeout(5)
        for _ in range(randomly.randrange(1, 30)):
            done += 1
            message = one_of(version, randomly)
            try:
                if randomly.random() < 0.2:
                    socket.send_fds(control, [message], descriptors[: randomly.randrange(1, 4)])
                else:
                    control.send(message)
                if randomly.random() < 0.7:
                    control.settimeout(0.02)
                    control.recv(1000)
            except OSError:
                pass
        control.close()
    print("ready:", done, flush=True)


def main():
    # Not as root, whom the engine believes more; after the import, so that the program is attached.
    os.setgid(65534)
    os.setuid(65534)
    attack = {"ghosts": ghosts, "unread": unread, "connections": connections, "lingering": lingering, "random": at_random}[sys.argv[1]]
    attack(*sys.argv[2:])


main()
