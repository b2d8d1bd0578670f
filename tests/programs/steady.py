"""A stream of known bytes, over four connections: steady.py read ADDRESS reads until it is told to end, and says whether all was as sent; steady.py write ADDRESS
writes for ever."""
import select
import signal
import socket
import sys

PORT, CONNECTIONS = 7000, 4
# A period that is no multiple of any length that bytes go missing in.
PATTERN = bytes(i * 7 % 251 for i in range(251)) * 2000


def read(address):
    server = socket.create_server((address, PORT))
    print("ready")
    peers = {}
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    signal.siginterrupt(signal.SIGTERM, True)
    while not ended:
        for ready in select.select([server, *peers], [], [], 0.1)[0]:
            if ready is server:
                peers[server.accept()[0]] = 0
                continue
            data = ready.recv(1 << 17)
            at = peers[ready] % 251
            assert data == PATTERN[at:at + len(data)], peers[ready]
            peers[ready] += len(data)
    assert len(peers) == CONNECTIONS and all(peers.values()), peers
    print("all as sent")


def write(address):
    peers = [socket.create_connection((address, PORT)) for _ in range(CONNECTIONS)]
    sent = dict.fromkeys(peers, 0)
    for peer in peers:
        peer.setblocking(False)
    while True:
        for peer in select.select([], peers, [])[1]:
            at = sent[peer] % 251
            sent[peer] += peer.send(PATTERN[at:at + (1 << 17)])


{"read": read, "write": write}[sys.argv[1]](sys.argv[2])
