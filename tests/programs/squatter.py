"""Stands where an engine of root's would be, as nobody, and says of whoever asks it for something.

usage: squatter.py abstract|fallen NAME

abstract: takes the name as abstract names go, and finds that it cannot take it where the sockets of root's engines are.
fallen: was root when it took the name there, and is not any more when it listens.
"""

import os
import socket
import sys
import threading


def serve(client):
    while client.recv(65536):
        print("believed", flush=True)


how, name = sys.argv[1:]
directory = "/run/millrace"
path = directory + "/" + name
os.makedirs(directory, 0o755, exist_ok=True)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if how == "fallen":
    listener.bind(path)
    os.chmod(path, 0o666)
os.setgid(65534)
os.setuid(65534)
if how == "abstract":
    listener.bind("\0millrace/" + name)
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(path)
        sys.exit("nobody can make " + path)
    except PermissionError:
        pass
listener.listen()
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
