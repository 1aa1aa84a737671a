"""MPTCP connections between the hosts of a pair, whose content is verified, and the kernels' counters of them."""

import contextlib
import hashlib
import json
import threading
import time

from hosts import wait_for
from streams import MPTCP, accept, assert_echo, listen, receive_exactly

SIZE = 24_000_000

# Counters with the same value after every such transfer; the number of retransmissions is random.
STEADY = (
    "MPCapableSYNRX",
    "MPCapableSYNTX",
    "MPCapableSYNACKRX",
    "MPCapableACKRX",
    "MPCapableFallbackACK",
    "MPCapableFallbackSYNACK",
    "MPFallbackTokenInit",
    "MPJoinNoTokenFound",
    "MPJoinSynRx",
    "MPJoinSynAckRx",
    "MPJoinSynAckHMacFailure",
    "MPJoinAckRx",
    "MPJoinAckHMacFailure",
    "DSSNotMatching",
    "DSSNoMatchTCP",
    "DataCsumErr",
    "AddAddr",
    "AddAddrDrop",
    "EchoAdd",
    "RmAddr",
    "MPPrioTx",
    "MPPrioRx",
    "MPFailTx",
    "MPFailRx",
    "MPFastcloseTx",
    "MPFastcloseRx",
    "MPRstTx",
    "MPRstRx",
)
# Retransmitted when no echo arrives in time, and counted each time.
REPEATED = ("AddAddr", "EchoAdd")


def counters(host) -> dict:
    """The kernel's counters of a namespace."""
    return json.loads(host.run("nstat", "-asz", "--json").stdout)["kernel"]


def steady(host) -> dict:
    """The counters that are the same after every transfer."""
    found = counters(host)
    some = {name: found[f"MPTcpExt{name}"] for name in sorted(STEADY) if f"MPTcpExt{name}" in found}
    assert len(some) > 15
    some |= {name: min(some[name], 1) for name in REPEATED}
    return some | {"TcpInCsumErrors": found["TcpInCsumErrors"]}


def settle(pair):
    """Waits until no address announcements are in flight."""
    last, since = None, time.monotonic()
    deadline = since + 30
    while time.monotonic() - since < 0.5 and time.monotonic() < deadline:
        now = [steady(host) for host in (pair.client, pair.server)]
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)


def assert_no_checksum_errors(pair):
    for host in (pair.client, pair.server):
        assert counters(host)["TcpInCsumErrors"] == 0


def disable_offloads(pair, *links):
    """Disables segmentation and receive offloads of these links."""
    for host in (pair.client, pair.server):
        for link in links:
            off = ("gso", "off", "tso", "off", "gro", "off")
            host.tool("ethtool", "-K", link, *off)


def listen_on_all(host, address, port):
    """Listens on all addresses of a family, because joins use another address."""
    return listen(host, port, "::" if ":" in address else "0.0.0.0", MPTCP)


def connect(pair, port=9000, address=None) -> tuple:
    """A connection of the client to the server: both sockets, and the listener, which joins need."""
    listener = listen_on_all(pair.server, address or pair.ETH, port)
    client = pair.client.socket(listener.family, MPTCP)
    client.settimeout(20)
    client.connect((address or pair.ETH, port))
    return client, accept(listener), listener


def transfer(pair, address, size=SIZE, joins=True, prepare=lambda client: None) -> None:
    """Sends bytes from the client and back, with `joins` over both links, and verifies them."""
    sent = (bytes(range(251)) * (size // 251 + 1))[:size]
    listener = listen_on_all(pair.server, address, 8080)

    def answer():
        connection, _ = listener.accept()
        with connection:
            got = receive_exactly(connection, size)
            connection.sendall(hashlib.sha256(got).digest())
            connection.sendall(got)
            connection.recv(1)

    server = threading.Thread(target=answer)
    server.start()
    with pair.client.socket(listener.family, MPTCP) as client:
        client.settimeout(30)
        prepare(client)
        client.connect((address, 8080))
        client.send(sent[:1])
        if joins:
            wait_for("second subflow", lambda: counters(pair.server)["MPTcpExtMPJoinAckRx"] > 0)
        # All further subflows, whose number is the same each time, are there before most is sent.
        settle(pair)
        client.sendall(sent[1:])
        assert receive_exactly(client, 32) == hashlib.sha256(sent).digest()
        back = receive_exactly(client, size)
        assert hashlib.sha256(back).digest() == hashlib.sha256(sent).digest()
        settle(pair)
    server.join(30)
    assert not server.is_alive()
    listener.close()


def exchange(pair, address, while_open=lambda: None, size=200_000):
    """Echoes bytes twice and verifies them, with a call in between."""
    sent = bytes(range(250)) * (size // 250)
    with listen_on_all(pair.server, address, 9000) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                for _ in range(2):
                    connection.sendall(receive_exactly(connection, size))
                connection.recv(1)

        server = threading.Thread(target=answer)
        server.start()
        with pair.client.socket(listener.family, MPTCP) as client:
            client.settimeout(20)
            client.connect((address, 9000))
            assert_echo(client, sent)
            while_open()
            assert_echo(client, sent)
        server.join(20)
        assert not server.is_alive()


class Download:
    """A connection on which the server sends a pattern continuously, which is verified."""

    PATTERN = bytes(range(251)) * 4096

    def __init__(self, pair, address: str, port: int = 9100):
        self.client, self.sender, self.listener = connect(pair, port, address)
        self.sender.settimeout(60)
        self.received, self.damaged, self.ended = 0, False, False
        threading.Thread(target=self._send, daemon=True).start()
        threading.Thread(target=self._receive, daemon=True).start()

    def _send(self):
        with contextlib.suppress(OSError):
            while True:
                self.sender.sendall(self.PATTERN)

    def _receive(self):
        with contextlib.suppress(OSError):
            while data := self.client.recv(65536):
                at = self.received % 251
                self.damaged |= data != self.PATTERN[at : at + len(data)]
                self.received += len(data)
        self.ended = True

    def mbps(self, seconds: float = 1.5) -> float:
        """The rate at which payload arrives during the next seconds."""
        before, since = self.received, time.monotonic()
        time.sleep(seconds)
        return (self.received - before) * 8e-6 / (time.monotonic() - since)

    def close(self):
        assert not self.damaged and not self.ended
        for one in (self.client, self.sender, self.listener):
            one.close()


def fetch(pair, size: int, address: str, port: int = 9200) -> bytes:
    """Receives data from the server on a new connection, and verifies it."""
    data = bytes(range(256)) * (size // 256)
    client, sender, listener = connect(pair, port, address)
    with client, sender, listener:
        threading.Thread(target=sender.sendall, args=(data,)).start()
        assert receive_exactly(client, len(data)) == data
    return data
