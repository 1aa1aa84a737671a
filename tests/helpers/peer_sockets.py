"""The reference implementation over sockets: one end of a connection of mode `stream` or `sealed`. Also a program.

The program enters the control group of a gateway, which writes the TCP option. The environment variable PEER_STATIC is
its static private key, PEER_EXPECTED the public key that the other end must have, both in hexadecimal digits; PEER_VERSION
is another version of the protocol that it claims to speak. In mode `sealed`, PEER_PAD is the unit of its padding and PEER_UNIT that of the
other end, which it checks, PEER_UPDATES the number of key updates that it asks for as initiator while it sends, and PEER_VIOLATION one of VIOLATIONS that it commits
after the handshake. With PEER_NO_FIN, the record END ends a direction alone, as if DATA_FIN was lost. With PEER_EXIT, a host and a port, the responder is an exit, and that its destination. With PEER_LATE the witnesses come after the handshake: the initiator opens them then, the responder waits for them.
With PEER_SIDE the initiator opens a side connection on the last interface, sends its data, which is one small record, as a copy first, and
sends the record itself only when the copy of the answer has arrived.
"""

from __future__ import annotations

import os
import pathlib
import socket
import sys

import peer
import peer_records
from peer import (
    HELLO,
    INITIATOR,
    RESPONDER,
    Initiator,
    Keystream,
    LateWitness,
    Negotiated,
    Responder,
    decode_witness,
    service_tag,
    stream_secret,
)
from peer_crypto import expect

MPTCP = 262


def key_of(variable: str) -> bytes | None:
    digits = os.environ.get(variable)
    return None if digits is None else bytes.fromhex(digits)


def exit_destination() -> bytes | None:
    """The content of DESTINATION, if the responder is an exit."""
    text = os.environ.get("PEER_EXIT")
    if text is None:
        return None
    host, port = text.rsplit(":", 1)
    return peer.encode_destination(host, int(port))


def packet_socket(interface: str) -> socket.socket:
    """A socket that receives all packets of an interface."""
    every_protocol = 0x0003
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(every_protocol))
    packets.bind((interface, 0))
    packets.settimeout(10)
    return packets


class Handshakes:
    """Captures MPTCP handshakes on an interface, because sockets do not show keys and options."""

    def __init__(self, interface: str):
        self.packets = packet_socket(interface)

    def of(self, port: int) -> Negotiated:
        """The handshake of the connection whose initiator has this port, after packets of another that had it before."""
        offered, chosen = None, 0
        while True:
            source, target, options = tcp_of(self.packets.recv(65536))
            plait, capable = options.get(254, b""), options.get(30, b"")
            modes = plait[7] if len(plait) == 8 and plait[2:7] == b"PLAI\x01" else 0
            # Only the initiator's SYN has MP_CAPABLE without a key (RFC 8684, 3.1).
            if source == port and len(capable) == 4 and capable[2] >> 4 == 0:
                offered, chosen = modes, 0
            elif target == port and modes:
                chosen = modes
            # The third packet's MP_CAPABLE has both keys, the sender's first.
            elif offered is not None and source == port and len(capable) >= 20 and capable[2] >> 4 == 0:
                expect(bool(offered and chosen), "the handshake lacks plait's option")
                return Negotiated(offered, chosen, capable[4:12], capable[12:20])


def tcp_of(frame: bytes) -> tuple[int, int, dict[int, bytes]]:
    """The ports and TCP options, by kind, of an Ethernet frame; zeros and no options if it is not TCP."""
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
        expect(bool(part), f"the stream ended after {len(data)} of {size} bytes")
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

    def shutdown(self):
        self.main.shutdown(socket.SHUT_WR)

    def recv(self) -> bytes:
        """The next bytes; none at the end."""
        return self.back.apply(self.main.recv(65536))


LOW_ORDER = bytes(32 + 1184)

# Records that a peer must not send now, by name: what the end's updates make of them.
VIOLATIONS = {
    "no type": lambda updates: [updates.sealer.raw_record(bytes(20))],
    "unknown type": lambda updates: [updates.sealer.record(9, b"text")],
    "empty data": lambda updates: [updates.sealer.record(peer_records.DATA)],
    "content of the end": lambda updates: [updates.sealer.record(peer_records.END, b"text")],
    "request": lambda updates: [updates.sealer.record(peer_records.UPDATE_REQUEST, LOW_ORDER)],
    "short request": lambda updates: [updates.sealer.record(peer_records.UPDATE_REQUEST, bytes(31))],
    "second request": lambda updates: [
        updates.request(),
        updates.sealer.record(peer_records.UPDATE_REQUEST, updates.requested),
    ],  # fmt: skip
    "response": lambda updates: [updates.sealer.record(peer_records.UPDATE_RESPONSE, LOW_ORDER[:1120])],
    "new key": lambda updates: [updates.sealer.record(peer_records.NEW_KEY)],
}


class SealedConnection:
    """A connection of mode `sealed` after its handshake."""

    def __init__(self, main: socket.socket, end: Initiator | Responder):
        self.main, self.sealer, self.opener, self.updates = main, end.sealer, end.opener, end.updates
        self.sealer.pad = int(os.environ.get("PEER_PAD", 1))
        self.received = b""
        if violation := os.environ.get("PEER_VIOLATION"):
            for record in VIOLATIONS[violation](self.updates):
                main.sendall(record)
            # Receiving reports the reset whenever it arrives; sending may fail in other ways.
            while main.recv(65536):
                pass
            raise AssertionError("expected a reset, got the end of the stream")

    def sendall(self, data: bytes):
        """Sends the data in as many parts as updates are asked for, and one."""
        updates = int(os.environ.get("PEER_UPDATES", 0))
        part = -(-len(data) // (updates + 1))
        for number in range(updates + 1):
            self.main.sendall(self.sealer.seal(data[number * part : (number + 1) * part]))
            if number < updates:
                self.update()

    def exchange_first(self, own: int, content: bytes, other: int) -> bytes:
        """Sends and receives the first records to and from an exit; returns the other's content."""
        records = self.sealer.record(own, content)
        self.opener.first = other
        if own == peer_records.DESTINATION:
            self.main.sendall(records)
        while self.opener.first is not None:
            self._receive()
        if own == peer_records.OUTCOME:
            self.main.sendall(records)
        return self.opener.first_content

    def update(self):
        """Asks for a key update, and waits until it is complete."""
        before = self.updates.completed
        self.main.sendall(self.updates.request())
        while self.updates.completed == before:
            self._receive()

    def _receive(self):
        data = self.main.recv(65536)
        if not data:
            self.opener.close()
        self.received += self.opener.feed(data)
        if self.updates.output:
            self.main.sendall(self.updates.output)
            self.updates.output = b""

    def shutdown(self):
        self.main.sendall(self.sealer.end())
        if not os.environ.get("PEER_NO_FIN"):
            self.main.shutdown(socket.SHUT_WR)

    def recv(self) -> bytes:
        """The next bytes; none at the authenticated end."""
        while not self.received and not self.opener.ended:
            self._receive()
        if self.opener.ended:
            # Without type and tag.
            lengths, unit = (
                [length - 17 for length in self.opener.lengths],
                int(os.environ.get("PEER_UNIT", 1)),
            )
            expect(
                unit == 1 or all(length > 0 and length % unit == 0 for length in lengths),
                f"lengths: {lengths}",
            )
        received, self.received = self.received, b""
        return received


def connect_sealed(main: socket.socket, witnesses: dict[int, socket.socket], negotiated: Negotiated,
                   configured: int) -> SealedConnection:  # fmt: skip
    """Performs the initiator's handshake."""
    late = {}
    if os.environ.get("PEER_LATE"):
        late, witnesses = witnesses, late
    shares = {path: os.urandom(32) for path in witnesses}
    session = os.urandom(32)
    address, port = main.getpeername()[:2]
    destination = exit_destination()
    service = port, service_tag(session, peer.EXIT if destination else address)
    end = Initiator(negotiated, configured, shares, service=service, session=session,
                    static=key_of("PEER_STATIC"))  # fmt: skip
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
    connection = SealedConnection(main, end)
    if destination:
        outcome = connection.exchange_first(peer_records.DESTINATION, destination, peer_records.OUTCOME)
        expect(outcome == b"\0", f"outcome {outcome!r}")
    for path, witness in late.items():
        share = os.urandom(32)
        witness.sendall(peer.encode_witness(session, path, share))
        witness.sendall(peer.late_confirm(end.updates, path, share, receive_message(witness)))
        expect(witness.recv(1) == b"", "bytes after CONFIRM")
        witness.close()
    if late:
        connection.update()
    connection.session = session
    return connection


def exchange_copies(connection: SealedConnection, session: bytes, side: socket.socket, data: bytes):
    """Sends data on a side connection of path 1, and after the answer has come there on the main connection, too."""
    updates, share = connection.updates, os.urandom(32)
    side.sendall(peer.encode_witness(session, 1, share, peer.SIDE))
    side.sendall(peer.side_confirm(updates, 1, share, receive_message(side)))
    own, other = connection.sealer.state.counter, connection.opener.state.counter
    record = connection.sealer.seal(data)
    side.sendall(bytes(4) + own.to_bytes(8, "big") + record)
    place, length = receive(side, 12), receive(side, 2)
    expect(place == bytes(4) + other.to_bytes(8, "big"), f"a copy of another record: {place.hex()}")
    copy = length + receive(side, int.from_bytes(length, "big"))
    connection.main.sendall(record)
    arrived = receive(connection.main, len(copy))
    expect(arrived == copy, "a copy that is not the record")
    connection.received += connection.opener.feed(arrived)


def accept_sealed(
    connections: dict[int, socket.socket], handshakes: Handshakes
) -> tuple[SealedConnection, Responder]:
    """Performs the responder's handshake, on a main connection and its witnesses, which are given by their peers' ports."""
    received = {port: receive_message(connection) for port, connection in connections.items()}
    [main] = [port for port, message in received.items() if message[0] == HELLO]
    by_path = {decode_witness(message)[1]: port for port, message in received.items() if port != main}
    shares = {path: os.urandom(32) for path in by_path}
    witnesses = {path: received[port] for path, port in by_path.items()}
    address, port = connections[main].getsockname()[:2]
    destination = exit_destination()
    service = port, peer.EXIT if destination else address
    end = Responder(handshakes.of(main), received[main], witnesses, shares, service=service,
                    static=key_of("PEER_STATIC"))  # fmt: skip
    connections[main].sendall(end.reply)
    for path, port in by_path.items():
        connections[port].sendall(end.answers[path])
    identity = receive_message(connections[main]) if end.identified else None
    confirms = {path: receive_message(connections[port]) for path, port in by_path.items()}
    end.finish(confirms, identity, key_of("PEER_EXPECTED"))
    connection = SealedConnection(connections[main], end)
    if destination:
        got = connection.exchange_first(peer_records.OUTCOME, b"\0", peer_records.DESTINATION)
        expect(got == destination, f"expected {destination!r}, got {got!r}")
    return connection, end


def accept_late_witness(end: Responder, connection: socket.socket):
    """Performs the responder's part of a late witness."""
    witness = LateWitness(end, receive_message(connection))
    connection.sendall(witness.answer)
    witness.finish(receive_message(connection))
    connection.close()


def connected(interface: str, address: str, port: int) -> socket.socket:
    """An MPTCP connection whose first subflow uses this interface."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    connection.connect((address, port))
    return connection


def connect(mode: str, interfaces: list[str], address: str, port: int):
    """Sends stdin, and prints the answer."""
    handshakes = Handshakes(interfaces[0])
    main, *others = [connected(interface, address, port) for interface in interfaces]
    negotiated = handshakes.of(main.getsockname()[1])
    if mode == "stream":
        connection = StreamConnection(main, negotiated, INITIATOR)
    else:
        connection = connect_sealed(main, dict(enumerate(others, start=1)), negotiated, len(interfaces))
    data = sys.stdin.buffer.read()
    if os.environ.get("PEER_SIDE"):
        exchange_copies(connection, connection.session, connected(interfaces[-1], address, port), data)
    else:
        connection.sendall(data)
    connection.shutdown()
    while data := connection.recv():
        sys.stdout.buffer.write(data)


def accept(mode: str, interfaces: list[str], address: str, port: int):
    """Echoes one connection, whose main path is the first interface; each further one carries a witness."""
    handshakes = Handshakes(interfaces[0])
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen()
    accepted = {}
    late = interfaces[1:] if os.environ.get("PEER_LATE") else []
    for _ in interfaces[len(late) :]:
        connection, (_, peer) = listener.accept()
        accepted[peer] = connection
    if mode == "stream":
        [(peer, main)] = accepted.items()
        connection = StreamConnection(main, handshakes.of(peer), RESPONDER)
    else:
        connection, end = accept_sealed(accepted, handshakes)
        for _ in late:
            accept_late_witness(end, listener.accept()[0])
    while data := connection.recv():
        connection.sendall(data)
    connection.shutdown()


def main():
    role, mode, interfaces, address, port, group = sys.argv[1:]
    peer.VERSION = int(os.environ.get("PEER_VERSION", peer.VERSION))
    pathlib.Path(group, "cgroup.procs").write_text("0")
    {"connect": connect, "accept": accept}[role](mode, interfaces.split(","), address, int(port))


if __name__ == "__main__":
    main()
