"""The attacker of the attack matrix, on the routers between a client and a server.

Where he listens, he captures packets and reads what he can. Where he is active, he modifies packets or takes over the
server's address. As a program he is the man in the middle of mode `sealed`, on all his routers at once, in the control group
of a gateway of his own, which writes the TCP option for him.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator

from hosts import PLAIT, Host, tool
from peer import (
    RESPONDER,
    SHARE,
    WITNESS,
    Hello,
    Initiator,
    Keystream,
    Responder,
    decode_witness,
    encode_witness,
    message,
    stream_secret,
)
from peer_crypto import ProtocolError, expect
from peer_sockets import MPTCP, Handshakes, SealedConnection, packet_socket, receive_message, tcp_of
from streams import accept, listen

# The address that clients connect to.
SERVER = "10.79.0.2"

# Packet filters on a router: overwrite four bytes of the server's full packets; remove plait's option from the SYN.
RULES = {
    "modify": 'iifname "server" tcp sport 8440-8449 meta length > 1300 @ih,800,32 set 0xfffefdfc',
    "strip": 'iifname "client" tcp flags & (syn|ack) == syn reset tcp option 254',
}


def attack(action: str, router: Host) -> contextlib.AbstractContextManager:
    """Performs an action on a router. With `intercept` and `block`, connections to the server reach the attacker."""
    if action in RULES:
        return router.packet_rules(forward=RULES[action])
    return taken_over(router) if action in ("intercept", "block") else contextlib.nullcontext()


@contextlib.contextmanager
def taken_over(router: Host):
    """Within this context, the router has the server's address."""
    address = (f"{SERVER}/32", "dev", "lo")
    tool("ip", "-n", router.name, "addr", "add", *address)
    try:
        yield
    finally:
        tool("ip", "-n", router.name, "addr", "del", *address)


# Listening


class Listener:
    """Reads captures of the transfer of a document in each mode, one for each path."""

    def __init__(self, document: pathlib.Path, captures: dict[str, list[pathlib.Path]]):
        self.document, self.captures = document, captures
        text = document.read_bytes()
        self.samples = [text[at : at + 32] for at in range(0, len(text) - 32, 4000)]
        self._by_path: dict[str, list[bool]] = {}

    def reads(self, mode: str, paths: Iterable[int]) -> bool:
        """Whether listening on these paths reveals part of the document."""
        paths = list(paths)
        each = any(self._each(mode)[path] for path in paths)
        if mode == "stream":
            # In this mode the reference implementation must agree; it needs what crossed the trusted path.
            plaintext = stream_plaintext([self.captures[mode][path] for path in paths])
            assert self._holds(plaintext) == each, "`plait audit` and peer.py read differently"
        return each

    def _each(self, mode: str) -> list[bool]:
        """Per path: whether the document is there in plaintext, or `plait audit` recovers some of it."""
        if mode not in self._by_path:
            plain = [self._holds(capture.read_bytes()) for capture in self.captures[mode]]
            audited = [False] * len(plain) if all(plain) else self._audit(mode)
            self._by_path[mode] = [any(pair) for pair in zip(plain, audited, strict=True)]
        return self._by_path[mode]

    def _audit(self, mode: str) -> list[bool]:
        command = (
            PLAIT,
            "audit",
            "--json",
            "--runs",
            "1",
            "--ground-truth",
            self.document,
            *self.captures[mode],
        )
        paths = json.loads(tool(*map(str, command)))["paths"]
        for path in paths:
            missing = path["not_captured_bytes"], path["missing_bytes"]
            assert missing == (0, 0), f"that nothing is read needs a complete capture: {path['verdict']}"
        return [(path["correct_fraction"] or 0) > 0.001 for path in paths]

    def _holds(self, data: bytes) -> bool:
        return any(sample in data for sample in self.samples)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A captured TCP segment over IPv4."""

    source: int
    target: int
    sequence: int
    syn: bool
    options: dict[int, bytes]
    payload: bytes


def segment_of(frame: bytes) -> Segment | None:
    source, target, options = tcp_of(frame)
    if not source or frame[12:14] != b"\x08\x00":
        return None
    ip = frame[14:]
    tcp = ip[(ip[0] & 15) * 4 : int.from_bytes(ip[2:4], "big")]
    sequence, syn = int.from_bytes(tcp[4:8], "big"), bool(tcp[13] & 2)
    return Segment(source, target, sequence, syn, options, tcp[(tcp[12] >> 4) * 4 :])


def segments_of(capture: pathlib.Path) -> Iterator[Segment]:
    """The segments of a capture that tcpdump wrote on this machine."""
    data, at = capture.read_bytes(), 24
    while at + 16 <= len(data):
        length = int.from_bytes(data[at + 8 : at + 12], sys.byteorder)
        if found := segment_of(data[at + 16 : at + 16 + length]):
            yield found
        at += 16 + length


def stream_plaintext(captures: list[pathlib.Path]) -> bytes:
    """The captured part of the responder's stream, decrypted; nothing without the keys."""
    captured = [list(segments_of(capture)) for capture in captures]
    opening = next((found for segments in captured for found in segments if is_capable(found)), None)
    if opening is None:
        return b""
    first_subflow = next(segments for segments in captured if opening in segments)
    chosen, secret, responder_key = stream_secrets(opening, first_subflow)
    # RFC 8684, section 3.1: the key's hash ends with the initial data sequence number; data begins one after it.
    first = int.from_bytes(hashlib.sha256(responder_key).digest()[-8:], "big") + 1
    pieces = []
    for segments in captured:
        answers = [found for found in segments if found.source == opening.target]
        initial = {found.target: found.sequence for found in answers if found.syn}
        for found in answers:
            mapping = mapping_of(found.options.get(30, b""))
            if not found.payload or mapping is None or found.target not in initial:
                continue
            number, bits, place = mapping
            within = (found.sequence - initial[found.target] - place) % (1 << 32)
            offset = (number - first) % (1 << bits) + within
            pieces.append(Keystream(chosen, secret, RESPONDER, offset).apply(found.payload))
    return b"".join(pieces)


def stream_secrets(opening: Segment, subflow: list[Segment]) -> tuple[int, bytes, bytes]:
    """The chosen mode, the secret and the responder's key, from a capture of the first subflow."""
    choices = (found.options.get(254, b"") for found in subflow if found.target == opening.source)
    chosen = next(option[7] for option in choices if len(option) == 8)
    sent = {found.sequence: found.payload for found in subflow if found.source == opening.source}
    random = b"".join(sent[sequence] for sequence in sorted(sent) if sent[sequence])[:32]
    initiator_key, responder_key = opening.options[30][4:12], opening.options[30][12:20]
    return chosen, stream_secret(initiator_key, responder_key, random), responder_key


def is_capable(found: Segment) -> bool:
    """Whether it is the third packet of the MP_CAPABLE handshake, which has both keys."""
    option = found.options.get(30, b"")
    return len(option) >= 20 and option[2] >> 4 == 0


def mapping_of(option: bytes) -> tuple[int, int, int] | None:
    """The mapping of DSS (RFC 8684, section 3.3): data sequence number, its bits, relative subflow sequence number."""
    if len(option) < 4 or option[2] >> 4 != 2 or not option[3] & 4:
        return None
    flags = option[3]
    at = 4 + ((8 if flags & 2 else 4) if flags & 1 else 0)
    size = 8 if flags & 8 else 4
    number = int.from_bytes(option[at : at + size], "big")
    return number, 8 * size, int.from_bytes(option[at + size : at + size + 4], "big")


# Man in the middle


class ManInTheMiddle:
    """Runs the program below, which attacks one connection at a time."""

    def __init__(self, group: str, routers: list[Host], servers: list[str], log: pathlib.Path):
        ways = (f"{router.name}={server}" for router, server in zip(routers, servers, strict=True))
        with log.open("wb") as sink:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": sink}
            self.program = subprocess.Popen([sys.executable, __file__, group, *ways], text=True, **pipes)

    def prepare(self, port: int, actions: tuple[str, ...]):
        """Returns when the client may connect."""
        self.program.stdin.write(json.dumps([port, actions]) + "\n")
        self.program.stdin.flush()
        assert self._receive() == "ready"

    def result(self) -> tuple[bytes, str]:
        """What he read, and how the connection ended."""
        read, end = self._receive()
        return bytes.fromhex(read), end

    def stop(self):
        self.program.stdin.close()
        try:
            self.program.wait(60)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()
        self.program.stdout.close()

    def _receive(self):
        line = self.program.stdout.readline()
        assert line, f"the attacker's program ended: exit status {self.program.wait(5)}"
        return json.loads(line)


class Interceptor:
    """A router on which he impersonates the server to the client and the client to the server."""

    def __init__(self, router: Host, server: str, port: int, stack: contextlib.ExitStack):
        self.router, self.target, self.stack = router, (server, port), stack
        with router.inside():
            self.with_client, self.with_server = Handshakes("client"), Handshakes("server")
        for handshakes in (self.with_client, self.with_server):
            stack.enter_context(handshakes.packets)
        self.listener = stack.enter_context(listen(router, port, "0.0.0.0", MPTCP))
        self.listener.settimeout(10)

    def accept(self) -> socket.socket:
        return self.stack.enter_context(accept(self.listener))

    def connect(self) -> socket.socket:
        connection = self.stack.enter_context(self.router.socket(protocol=MPTCP))
        connection.settimeout(10)
        connection.connect(self.target)
        return connection


class Wiretap:
    """A router on which he listens to the messages of a witness."""

    def __init__(self, router: Host, stack: contextlib.ExitStack):
        with router.inside():
            self.packets = stack.enter_context(packet_socket("client"))

    def receive(self, kind: int) -> bytes:
        while True:
            found = segment_of(self.packets.recv(65536))
            data = found.payload if found else b""
            if len(data) > 3 and data[0] == kind and int.from_bytes(data[1:3], "big") == len(data) - 3:
                return data


def intercept_main_path(ways: list[Interceptor | Wiretap | None], read: bytearray):
    """Runs a handshake with each end under one session id, then relays and modifies their data.

    Where he intercepts a witness, each end gets a share of his own; where he listens he knows the shares; else he guesses.
    """
    main, *others = ways
    client = main.accept()
    with_client = main.with_client.of(client.getpeername()[1])
    hello_bytes = receive_message(client)
    hello = Hello.decode(hello_bytes)
    witnesses, intercepted, tapped = {}, {}, {}
    for way in others:
        if way is None:
            continue
        connection = way.accept() if isinstance(way, Interceptor) else None
        witness = receive_message(connection) if connection else way.receive(WITNESS)
        _, path, _ = decode_witness(witness)
        witnesses[path] = witness
        if connection:
            intercepted[path] = (connection, way.connect())
        else:
            tapped[path] = way
    for path in set(hello.paths) - set(witnesses):
        witnesses[path] = encode_witness(hello.session, path, bytes(32))

    shares = {path: os.urandom(32) if path in intercepted else decode_witness(witnesses[path])[2]
              for path in hello.paths}  # fmt: skip
    server = main.connect()
    with_server = main.with_server.of(server.getsockname()[1])
    initiator = Initiator(with_server, hello.configured, shares, service=hello.service, session=hello.session)
    server.sendall(initiator.hello)
    for path, (_, connection) in intercepted.items():
        connection.sendall(initiator.witnesses[path])
    reply, answers = receive_message(server), {}
    for path in hello.paths:
        if path in intercepted:
            answers[path] = receive_message(intercepted[path][1])
        elif path in tapped:
            answers[path] = tapped[path].receive(SHARE)
        else:
            answers[path] = message(SHARE, bytes([path]) + bytes(64))
    try:
        confirms = initiator.finish(reply, answers)
    except ProtocolError:
        # He guessed wrong and has no keys with the server. The client is next.
        confirms = None

    shares = {path: os.urandom(32) if path in intercepted else answers[path][4:36] for path in hello.paths}
    responder = Responder(with_client, hello_bytes, witnesses, shares)
    client.sendall(responder.reply)
    for path, (connection, _) in intercepted.items():
        connection.sendall(responder.answers[path])
    expect(bool(client.recv(1, socket.MSG_PEEK)), "the client ended")
    # The client proceeds; its confirmations are of no use to him.
    responder.start_records()
    victim = SealedConnection(client, responder)
    question = victim.recv()
    read += question
    expect(confirms is not None, "no keys with the server")
    for path, (_, connection) in intercepted.items():
        connection.sendall(confirms[path])
    service = SealedConnection(server, initiator)
    service.sendall(question)
    while answer := service.recv():
        read += answer
        victim.sendall(bytes([answer[0] ^ 1]) + answer[1:])
    victim.shutdown()
    while question := victim.recv():
        service.sendall(question)
    service.shutdown()


def exchange_other_shares(ways: list[Interceptor | None]):
    """Without the main path: replaces the shares of every witness that he intercepts."""
    connections = []
    for way in filter(None, ways):
        client = way.accept()
        session, path, _ = decode_witness(receive_message(client))
        server = way.connect()
        server.sendall(encode_witness(session, path, os.urandom(32)))
        connections.append((client, server, path))
    for client, server, path in connections:
        confirmation = receive_message(server)[36:]
        client.sendall(message(SHARE, bytes([path]) + os.urandom(32) + confirmation))
    for client, server, _ in connections:
        server.sendall(receive_message(client))


def run_attack(routers: list[tuple[Host, str]], port: int, actions: list[str]):
    """Prints "ready", then what he read of one connection and how it ended."""
    read = bytearray()
    with contextlib.ExitStack() as stack:
        ways = []
        for (router, server), action in zip(routers, actions, strict=True):
            if action == "intercept":
                ways.append(Interceptor(router, server, port, stack))
            else:
                ways.append(Wiretap(router, stack) if action == "wiretap" else None)
        print(json.dumps("ready"), flush=True)
        try:
            if actions[0] == "intercept":
                intercept_main_path(ways, read)
            else:
                exchange_other_shares(ways)
            end = "undisturbed"
        except (OSError, ProtocolError) as error:
            # With the line that failed.
            frames = traceback.extract_tb(error.__traceback__)
            step = [frame.line for frame in frames if frame.filename == __file__][-1]
            end = f"{str(error) or type(error).__name__}: {step}"
    # The first bytes are proof enough.
    print(json.dumps([read[:4096].hex(), end]), flush=True)


def main():
    group, *ways = sys.argv[1:]
    pathlib.Path(group, "cgroup.procs").write_text("0")
    routers = []
    for way in ways:
        name, server = way.split("=")
        routers.append((Host(name, pathlib.Path()), server))
    for line in sys.stdin:
        run_attack(routers, *json.loads(line))


if __name__ == "__main__":
    main()
