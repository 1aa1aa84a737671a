"""An authoritative nameserver for tests: answers A and AAAA from a table, over UDP and TCP, and remembers who asked what."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading

from hosts import Host
from streams import listen

A, AAAA = 1, 28
PORT = 53


class Nameserver:
    """Serves names on an address of a host, until the test process ends."""

    def __init__(self, host: Host, address: str, names: dict[str, list[str]]):
        self.names = names
        # The protocol, the address of the client, and the name.
        self.asked: list[tuple[str, str, str]] = []
        listener = listen(host, PORT, address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with host.inside():
            datagrams = socket.socket(family, socket.SOCK_DGRAM)
        datagrams.bind((address, PORT))
        threading.Thread(target=self._serve_streams, args=(listener,), daemon=True).start()
        threading.Thread(target=self._serve_datagrams, args=(datagrams,), daemon=True).start()

    def _serve_datagrams(self, datagrams: socket.socket):
        while True:
            query, client = datagrams.recvfrom(65536)
            datagrams.sendto(self.answer(query, "udp", client[0]), client)

    def _serve_streams(self, listener: socket.socket):
        while True:
            connection, client = listener.accept()
            threading.Thread(target=self._serve_stream, args=(connection, client[0]), daemon=True).start()

    def _serve_stream(self, connection: socket.socket, client: str):
        # The client may reset it.
        with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as stream:
            while length := stream.read(2):
                answer = self.answer(stream.read(int.from_bytes(length, "big")), "tcp", client)
                connection.sendall(len(answer).to_bytes(2, "big") + answer)

    def answer(self, query: bytes, protocol: str, client: str) -> bytes:
        labels, at = [], 12
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode())
            at += 1 + length
        name, kind = ".".join(labels).lower(), int.from_bytes(query[at + 1 : at + 3], "big")
        question = query[12 : at + 5]
        self.asked.append((protocol, client, name))
        addresses = [ipaddress.ip_address(address) for address in self.names.get(name, [])]
        data = [each.packed for each in addresses if each.version == {A: 4, AAAA: 6}.get(kind)]
        # Response, authoritative, recursion available; no such name.
        flags = 0x8580 if name in self.names else 0x8583
        header = query[:2] + b"".join(number.to_bytes(2, "big") for number in (flags, 1, len(data), 0, 0))
        records = (
            b"\xc0\x0c" + kind.to_bytes(2, "big") + b"\0\1" + (60).to_bytes(4, "big")
            + len(each).to_bytes(2, "big") + each for each in data
        )  # fmt: skip
        return header + question + b"".join(records)
