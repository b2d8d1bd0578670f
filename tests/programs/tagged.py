"""Frames of virtual LANs: tagged.py say DEVICE sends some, tagged.py hear DEVICE ends when all have come, each with its tag."""
import socket
import struct
import sys

ETH_P_ALL = 3
SOL_PACKET, PACKET_AUXDATA = 263, 8
KIND = 0x88B5
VLANS = [1, 7, 4094, 0x2007]


def content(vlan):
    return struct.pack("!H", KIND) + bytes([vlan & 0xFF]) * (60 + vlan % 900)


def say(device):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind((device, 0))
    for vlan in VLANS:
        wire.send(b"\xff" * 6 + b"\x02" * 6 + struct.pack("!HH", 0x8100, vlan) + content(vlan))


def hear(device):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.bind((device, ETH_P_ALL))
    wire.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    wire.settimeout(15)
    print("ready")
    missing = list(VLANS)
    while missing:
        frame, extra, _, _ = wire.recvmsg(65536, 256)
        if frame[12:14] == b"\x81\x00":
            vlan, rest = struct.unpack("!H", frame[14:16])[0], frame[16:]
        else:
            # The kernel has taken the tag off, and tells it beside the frame.
            known = [struct.unpack("IIIHHHH", data) for _, _, data in extra]
            if not known or not known[0][0] & 1 << 4:
                continue
            vlan, rest = known[0][5], frame[12:]
        if rest[:2] == struct.pack("!H", KIND):
            assert rest == content(vlan), vlan
            # In order, too.
            assert vlan == missing.pop(0), vlan


{"say": say, "hear": hear}[sys.argv[1]](sys.argv[2])
