"""Small messages over TCP and datagrams of all sizes, each answered: messages.py serve ADDRESS, messages.py ask ADDRESS."""
import random
import socket
import sys
import threading

PORT = 7100


def echo_stream(listener):
    while True:
        stream, _ = listener.accept()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := stream.recv(65536):
            stream.sendall(data)
        stream.close()


def echo_datagrams(datagrams):
    while True:
        data, peer = datagrams.recvfrom(65536)
        datagrams.sendto(data, peer)


def serve(address):
    listener = socket.create_server((address, PORT))
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, PORT))
    threading.Thread(target=echo_stream, args=(listener,), daemon=True).start()
    print("ready")
    echo_datagrams(datagrams)


def ask(address):
    chance = random.Random(1)
    stream = socket.create_connection((address, PORT))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(500):
        message = chance.randbytes(chance.choice([1, 36, 64, 300]))
        stream.sendall(message)
        answer = b""
        while len(answer) < len(message):
            answer += stream.recv(65536)
        assert answer == message
    stream.close()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.settimeout(10)
    datagrams.connect((address, PORT))
    for size in [0, 1, 17, 18, 100, 1472, 1473, 4000, 20000, 60000] * 3:
        message = chance.randbytes(size)
        datagrams.send(message)
        assert datagrams.recv(65536) == message, size


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    ask(sys.argv[2])
