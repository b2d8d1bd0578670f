"""An engine of another version, as far as its control socket shows.

usage: other_version.py NAME
"""

import errno
import socket
import struct
import sys
import threading


def answer(client):
    """Every request gets the same answer: this version is not spoken here."""
    while client.recv(65536):
        client.send(struct.pack("=iI8Q", errno.EPROTONOSUPPORT, 0xFFFF, *[0] * 8))


listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\0millrace/" + sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
