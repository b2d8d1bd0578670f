"""Who may bind to which port: prints what each kind of process is answered. Run it as root; what it prints is the same on every stack.

usage: low_ports.py ADDRESS FIRST

FIRST: the first port that everybody may bind to.
"""

import ctypes
import errno
import os
import socket
import struct
import sys

CLONE_NEWUSER = 0x10000000
PR_SET_KEEPCAPS = 8
CAP_VERSION_3 = 0x20080522
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
NET_BIND_SERVICE, ALL = 1 << 10, (1 << 38) - 1
libc = ctypes.CDLL(None, use_errno=True)


def answer(sock, port):
    try:
        sock.bind((address, port))
        return "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


def stream():
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def datagrams():
    return socket.socket(type=socket.SOCK_DGRAM)


def try_all(who):
    for kind in (stream, datagrams):
        answers = [f"{port - first:+}={answer(kind(), port)}" for port in (first - 1, first, first + 1)]
        print(f"{who}: {kind.__name__} {' '.join(answers)}", flush=True)


def in_child(who, become, then=try_all):
    """A process that has become something."""
    if os.fork() == 0:
        become()
        then(who)
        os._exit(0)
    assert os.wait()[1] == 0, who


def become_nobody():
    os.setgid(65534)
    os.setuid(65534)


def set_capabilities(effective, permitted):
    header = struct.pack("<Ii", CAP_VERSION_3, 0)
    words = [effective & 0xFFFFFFFF, permitted & 0xFFFFFFFF, 0, effective >> 32, permitted >> 32, 0]
    assert libc.syscall(SYS_CAPSET, header, struct.pack("<6I", *words)) == 0, ctypes.get_errno()


def become_nobody_who_may():
    assert libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0
    become_nobody()
    set_capabilities(NET_BIND_SERVICE, NET_BIND_SERVICE)


def drop_capability():
    permitted = int(next(line for line in open("/proc/self/status") if line.startswith("CapPrm:")).split()[1], 16)
    set_capabilities(permitted & ~NET_BIND_SERVICE, permitted & ~NET_BIND_SERVICE)


def own_user_namespace():
    assert libc.unshare(CLONE_NEWUSER) == 0, ctypes.get_errno()


address, first = sys.argv[1], int(sys.argv[2])
made_by_root = stream()
try_all("root")
in_child("nobody", become_nobody)
in_child("nobody with the capability", become_nobody_who_may)
in_child("root without the capability", drop_capability)
in_child("root of a user namespace", own_user_namespace)
in_child("effective nobody", lambda: os.seteuid(65534))
os.seteuid(65534)
try_all("effective nobody in place")
os.seteuid(0)
try_all("root again")
in_child("a socket of root's", become_nobody, lambda who: print(f"{who}: {answer(made_by_root, first - 1)}", flush=True))
print(f"the same in root's hands: {answer(made_by_root, first - 1)}", flush=True)
become_nobody()
try_all("nobody for good")
