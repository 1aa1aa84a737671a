"""A failover on real links: `plait analyze` compared with the clock, tshark and the kernel's own counters."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pathlib
import shutil
import signal
import socket
import struct
import threading
import time

import pytest
from disturbance import Disturbance, inconclusive
from hosts import PLAIT, Pair, tool, wait_for
from streams import MPTCP_INFO, SOL_MPTCP, listen

MPTCP = 262
BYTES = 50_000_000
CUT_S = 4
RATE = "30mbit"
PORT = 9000
ADDRESSES = {"eth": "10.77.1.1", "wlan": "10.77.2.1"}
NEEDED = ("tshark", "nft", "ping", "nstat")

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not all(map(shutil.which, NEEDED)), reason=f"not installed: one of {', '.join(NEEDED)}"
    ),
]


@dataclasses.dataclass
class Transfer:
    """A transfer, and what its ends and the kernel counted."""

    captures: list[pathlib.Path]
    sender: str
    received: int
    # When the command that did it was begun, and when it had ended.
    cut: tuple[float, float]
    restored: tuple[float, float]
    # Of the sending kernel: nstat's counters, and MPTCP_INFO before the socket was closed.
    counters: dict[str, int]
    info: KernelInfo


@dataclasses.dataclass
class KernelInfo:
    """Fields of the kernel's struct mptcp_info; `None` on kernels that have no such field."""

    bytes_retrans: int | None
    bytes_sent: int | None

    @classmethod
    def of(cls, connection: socket.socket) -> KernelInfo:
        size = 80
        raw = connection.getsockopt(SOL_MPTCP, MPTCP_INFO, size)
        if len(raw) < size:
            return cls(None, None)
        return cls(*struct.unpack_from("=QQ", raw, 48))


@contextlib.contextmanager
def captured(host, link: str, file: pathlib.Path):
    """Headers of everything on a link, pings too."""
    log = host.directory / f"tcpdump-{file.name}.log"
    options = ("--immediate-mode", "-U", "-B", "32768", "-s", "128")
    program = host.start("tcpdump", "-i", link, *options, "-w", file, log=log.name)
    wait_for("tcpdump", lambda: b"listening on" in log.read_bytes())
    yield
    time.sleep(0.3)
    program.send_signal(signal.SIGINT)
    program.wait(10)
    assert "\n0 packets dropped by kernel" in log.read_text(), log.read_text()


@contextlib.contextmanager
def dropped(server, link: str):
    """The server drops all packets of a link."""
    rules = f"""
        table inet cut {{
            chain comes {{ type filter hook prerouting priority -300; iifname "{link}" drop; }}
            chain goes {{ type filter hook output priority 0; oifname "{link}" drop; }}
        }}
    """
    done = server.run("nft", "-f", "-", input=rules.encode())
    assert done.returncode == 0, done.stderr
    yield
    assert server.run("nft", "delete", "table", "inet", "cut").returncode == 0


@contextlib.contextmanager
def switched_off(server, link: str):
    """The server's end of a link is down, so the client's has no carrier."""
    assert server.run("ip", "link", "set", link, "down").returncode == 0
    yield
    assert server.run("ip", "link", "set", link, "up").returncode == 0


def counters(host) -> dict[str, int]:
    return json.loads(host.run("nstat", "-asjz", "MPTcpExt*", text=True).stdout)["kernel"]


def transfer(pair: Pair, link: str, cut, upwards: bool, pings: bool, stale: bool) -> Transfer:
    """Sends while a link is cut; both links of the client are captured. `stale`: the kernel may give up a subflow."""
    client, server = pair.client, pair.server
    if not stale:
        for host in (client, server):
            assert host.run("sysctl", "-qw", "net.mptcp.stale_loss_cnt=0").returncode == 0
    tool("ip", "-n", client.name, "mptcp", "endpoint", "add", ADDRESSES["wlan"], "dev", "wlan", "subflow")
    # What waits in the server's queues gets out after a cut by netfilter: let it be less than the times are exact.
    for name in ADDRESSES:
        tool("tc", "-n", server.name, "qdisc", "change", "dev", name, "root",
             "tbf", "rate", RATE, "burst", "16k", "latency", "20ms")  # fmt: skip
    listener = listen(server, PORT, pair.ETH, MPTCP)
    listener.settimeout(10)
    received, info = [], []

    def send(connection):
        connection.sendall(bytes(BYTES))
        connection.shutdown(socket.SHUT_WR)
        # The other side closes when it has everything, so the kernel's account is then complete.
        assert connection.recv(1) == b""
        info.append(KernelInfo.of(connection))
        connection.close()

    def receive(connection):
        received.append(sum(iter(lambda: len(connection.recv(1 << 20)), 0)))
        connection.close()

    with contextlib.ExitStack() as stack:
        files = [pair.directory / f"{name}.pcap" for name in ADDRESSES]
        for name, file in zip(ADDRESSES, files, strict=True):
            stack.enter_context(captured(client, name, file))
        if pings:
            # From the address of the subflow on this link: the answers come on it and are signs of life of its path.
            client.start("ping", "-i", "0.02", "-q", "-I", ADDRESSES[link], pair.ETH)
        opened = client.socket(protocol=MPTCP)
        opened.settimeout(60)
        opened.connect((pair.ETH, PORT))
        accepted, _ = listener.accept()
        accepted.settimeout(60)
        source, sink = (opened, accepted) if upwards else (accepted, opened)
        sending, receiving = (
            threading.Thread(target=send, args=(source,)),
            threading.Thread(target=receive, args=(sink,)),
        )
        sending.start()
        receiving.start()
        time.sleep(1.5)
        begun = time.time()
        with cut(server, link):
            cut_at = (begun, time.time())
            time.sleep(CUT_S)
            begun = time.time()
        restored_at = (begun, time.time())
        sending.join(60)
        receiving.join(60)
    sender = client if upwards else server
    return Transfer(
        captures=files,
        sender="client_to_server" if upwards else "server_to_client",
        received=sum(received),
        cut=cut_at,
        restored=restored_at,
        counters=counters(sender),
        info=info[0],
    )


def analysis(done: Transfer) -> dict:
    document = json.loads(tool(PLAIT, "analyze", "--json", *map(str, done.captures)))
    assert not any(document["skipped"][reason] for reason in ("fragments", "malformed", "duplicate"))
    ours = [found for found in document["connections"] if found["subflows"][0]["dst"].endswith(f":{PORT}")]
    [connection] = ours
    return connection


@dataclasses.dataclass
class Seen:
    """A packet as tshark reads it."""

    time: float
    from_client: bool
    length: int
    data_seq: int | None
    data_ack: int | None


def seen(done: Transfer) -> list[Seen]:
    fields = (
        "frame.time_epoch",
        "tcp.dstport",
        "tcp.len",
        "tcp.options.mptcp.rawdataseqno",
        "tcp.options.mptcp.rawdataack",
    )
    options = [option for name in fields for option in ("-e", name)]
    packets = []
    for file in done.captures:
        lines = tool("tshark", "-n", "-r", str(file), "-Y", "tcp", "-T", "fields", *options).splitlines()
        for when, port, length, *numbers in (line.split("\t") for line in lines):
            # Some are written with 32 bits only. The stream is shorter than half of that range.
            data_seq, data_ack = (int(number) % 2**32 if number else None for number in numbers)
            packets.append(Seen(float(when), int(port) == PORT, int(length), data_seq, data_ack))
    return sorted(packets, key=lambda packet: packet.time)


def is_behind(number: int, other: int) -> bool:
    return 0 < (number - other) % 2**32 < 2**31


def longest_gap(packets: list[Seen], from_client: bool, span: tuple[float, float]) -> float:
    """The longest time between two DATA_ACKs from a side, each of which acknowledges something new."""
    latest, times = None, []
    for packet in packets:
        if packet.data_ack is None or packet.from_client != from_client:
            continue
        if latest is None or is_behind(packet.data_ack, latest):
            latest = packet.data_ack
            times.append(packet.time)
    gaps = [pair for pair in itertools.pairwise(times) if pair[0] < span[1] and span[0] < pair[1]]
    return max(after - before for before, after in gaps)


def most_unacknowledged(packets: list[Seen], from_client: bool) -> int:
    """How much of what a side had sent was not DATA_ACKed at most, rounded up by a mapping's greatest length."""
    acknowledged, most = None, 0
    for packet in packets:
        number = packet.data_seq if packet.from_client == from_client else packet.data_ack
        if number is None:
            continue
        if packet.from_client != from_client:
            acknowledged = number if acknowledged is None or is_behind(number, acknowledged) else acknowledged
        elif acknowledged is not None and is_behind(number, acknowledged):
            most = max(most, (number - acknowledged) % 2**32)
    return most + 2**16


CASES = {
    "eth-up": {"link": "eth", "cut": dropped, "upwards": True, "pings": True, "stale": True},
    "wlan-down": {"link": "wlan", "cut": dropped, "upwards": False, "pings": True, "stale": True},
    "eth-down-unplugged": {
        "link": "eth",
        "cut": switched_off,
        "upwards": False,
        "pings": True,
        "stale": True,
    },
    "wlan-up-without-pings": {
        "link": "wlan",
        "cut": dropped,
        "upwards": True,
        "pings": False,
        "stale": False,
    },
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[] if name == "eth-up" else [pytest.mark.long])
        for name, case in CASES.items()
    ],
)
def test_cut_path_is_one_failover(make_pair, case):
    with Disturbance() as disturbance:
        done = transfer(make_pair(rate=RATE), **case)
    connection = analysis(done)
    assert done.received == BYTES
    way = done.sender
    assert connection["new_bytes"][way] == BYTES
    parts = [subflow["directions"][way] for subflow in connection["subflows"]]
    assert sum(part["new_bytes"] for part in parts) == BYTES
    packets = seen(done)
    on_the_wire = sum(packet.length for packet in packets if packet.from_client == case["upwards"])
    assert connection["bytes"][way] == sum(part["bytes"] for part in parts) == on_the_wire

    assert len(connection["failovers"]) == 1, json.dumps(connection)
    [failover] = connection["failovers"]
    other = next(link for link in ADDRESSES if link != case["link"])
    assert failover["path"].startswith(ADDRESSES[case["link"]] + " ")
    assert failover["taken_over_by"].startswith(ADDRESSES[other] + " ")
    assert failover["direction"] == way
    if not has_times_of_the_cut(failover, done, case):
        if disturbance.worst > 0.02:
            inconclusive(f"the machine was busy for {disturbance.worst:.2f} s")
        raise AssertionError(f"expected a failover from {done.cut} to {done.restored}, got {failover}")
    assert failover["resumed"] >= failover["to"]

    gap = longest_gap(packets, not case["upwards"], (failover["from"], failover["resumed"]))
    assert abs(failover["stall_s"] - gap) <= 0.01
    assert 0 < failover["reinjected"]["bytes"] <= connection["reinjected"]["bytes"]
    most = most_unacknowledged(packets, case["upwards"])
    account_for_copies(done, case["upwards"], parts, most)


def has_times_of_the_cut(failover: dict, done: Transfer, case: dict) -> bool:
    if not is_near(failover["from"], done.cut):
        return False
    if case["cut"] is switched_off:
        # The kernel takes up to a second to notice a carrier that is back (net/core/link_watch.c).
        return done.restored[0] <= failover["to"] <= done.restored[1] + 1.5
    if case["pings"]:
        return is_near(failover["to"], done.restored)
    # Nothing shows that the path is back before TCP's next retransmission, which waits up to twice as long again.
    return done.restored[0] <= failover["to"] <= done.restored[1] + 2 * CUT_S


def is_near(when: float, command: tuple[float, float]) -> bool:
    """Whether something was while a command ran, or at most 50 ms before or after."""
    return command[0] - 0.05 <= when <= command[1] + 0.05


def account_for_copies(done: Transfer, upwards: bool, parts: list[dict], most_unacknowledged: int):
    """What was sent more than once, beside the sending kernel's account.

    Linux sends data once more on another subflow in two ways:
    - When a DATA_ACK does not come, __mptcp_retrans sends what is missing on a subflow that has nothing outstanding,
      be it the one that had carried it. The counter MPTCPRetrans counts its sends, each of as much as a segment of the
      kernel's own holds, which goes out as any number of packets; mptcpi_bytes_retrans counts the bytes.
    - When a subflow has not answered for net.mptcp.stale_loss_cnt such times, it is stale (counter SubflowStale), and
      everything that was not DATA_ACKed is sent again as if it had never been. Neither of the two counts that.
    TCP's retransmissions in a subflow are no business of MPTCP's; plait counts them among the repeated bytes.
    """
    bytes_retrans = done.info.bytes_retrans
    if bytes_retrans is None:
        return
    assert done.info.bytes_sent == BYTES
    assert (done.counters["MPTcpExtMPTCPRetrans"] > 0) == (bytes_retrans > 0)
    copies = sum(
        part["reinjected"]["bytes"] + part["repeated_bytes"] - part["retransmitted"]["bytes"]
        for part in parts
    )
    sent_anew = done.counters["MPTcpExtSubflowStale"] * most_unacknowledged
    # What the cut swallowed did not arrive beside the client, so that its copy is the first that is captured there.
    least = bytes_retrans if upwards else 0
    assert least <= copies <= bytes_retrans + sent_anew
