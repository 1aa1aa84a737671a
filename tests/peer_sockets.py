"""The other end of connections of modes `stream` and `sealed`, over sockets. As a program: one of `stream`.

The option of TCP's handshake is written by the gateway whose control group the program enters.
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys

from peer import (
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
    end = Initiator(negotiated, configured, {path: os.urandom(32) for path in witnesses})
    main.sendall(end.hello)
    for path, connection in witnesses.items():
        connection.sendall(end.witnesses[path])
    reply = receive_message(main)
    answers = {path: receive_message(connection) for path, connection in witnesses.items()}
    for path, confirm in end.finish(reply, answers).items():
        witnesses[path].sendall(confirm)
        witnesses[path].close()
    return SealedConnection(main, end)


def accept_sealed(
    main: socket.socket, witnesses: list[socket.socket], negotiated: Negotiated
) -> SealedConnection:
    """The responder's part over connections that have negotiated, the witnesses in any order."""
    hello = receive_message(main)
    heard = {connection: receive_message(connection) for connection in witnesses}
    by_path = {decode_witness(witness)[1]: connection for connection, witness in heard.items()}
    messages = {path: heard[connection] for path, connection in by_path.items()}
    end = Responder(negotiated, hello, messages, {path: os.urandom(32) for path in messages})
    main.sendall(end.reply)
    for path, connection in by_path.items():
        connection.sendall(end.answers[path])
    end.finish({path: receive_message(connection) for path, connection in by_path.items()})
    return SealedConnection(main, end)


def main():
    """Connects, says what stdin says, and prints the answer; or accepts, and echoes."""
    role, interface, address, port, group = sys.argv[1:]
    pathlib.Path(group, "cgroup.procs").write_text("0")
    handshakes = Handshakes(interface)
    mptcp = 262
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, mptcp)
    if role == "connect":
        connection.connect((address, int(port)))
        negotiated = handshakes.of(connection.getsockname()[1])
        stream = StreamConnection(connection, negotiated, INITIATOR)
        stream.sendall(sys.stdin.buffer.read())
        stream.end()
        while data := stream.recv():
            sys.stdout.buffer.write(data)
    else:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind((address, int(port)))
        connection.listen()
        connection, (_, peer) = connection.accept()
        stream = StreamConnection(connection, handshakes.of(peer), RESPONDER)
        while data := stream.recv():
            stream.sendall(data)
        stream.end()


if __name__ == "__main__":
    main()
