"""What a switch does between a port of many virtual LANs and a port of one: joins LAN `id` of `trunk`, where frames are tagged, to a TAP device of
its own, where they are not. For a kernel that has no devices of virtual LANs. Arguments: trunk, name of the TAP device, id.

Large units and checksums that are left undone cross it as they are; only where they start moves by the four bytes of the tag.
"""

import fcntl
import os
import select
import socket
import struct
import sys

trunk_name, tap_name, vlan = sys.argv[1], sys.argv[2], int(sys.argv[3])
SOL_PACKET, PACKET_AUXDATA, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 8, 15, 23
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TAP_NO_PI_VNET_HDR = 0x2 | 0x1000 | 0x4000
CSUM_TSO4_TSO6_ECN = 0x1 | 0x2 | 0x4 | 0x8
VNET = struct.Struct("=BBHHHH")
AUXDATA = struct.Struct("=IIIHHHH")
VLAN_VALID = 1 << 4

tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", tap_name.encode(), TAP_NO_PI_VNET_HDR))
fcntl.ioctl(tap, TUNSETOFFLOAD, CSUM_TSO4_TSO6_ECN)
trunk = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
for option in (PACKET_VNET_HDR, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING):
    trunk.setsockopt(SOL_PACKET, option, 1)
trunk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
trunk.bind((trunk_name, 3))
trunk.setsockopt(SOL_PACKET, 1, struct.pack("=iHH8s", socket.if_nametoindex(trunk_name), 1, 0, b""))
print("ready", flush=True)

while True:
    for ready in select.select([tap, trunk], [], [])[0]:
        try:
            if ready == tap:
                frame = os.read(tap, 1 << 17)
                flags, gso, header_len, size, start, offset = VNET.unpack_from(frame)
                if flags & 1:
                    header_len, start = header_len + 4, start + 4
                head = VNET.pack(flags, gso, header_len, size, start, offset)
                tag = struct.pack("!HH", 0x8100, vlan)
                trunk.send(head + frame[10:22] + tag + frame[22:])
            else:
                frame, about, _, _ = trunk.recvmsg(1 << 17, 64)
                for level, kind, data in about:
                    if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
                        status, *_, tci, _ = AUXDATA.unpack_from(data)
                        if status & VLAN_VALID and tci & 0xFFF == vlan:
                            os.write(tap, frame)
        except OSError:
            pass  # As on a wire: what does not get through is lost.
