"""More processes than the engine has room for, and one that has no room for the engine. Says "ready" when it listens, and "done"."""

import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading

listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=16)
print("ready", flush=True)
connection = listener.accept()[0]


def fork_until_refused():
    children, reason = [], None
    while len(children) < 3000 and reason is None:
        try:
            pid = os.fork()
        except OSError as error:
            reason = error.errno
            continue
        if pid == 0:
            signal.pause()
        children.append(pid)
    return children, reason


def end(children):
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


# The new is refused, and what is there goes on.
children, reason = fork_until_refused()
assert reason == errno.EAGAIN and len(children) > 100, (len(children), reason)
connection.sendall(b"refused")
assert connection.recv(1) == b"1"
end(children)

# Ends are noticed in their own time, so the room comes back in that of whoever waits for it.
again = None
while again is None:
    try:
        again = os.fork()
    except OSError:
        continue
    if again == 0:
        os._exit(0)
os.waitpid(again, 0)

# Forks of many threads at once.
def fork_some():
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


threads = [threading.Thread(target=fork_some) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
connection.sendall(b"again")
assert connection.recv(1) == b"2"

# A limit that a program sets is about its own memory, not the engine's: what it asks for is what it sees, and its sockets work.
if os.fork() == 0:
    limit = (200 << 20, 300 << 20)
    resource.setrlimit(resource.RLIMIT_AS, limit)
    assert resource.getrlimit(resource.RLIMIT_AS) == limit
    bytearray(10 << 20)
    socket.create_server((sys.argv[1], 7998)).close()
    os._exit(0)
assert os.wait()[1] == 0


def limit_past_the_library():
    prlimit64 = {"x86_64": 302, "aarch64": 261}[os.uname().machine]
    limit = (ctypes.c_uint64 * 2)(200 << 20, 200 << 20)
    assert ctypes.CDLL(None).syscall(prlimit64, 0, resource.RLIMIT_AS, limit, None) == 0


# A program that has too little room for the engine's memory says so, holds nothing open, and harms nobody.
code = """
import socket, sys
try:
    socket.create_server(("0.0.0.0", 7999))
except OSError as error:
    print(error.errno, flush=True)
sys.stdin.read()
"""
limited = subprocess.Popen(
    [sys.executable, "-c", code],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    pass_fds=[connection.fileno()],
    preexec_fn=limit_past_the_library,
)
assert int(limited.stdout.readline()) == errno.ENETDOWN
connection.sendall(b"limited")
assert connection.recv(1) == b"3"
# The peer sees this while the other one still runs.
connection.close()
accepted = listener.accept()[0]
assert accepted.recv(1) == b"4"
said = limited.communicate(b"")[1]
assert b"cannot be mapped" in said, said
# Commands of the C library's own making.
assert os.system("true") == 0 and os.popen("echo heard").read() == "heard\n"
accepted.sendall(b"still")
print("done", flush=True)
