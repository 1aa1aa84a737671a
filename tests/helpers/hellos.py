"""The message HELLO of mode `sealed` on its way to a server (docs/internals/protocol.md)."""

import socket

ENCAPSULATION_KEY = 1184


def arriving_packets(host, interface: str) -> socket.socket:
    """A socket that receives the IPv4 packets that arrive on an interface of a host."""
    ipv4 = 0x0800
    with host.inside():
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ipv4))
    packets.bind((interface, ipv4))
    packets.settimeout(10)
    return packets


def next_hello(packets: socket.socket) -> bytes:
    """The next HELLO, without its head of three bytes."""
    while True:
        packet = packets.recv(65536)
        if packet[9] == socket.IPPROTO_TCP:
            segment = packet[(packet[0] & 15) * 4 :]
            payload = segment[(segment[12] >> 4) * 4 :]
            if payload[:1] == b"\x01":
                return payload[3:]


def is_hybrid(hello: bytes) -> bool:
    """Whether the client exchanges keys with ML-KEM-768 as well: by the flag, and by the key that is there."""
    flagged = bool(hello[1] & 2)
    assert flagged == (len(hello) > ENCAPSULATION_KEY)
    return flagged
