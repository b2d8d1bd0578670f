"""Streams that last, each written and read all the time; what an echo server sends back must be what it was sent: poured.py ADDRESS goes on until it is told to end."""
import random
import signal
import socket
import sys
import threading
import time

PORT, STREAMS, PATTERN = 7200, 12, 999_983


def write(stream, pattern, ended, sent):
    chance = random.Random(stream.fileno())
    at = 0
    while not ended.is_set():
        start = at % PATTERN
        piece = pattern[start : start + chance.choice([1, 100, 1448, 20_000, 200_000])]
        stream.sendall(piece)
        at += len(piece)
        if chance.random() < 0.05:
            time.sleep(0.01)
    sent.append(at)
    stream.shutdown(socket.SHUT_WR)


def read(stream, pattern, got):
    at = 0
    while data := stream.recv(65536):
        start = at % PATTERN
        expected = pattern[start : start + len(data)]
        expected += pattern[: len(data) - len(expected)]
        assert data == expected, f"stream {stream.fileno()} at {at}"
        at += len(data)
        got[0] = at
    return at


def pour(address):
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ends, got, failed = [], [], []
    for number in range(STREAMS):
        stream = socket.create_connection((address, PORT))
        pattern = random.Random(number).randbytes(PATTERN)
        sent, count = [], [0]
        writer = threading.Thread(target=write, args=(stream, pattern, ended, sent))

        def check(stream=stream, pattern=pattern, sent=sent, writer=writer, count=count):
            try:
                at = read(stream, pattern, count)
                writer.join()
                assert sent == [at], f"{sent} were sent and {at} came"
            except BaseException as error:
                failed.append(error)
                ended.set()

        reader = threading.Thread(target=check)
        ends += [writer, reader]
        got.append(count)
        writer.start()
        reader.start()
    before = [0] * STREAMS
    while not ended.wait(0.05):
        now = [count[0] for count in got]
        # All of them have gone on.
        if all(new > old for new, old in zip(now, before)):
            print("poured")
            before = now
    for end in ends:
        end.join()
    assert not failed, failed
    print("all as sent")


pour(sys.argv[1])
