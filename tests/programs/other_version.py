"""An engine of another version, as far as its control socket shows.

usage: other_version.py NAME
"""

import errno
import os
import signal
import socket
import struct
import sys
import threading


def answer(client):
    """Every request gets the same answer: this version is not spoken here."""
    while client.recv(65536):
        client.send(struct.pack("=iI8Q", errno.EPROTONOSUPPORT, 0xFFFF, *[0] * 8))


LOCK = "@lock"
path = "/run/millrace/" + sys.argv[1]
os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)


def end(*_):
    os.unlink(path)
    os.unlink(path + LOCK)
    os._exit(0)


signal.signal(signal.SIGTERM, end)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(path)
with open(path + LOCK, "w") as lock:
    # Engines of other network namespaces are not meant by those who name none.
    print(os.stat("/proc/self/ns/net").st_ino, file=lock)
listener.listen()
print("ready", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
