"""reach_process.py PID USER: becomes the user of this number, and says by which ways it reaches the process."""

import ctypes
import os
import sys

PTRACE_SEIZE = 0x4206
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
PIDFD_GETFD = 438

pid, user = int(sys.argv[1]), int(sys.argv[2])
# Where its first mapping is: seen by root.
start = int(open(f"/proc/{pid}/maps").read().split("-")[0], 16)
os.setgroups([])
os.setgid(user)
os.setuid(user)
libc = ctypes.CDLL(None, use_errno=True)


class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def memory():
    with open(f"/proc/{pid}/mem", "rb") as file:
        file.seek(start)
        file.read(1)


def descriptors():
    for name in os.listdir(f"/proc/{pid}/fd"):
        os.readlink(f"/proc/{pid}/fd/{name}")


def environment():
    open(f"/proc/{pid}/environ", "rb").read()


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def trace():
    checked(libc.ptrace(PTRACE_SEIZE, pid, None, None))


def copy():
    own = ctypes.create_string_buffer(1)
    here = Piece(ctypes.addressof(own), 1)
    there = Piece(start, 1)
    checked(libc.syscall(PROCESS_VM_READV, pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def descriptor():
    checked(libc.syscall(PIDFD_GETFD, os.pidfd_open(pid), 0, 0))


for way in [memory, descriptors, environment, copy, descriptor, trace]:
    try:
        way()
        print(way.__name__)
    except OSError:
        pass
