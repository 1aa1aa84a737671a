"""TCP packets over IPv4 with any sender, and the socket that sends them."""

import socket
import struct

RST, ACK, SYN, PUSH = 0x04, 0x10, 0x02, 0x08


def checksum(data: bytes) -> int:
    """RFC 1071."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def packet(source, destination, flags: int, sequence: int, ack: int, options=b"", payload=b"") -> bytes:
    ends = socket.inet_aton(source[0]) + socket.inet_aton(destination[0])
    words = 5 + len(options) // 4
    tcp = struct.pack(">HHIIBBHHH", source[1], destination[1], sequence, ack, words << 4, flags, 65535, 0, 0)
    tcp += options + payload
    pseudo = ends + struct.pack(">HH", socket.IPPROTO_TCP, len(tcp)) + tcp
    tcp = tcp[:16] + struct.pack(">H", checksum(pseudo)) + tcp[18:]
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, socket.IPPROTO_TCP, 0) + ends + tcp


def raw_socket(host) -> socket.socket:
    with host.inside():
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
