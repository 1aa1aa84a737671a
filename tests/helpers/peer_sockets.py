"""The other end of connections of modes `stream` and `sealed`, over sockets. As a program: one of them.

The option of TCP's handshake is written by the gateway whose control group the program enters. With PEER_STATIC in the
environment it says who it is by this key, and with PEER_EXPECTED the other end must have that one (hexadecimal digits).
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys

from peer import (
    HELLO,
    IDENTIFIED,
    INITIATOR,
    RESPONDER,
    Initiator,
    Keystream,
    Negotiated,
    Responder,
    decode_witness,
    expect,
    stream_secret,
)

MPTCP = 262


def key_of(variable: str) -> bytes | None:
    digits = os.environ.get(variable)
    return None if digits is None else bytes.fromhex(digits)


class Handshakes:
    """Hears on an interface what MPTCP handshakes tell, for sockets do not."""

    def __init__(self, interface: str):
        every_protocol = 0x0003
        self.packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(every_protocol))
        self.packets.bind((interface, 0))
        self.packets.settimeout(10)

    def of(self, port: int) -> Negotiated:
        """Of the connection whose initiator has this port."""
        offered = chosen = None
        while True:
            source, target, options = tcp_of(self.packets.recv(65536))
            plait, capable = options.get(254, b""), options.get(30, b"")
            if len(plait) == 8 and plait[2:7] == b"PLAI\x01":
                offered = plait[7] if source == port else offered
                chosen = plait[7] if target == port else chosen
            # MP_CAPABLE of the packet that ends the handshake: both keys, the sender's first.
            if source == port and len(capable) >= 20 and capable[2] >> 4 == 0:
                expect(offered is not None and chosen is not None, "a handshake without plait's option")
                return Negotiated(offered, chosen, capable[4:12], capable[12:20])


def tcp_of(frame: bytes) -> tuple[int, int, dict[int, bytes]]:
    """Ports and options, each by its kind, of an Ethernet frame; zeros and nothing if it is not TCP."""
    protocol, ip = frame[12:14], frame[14:]
    if protocol == b"\x08\x00" and ip[9] == socket.IPPROTO_TCP:
        tcp = ip[(ip[0] & 15) * 4 :]
    elif protocol == b"\x86\xdd" and ip[6] == socket.IPPROTO_TCP:
        tcp = ip[40:]
    else:
        return 0, 0, {}
    options, at, end = {}, 20, (tcp[12] >> 4) * 4
    while at < end and tcp[at] != 0:
        length = 1 if tcp[at] == 1 else tcp[at + 1]
        options[tcp[at]] = tcp[at : at + length]
        at += length
    return int.from_bytes(tcp[:2], "big"), int.from_bytes(tcp[2:4], "big"), options


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        expect(bool(part), f"the peer ended after {len(data)} of {size} bytes")
        data += part
    return data


def receive_message(connection: socket.socket) -> bytes:
    head = receive(connection, 3)
    return head + receive(connection, int.from_bytes(head[1:], "big"))


class StreamConnection:
    """A connection of mode `stream`."""

    def __init__(self, main: socket.socket, negotiated: Negotiated, role: int):
        self.main = main
        if role == INITIATOR:
            random = os.urandom(32)
            main.sendall(random)
        else:
            random = receive(main, 32)
        secret = stream_secret(negotiated.initiator_key, negotiated.responder_key, random)
        self.out = Keystream(negotiated.chosen, secret, role)
        self.back = Keystream(negotiated.chosen, secret, 1 - role)

    def sendall(self, data: bytes):
        self.main.sendall(self.out.apply(data))

    def end(self):
        self.main.shutdown(socket.SHUT_WR)

    def recv(self) -> bytes:
        """The next bytes; none at the end."""
        return self.back.apply(self.main.recv(65536))


class SealedConnection:
    """A connection of mode `sealed` after its handshake."""

    def __init__(self, main: socket.socket, end: Initiator | Responder):
        self.main, self.sealer, self.opener = main, end.sealer, end.opener

    def sendall(self, data: bytes):
        self.main.sendall(self.sealer.seal(data))

    def end(self):
        self.main.sendall(self.sealer.end())
        self.main.shutdown(socket.SHUT_WR)

    def recv(self) -> bytes:
        """The next bytes; none at the end that the peer sealed."""
        while not self.opener.ended:
            data = self.main.recv(65536)
            if not data:
                self.opener.close()
            if plaintext := self.opener.feed(data):
                return plaintext
        return b""


def connect_sealed(main: socket.socket, witnesses: dict[int, socket.socket], negotiated: Negotiated,
                   configured: int) -> SealedConnection:  # fmt: skip
    """The initiator's part over connections that have negotiated."""
    shares = {path: os.urandom(32) for path in witnesses}
    end = Initiator(negotiated, configured, shares, static=key_of("PEER_STATIC"))
    main.sendall(end.hello)
    for path, connection in witnesses.items():
        connection.sendall(end.witnesses[path])
    reply = receive_message(main)
    answers = {path: receive_message(connection) for path, connection in witnesses.items()}
    for path, confirm in end.finish(reply, answers, key_of("PEER_EXPECTED")).items():
        witnesses[path].sendall(confirm)
        witnesses[path].close()
    if end.identity is not None:
        main.sendall(end.identity)
    return SealedConnection(main, end)


def accept_sealed(connections: dict[int, socket.socket], handshakes: Handshakes) -> SealedConnection:
    """The responder's part over connections by their peers' ports: a main one and all its witnesses."""
    heard = {port: receive_message(connection) for port, connection in connections.items()}
    [main] = [port for port, message in heard.items() if message[0] == HELLO]
    by_path = {decode_witness(message)[1]: port for port, message in heard.items() if port != main}
    shares = {path: os.urandom(32) for path in by_path}
    witnesses = {path: heard[port] for path, port in by_path.items()}
    end = Responder(handshakes.of(main), heard[main], witnesses, shares, static=key_of("PEER_STATIC"))
    connections[main].sendall(end.reply)
    for path, port in by_path.items():
        connections[port].sendall(end.answers[path])
    identity = receive_message(connections[main]) if end.version == IDENTIFIED else None
    confirms = {path: receive_message(connections[port]) for path, port in by_path.items()}
    end.finish(confirms, identity, key_of("PEER_EXPECTED"))
    return SealedConnection(connections[main], end)


def connected(interface: str, address: str, port: int) -> socket.socket:
    """An MPTCP connection whose first subflow goes by an interface."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    connection.connect((address, port))
    return connection


def connect(mode: str, interfaces: list[str], address: str, port: int):
    """Says what stdin says, and prints the answer."""
    handshakes = Handshakes(interfaces[0])
    main, *others = [connected(interface, address, port) for interface in interfaces]
    negotiated = handshakes.of(main.getsockname()[1])
    if mode == "stream":
        connection = StreamConnection(main, negotiated, INITIATOR)
    else:
        connection = connect_sealed(main, dict(enumerate(others, start=1)), negotiated, len(interfaces))
    connection.sendall(sys.stdin.buffer.read())
    connection.end()
    while data := connection.recv():
        sys.stdout.buffer.write(data)


def accept(mode: str, interfaces: list[str], address: str, port: int):
    """Echoes one connection; it comes by the first interface, a witness by each other."""
    handshakes = Handshakes(interfaces[0])
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    accepted = {}
    for _ in interfaces:
        connection, (_, peer) = listener.accept()
        accepted[peer] = connection
    if mode == "stream":
        [(peer, main)] = accepted.items()
        connection = StreamConnection(main, handshakes.of(peer), RESPONDER)
    else:
        connection = accept_sealed(accepted, handshakes)
    while data := connection.recv():
        connection.sendall(data)
    connection.end()


def main():
    role, mode, interfaces, address, port, group = sys.argv[1:]
    pathlib.Path(group, "cgroup.procs").write_text("0")
    {"connect": connect, "accept": accept}[role](mode, interfaces.split(","), address, int(port))


if __name__ == "__main__":
    main()
