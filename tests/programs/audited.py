"""Gives an engine something to write to its audit log. Run it on the engine, as root.

usage: audited.py ENGINE
"""

import os
import socket
import struct
import sys

ATTACH, PORT, DOWN = 1, 80, 8
VERSION = struct.Struct("<iI")


def ask(control, version, kind, token=bytes(16)):
    control.send(struct.pack("<II16s4Q", version, kind, token, 0, 0, 0, 0))
    return VERSION.unpack(control.recv(200)[:8])


def connect():
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect("/run/millrace/" + sys.argv[1])
    return control


# What follows on a line of its own would be another event.
with open("/proc/self/comm", "w") as name:
    name.write("a\nevent=b")
sock = socket.socket()
os.setgid(65534)
os.setuid(65534)
try:
    sock.bind(("10.9.0.2", PORT))
except PermissionError:
    print("no port", flush=True)
control = connect()
version = ask(control, 0, ATTACH)[1]
print("no token", ask(control, version, ATTACH)[0], flush=True)
print("no right", ask(control, version, DOWN)[0], flush=True)
many = [connect() for _ in range(300)]
# The engine has closed the oldest.
many[0].recv(1)
print("ready", flush=True)
