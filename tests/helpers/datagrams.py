"""A client of SOCKS5's UDP ASSOCIATE (RFC 1928, section 7), and servers of datagrams."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator

from hosts import Host, Pair
from streams import receive_exactly

PROXY = ("127.0.0.1", 1080)

# A program that exchanges a datagram, by a socket that is connected or not, and prints its own address, the sender, and the answer's
# length.
EXCHANGE = """
import socket, sys
kind, address, port, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(2)
if kind == "connected":
    client.connect((address, port))
for attempt in range(10):
    client.send(bytes(length)) if kind == "connected" else client.sendto(bytes(length), (address, port))
    try:
        answer, sender = client.recvfrom(65536)
        break
    except TimeoutError:
        pass
print(client.getsockname()[0], *sender[:2], len(answer))
"""


class AssociateError(Exception):
    """The proxy refused an association, with this reply code."""

    def __init__(self, code: int):
        super().__init__(f"reply code {code}")
        self.code = code


class Association:
    """An association with the proxy of a host."""

    def __init__(self, host: Host, proxy=PROXY):
        with host.inside():
            self.control = socket.socket()
            self.socket = socket.socket(type=socket.SOCK_DGRAM)
        self.control.settimeout(60)
        self.control.connect(proxy)
        self.control.sendall(b"\5\1\0")
        assert receive_exactly(self.control, 2) == b"\5\0"
        self.control.sendall(b"\5\3\0\1" + bytes(6))
        version, code, _, kind = receive_exactly(self.control, 4)
        assert (version, kind) == (5, 1)
        bound = receive_exactly(self.control, 6)
        if code:
            raise AssociateError(code)
        self.relay = (socket.inet_ntoa(bound[:4]), int.from_bytes(bound[4:], "big"))
        self.socket.settimeout(10)
        self.socket.bind(("127.0.0.1", 0))

    def __enter__(self) -> Association:
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.control.close()
        self.socket.close()

    def send(self, destination: tuple[str, int], payload: bytes, fragment: int = 0):
        header = bytes([0, 0, fragment]) + encoded(*destination)
        self.socket.sendto(header + payload, self.relay)

    def receive(self, timeout: float = 10) -> tuple[tuple[str, int], bytes]:
        """The next datagram, and where it comes from."""
        self.socket.settimeout(timeout)
        data, sender = self.socket.recvfrom(65536)
        assert sender == self.relay and data[:3] == bytes(3)
        length = {1: 4, 4: 16}[data[3]]
        address = str(ipaddress.ip_address(data[4 : 4 + length]))
        port = int.from_bytes(data[4 + length : 6 + length], "big")
        return (address, port), data[6 + length :]

    def receives(self, payload: bytes, seconds: float = 1.0) -> bool:
        """Whether a datagram with this content arrives. Late answers of `exchange` may arrive before it."""
        end = time.monotonic() + seconds
        while select.select([self.socket], [], [], max(end - time.monotonic(), 0))[0]:
            if self.receive()[1] == payload:
                return True
        return False

    def exchange(self, destination: tuple[str, int], payload: bytes, attempts: int = 20):
        """Sends until an answer arrives that ends with the payload, or to a DNS query any, as programs do."""
        for _ in range(attempts):
            self.send(destination, payload)
            with contextlib.suppress(TimeoutError):
                while True:
                    sender, data = self.receive(0.5)
                    if data == payload or destination[1] == 53:
                        return sender, data
        raise TimeoutError(f"no answer from {destination}")


def encoded(host: str, port: int) -> bytes:
    """An address of SOCKS5."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bytes([3, len(host)]) + host.encode() + port.to_bytes(2, "big")
    return bytes([1 if address.version == 4 else 4]) + address.packed + port.to_bytes(2, "big")


def echo_datagrams(host: Host, address: str, port: int) -> list[tuple[str, int]]:
    """Answers each datagram with its content, until the test process ends. Returns the senders, as they come."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with host.inside():
        server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((address, port))
    senders = []

    def serve():
        while True:
            data, sender = server.recvfrom(65536)
            senders.append(sender[:2])
            server.sendto(data, sender)

    threading.Thread(target=serve, daemon=True).start()
    return senders


@dataclasses.dataclass
class Echoes:
    """What came of numbered datagrams."""

    sent: int
    lost: int
    # The longest time without an answer, in seconds.
    gap: float


def call(association: Association, destination: tuple[str, int], seconds: float, rate: int = 50) -> Echoes:
    """Exchanges datagrams as a telephone call does: 50 of 160 bytes per second, which the destination echoes."""
    begun, number, answered, last, gap = time.monotonic(), 0, set(), time.monotonic(), 0.0
    count = int(seconds * rate)
    end = begun + seconds + 1
    while time.monotonic() < end and len(answered) < count:
        due = begun + number / rate
        now = time.monotonic()
        if number < count and now >= due:
            association.send(destination, struct.pack(">I", number) + bytes(156))
            number += 1
            continue
        wait = (due if number < count else end) - now
        if select.select([association.socket], [], [], max(wait, 0))[0]:
            _, data = association.receive()
            answered.add(struct.unpack(">I", data[:4])[0])
            now = time.monotonic()
            gap, last = max(gap, now - last), now
    return Echoes(number, number - len(answered), gap)


@contextlib.contextmanager
def calling(association: Association, destination: tuple[str, int], seconds: float) -> Iterator[list[Echoes]]:
    """Makes a `call` beside this context; its echoes are the only element of the list afterwards."""
    echoes: list[Echoes] = []
    caller = threading.Thread(target=lambda: echoes.append(call(association, destination, seconds)))
    caller.start()
    yield echoes
    caller.join()


@contextlib.contextmanager
def cut(pair: Pair, link: str):
    """Within this context, packets on a link are lost in both directions; its interfaces stay up."""
    with pair.server.packet_rules(input=f'iifname "{link}" drop', output=f'oifname "{link}" drop'):
        yield


def call_during_cuts(
    pair: Pair,
    association: Association,
    destination: tuple[str, int],
    seconds: float,
    *,
    before: float,
    cut_for: float,
) -> Echoes:
    """What comes of a call while each link is cut in turn, after some seconds and for some."""
    with calling(association, destination, seconds) as done:
        for link in ("eth", "wlan"):
            time.sleep(before)
            with cut(pair, link):
                time.sleep(cut_for)
    [echoes] = done
    print(echoes)
    return echoes


class Datagrams:
    """A socket of a host that knows nothing of plait, with the interface of an `Association`."""

    def __init__(self, host: Host, family: int = socket.AF_INET, connected: tuple[str, int] | None = None):
        with host.inside():
            self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.connected = connected
        if connected:
            self.socket.connect(connected)

    def __enter__(self) -> Datagrams:
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, destination: tuple[str, int], payload: bytes):
        if self.connected:
            assert destination == self.connected
            self.socket.send(payload)
        else:
            self.socket.sendto(payload, destination)

    def receive(self, timeout: float = 10) -> tuple[tuple[str, int], bytes]:
        """The next datagram, and where it comes from."""
        self.socket.settimeout(timeout)
        data, sender = self.socket.recvfrom(65536)
        return sender[:2], data

    receives = Association.receives
    exchange = Association.exchange
