"""Sends traffic past the stack under test in several ways, each twice, and starts programs that do.

usage: to_the_kernel.py CHROOT STATIC_PROGRAM PROGRAM...

CHROOT has a program /true with its libraries. Ends when its input does.
"""

import os
import socket
import subprocess
import sys


def chrooted(path):
    child = os.fork()
    if child == 0:
        os.chroot(path)
        os.execv("/true", ["true"])
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(root, static_program, *others):
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with socket.create_connection(listener.getsockname()) as client:
                listener.accept()[0].sendall(b"x")
                assert client.recv(1) == b"x"
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
        with socket.socket() as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        subprocess.run([static_program], check=True)
        assert os.spawnv(os.P_WAIT, static_program, [static_program]) == 0
        without = {**os.environ, "LD_PRELOAD": ""}
        subprocess.run(["/bin/true"], env=without, check=True)
    for other in others:
        subprocess.run([other], check=True)
    assert chrooted(root) == 0
    print("done", flush=True)
    sys.stdin.read()


main(*sys.argv[1:])
