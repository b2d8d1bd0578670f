"""A server of one thread that blocks in each call, and says what each call ended with.

usage: blocking.py ADDRESS PORT
"""

import errno
import socket
import sys


def outcome(what, call):
    """Calls, prints what came of it, and returns it; None after an error."""
    try:
        result = call()
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
        return None
    print(what, "ok" if not isinstance(result, bytes) else len(result), flush=True)
    return result


listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
connection = outcome("accept", lambda: listener.accept()[0])
while outcome("recv", lambda: connection.recv(65536)):
    pass
outcome("send", lambda: connection.send(b"x" * 1000))
outcome("send", lambda: connection.send(b"x" * 1000))
outcome("accept", lambda: listener.accept()[0])
outcome("connect", lambda: socket.create_connection(("10.9.0.1", 9)))
