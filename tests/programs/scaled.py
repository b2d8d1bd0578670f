"""Connections that last, others that do not, and datagrams, each answered with what was sent: scaled.py serve ADDRESS; scaled.py talk ADDRESS goes on until it is told to end,
then connects a socket that it has had from the start, and says whether all was as sent; scaled.py some ADDRESS makes many connections, of which those are busy whose ports it is told,
until it is told to end."""
import random
import signal
import socket
import sys
import threading

PORT, LASTING, MANY = 7200, 4, 40


def echo(stream):
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()


def echo_datagrams(datagrams):
    while True:
        data, peer = datagrams.recvfrom(65536)
        datagrams.sendto(data, peer)


def serve(address):
    listener = socket.create_server((address, PORT), backlog=64)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, PORT))
    threading.Thread(target=echo_datagrams, args=(datagrams,), daemon=True).start()
    print("ready")
    while True:
        threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()


def exchange(stream, chance):
    message = chance.randbytes(chance.choice([1, 64, 1448, 30000]))
    stream.sendall(message)
    answer = b""
    while len(answer) < len(message):
        data = stream.recv(65536)
        assert data, "the stream has ended"
        answer += data
    assert answer == message


def ask(datagrams, chance):
    message = chance.randbytes(100)
    # Anything may be lost on the way, but not ten times.
    for _ in range(10):
        datagrams.send(message)
        try:
            while datagrams.recv(65536) != message:
                pass
            return
        except TimeoutError:
            pass
    raise AssertionError("nobody answers datagrams")


def talk(address):
    chance = random.Random(1)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    spare = socket.socket()
    lasting = [socket.create_connection((address, PORT)) for _ in range(LASTING)]
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.settimeout(2)
    datagrams.connect((address, PORT))
    while not ended.is_set():
        for _ in range(20):
            for stream in lasting:
                exchange(stream, chance)
            with socket.create_connection((address, PORT)) as short:
                exchange(short, chance)
            ask(datagrams, chance)
        print("talking")
    spare.connect((address, PORT))
    for stream in [spare, *lasting]:
        exchange(stream, chance)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
    print("all as sent")


def some(address):
    chance = random.Random(2)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    streams = [socket.create_connection((address, PORT)) for _ in range(MANY)]
    for stream in streams:
        exchange(stream, chance)
    print("connected")
    ports = {int(port) for port in sys.stdin.readline().split()}
    busy = [stream for stream in streams if stream.getsockname()[1] in ports]
    while not ended.is_set():
        for stream in busy:
            exchange(stream, chance)
    for stream in streams:
        exchange(stream, chance)
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""
    print("all as sent")


{"serve": serve, "talk": talk, "some": some}[sys.argv[1]](sys.argv[2])
