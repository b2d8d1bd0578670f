"""multiprocessing: connections and a listener that go to other processes, started in each of the ways that there are.

Each connection is answered by the process that it went to, with a digest of what it sent.
"""

import hashlib
import multiprocessing
import random
import socket
import sys
import threading

CONNECTIONS = 12


def answer(connection):
    with connection:
        length = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        data = connection.recv(length, socket.MSG_WAITALL)
        connection.sendall(hashlib.sha256(data).digest())


def take_connections(pipe):
    """Answers those that come by the pipe."""
    while True:
        connection = pipe.recv()
        if connection is None:
            return
        answer(connection)


def accept_from(listener, count):
    """Answers those that it accepts."""
    for _ in range(count):
        answer(listener.accept()[0])


def ask(address, seed):
    data = random.Random(seed).randbytes(1 + seed * 1000 % 300_000)
    with socket.create_connection(address, 20) as connection:
        connection.sendall(len(data).to_bytes(4, "big") + data)
        assert connection.recv(32, socket.MSG_WAITALL) == hashlib.sha256(data).digest(), seed
        assert connection.recv(1) == b""


def ask_all(address, first):
    outcome = []

    def one(seed):
        ask(address, seed)
        outcome.append(seed)

    threads = [threading.Thread(target=one, args=(first + at,)) for at in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    return threads, outcome


def by_pipe(context, listener):
    pairs = [context.Pipe() for _ in range(2)]
    workers = [context.Process(target=take_connections, args=(there,)) for _, there in pairs]
    for worker in workers:
        worker.start()
    threads, outcome = ask_all(listener.getsockname(), 100)
    for at in range(CONNECTIONS):
        connection = listener.accept()[0]
        pairs[at % 2][0].send(connection)
        connection.close()
    for thread in threads:
        thread.join(30)
    for here, _ in pairs:
        here.send(None)
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0, worker.exitcode
    assert len(outcome) == CONNECTIONS, outcome


def by_listener(context, listener):
    workers = [context.Process(target=accept_from, args=(listener, CONNECTIONS // 2)) for _ in range(2)]
    for worker in workers:
        worker.start()
    threads, outcome = ask_all(listener.getsockname(), 200)
    for each in threads + workers:
        each.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0], workers
    assert len(outcome) == CONNECTIONS, outcome


if __name__ == "__main__":
    for method in sys.argv[2:]:
        context = multiprocessing.get_context(method)
        with socket.create_server((sys.argv[1], 0), backlog=64) as listener:
            by_pipe(context, listener)
            by_listener(context, listener)
        print(method, "answers all", flush=True)
