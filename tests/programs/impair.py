"""A wire that mishandles frames: impair.py DEVICE DEVICE SEED. Both ways, some are lost, late, doubled or damaged."""
import random
import select
import socket
import sys

ETH_P_ALL = 3
PACKET_OUTGOING = 4


def main(one, two, seed):
    chance = random.Random(seed)
    sockets = []
    for name in (one, two):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        wire.bind((name, ETH_P_ALL))
        wire.setblocking(False)
        sockets.append(wire)
    other = {sockets[0]: sockets[1], sockets[1]: sockets[0]}
    late = {sockets[0]: [], sockets[1]: []}
    while True:
        ready, _, _ = select.select(sockets, [], [], 0.002)
        for wire in ready:
            for _ in range(64):
                try:
                    frame, address = wire.recvfrom(65536)
                except BlockingIOError:
                    break
                if address[2] != PACKET_OUTGOING:
                    pass_on(chance, frame, other[wire], late[wire])
        for wire in sockets:
            if wire not in ready:
                flush(other[wire], late[wire])


def pass_on(chance, frame, to, late):
    draw = chance.random()
    if draw < 0.005:
        return
    if draw < 0.045:
        late.append(frame)
        return
    if draw < 0.05 and len(frame) > 100:
        at = chance.randrange(60, len(frame))
        frame = frame[:at] + bytes([frame[at] ^ 0x55]) + frame[at + 1:]
    send(to, frame)
    if draw > 0.99:
        send(to, frame)
    if late and chance.random() < 0.3:
        flush(to, late)


def flush(to, late):
    for frame in late:
        send(to, frame)
    late.clear()


def send(to, frame):
    try:
        to.send(frame)
    except OSError:
        pass


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
