"""Failover on real links: `plait analyze` compared with the clock, tshark and the kernel's own counters; and outages of the paths of
connections through gateways: how long these stall, and when they use all paths again."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import shutil
import socket
import statistics
import struct
import threading
import time

import pytest
from controllers import DelayedPair, built
from disturbance import measuring
from gateways import report_of
from hosts import PLAIT, Capture, Pair, linux_release, tool, unique_id, wait_for
from outages import address_lost, carrier_lost, forgotten_flows, outcome, silence, start_streams
from streams import (
    MPTCP_INFO,
    NAMED,
    REQUIRE,
    SOL_MPTCP,
    accept,
    assert_echo,
    connect_by_socks,
    deliver,
    echo_server,
    listen,
)

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
    """A transfer and the counters of its ends and of the kernel."""

    captures: list[Capture]
    sender: str
    received: int
    # Start and end of the command.
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


def dropped(server, link: str):
    """Within this context, the server drops all packets of a link."""
    return server.packet_rules(prerouting=f"iifname {link} drop", output=f"oifname {link} drop")


@contextlib.contextmanager
def switched_off(server, link: str):
    """Within this context, the server's end of a link is down, so that the client's has no carrier."""
    server.tool("ip", "link", "set", link, "down")
    yield
    server.tool("ip", "link", "set", link, "up")


def counters(host) -> dict[str, int]:
    return json.loads(host.run("nstat", "-asjz", "MPTcpExt*", text=True).stdout)["kernel"]


def transfer(pair: Pair, link: str, cut, upwards: bool, pings: bool, stale: bool) -> Transfer:
    """Sends while a link is cut; both links of the client are captured. `stale`: the kernel may give up a subflow."""
    client, server = pair.client, pair.server
    if not stale:
        for host in (client, server):
            host.tool("sysctl", "-qw", "net.mptcp.stale_loss_cnt=0")
    tool("ip", "-n", client.name, "mptcp", "endpoint", "add", ADDRESSES["wlan"], "dev", "wlan", "subflow")
    # Packets in the server's queues still leave after a cut by netfilter: fewer than matter for the times.
    for name in ADDRESSES:
        tool("tc", "-n", server.name, "qdisc", "change", "dev", name, "root",
             "tbf", "rate", RATE, "burst", "16k", "latency", "20ms")  # fmt: skip
    listener = listen(server, PORT, pair.ETH, MPTCP)
    listener.settimeout(10)
    received, info = [], []

    def send(connection):
        connection.sendall(bytes(BYTES))
        connection.shutdown(socket.SHUT_WR)
        # The receiver closes after the last byte: then the kernel's counters are complete.
        assert connection.recv(1) == b""
        info.append(KernelInfo.of(connection))
        connection.close()

    def receive(connection):
        received.append(sum(iter(lambda: len(connection.recv(1 << 20)), 0)))
        connection.close()

    with contextlib.ExitStack() as stack:
        # Pings, too.
        captures = [pair.capture(name, client, filter="", snap_length=128) for name in ADDRESSES]
        for capture in captures:
            stack.enter_context(capture)
        if pings:
            # From the address of the subflow on this link, on which the replies show that the path works.
            client.start("ping", "-i", "0.02", "-q", "-I", ADDRESSES[link], pair.ETH)
        opened = client.socket(protocol=MPTCP)
        opened.settimeout(60)
        opened.connect((pair.ETH, PORT))
        accepted, _ = listener.accept()
        accepted.settimeout(60)
        source, sink = (opened, accepted) if upwards else (accepted, opened)
        threads = [
            threading.Thread(target=send, args=(source,)),
            threading.Thread(target=receive, args=(sink,)),
        ]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        started = time.time()
        with cut(server, link):
            cut_at = (started, time.time())
            time.sleep(CUT_S)
            started = time.time()
        restored_at = (started, time.time())
        for thread in threads:
            thread.join(60)
    sender = client if upwards else server
    return Transfer(
        captures=captures,
        sender="client_to_server" if upwards else "server_to_client",
        received=sum(received),
        cut=cut_at,
        restored=restored_at,
        counters=counters(sender),
        info=info[0],
    )


def analysis(done: Transfer) -> dict:
    document = json.loads(tool(PLAIT, "analyze", "--json", *(str(capture.file) for capture in done.captures)))
    assert not any(document["skipped"][reason] for reason in ("fragments", "malformed", "duplicate"))
    ours = [found for found in document["connections"] if found["subflows"][0]["dst"].endswith(f":{PORT}")]
    [connection] = ours
    return connection


@dataclasses.dataclass
class Packet:
    """A packet as dissected by tshark."""

    time: float
    from_client: bool
    # Link and number of the TCP connection there.
    subflow: tuple[str, str]
    seq: int
    length: int
    data_seq: int | None
    data_ack: int | None


def packets_of(captures: list[Capture]) -> list[Packet]:
    numbers = ("tcp.options.mptcp.rawdataseqno", "tcp.options.mptcp.rawdataack")
    packets = []
    for capture in captures:
        for when, stream, port, seq, length, *numbers_of in capture.fields(
            "frame.time_epoch", "tcp.stream", "tcp.dstport", "tcp.seq_raw", "tcp.len", *numbers
        ):
            subflow = (capture.file.stem, stream)
            # Some numbers are abbreviated to 32 bits. The stream is shorter than half of that range.
            data_seq, data_ack = (int(number) % 2**32 if number else None for number in numbers_of)
            packets.append(
                Packet(float(when), int(port) == PORT, subflow, int(seq), int(length), data_seq, data_ack)
            )
    return sorted(packets, key=lambda packet: packet.time)


def is_behind(number: int, other: int) -> bool:
    return 0 < (number - other) % 2**32 < 2**31


def longest_gap(packets: list[Packet], from_client: bool, span: tuple[float, float]) -> float:
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


def unique_bytes(packets: list[Packet]) -> int:
    """The bytes of one direction in all subflows, without those that TCP sent again."""
    ranges = {}
    for packet in packets:
        if packet.length:
            sent = ranges.setdefault(packet.subflow, [])
            # The numbers may wrap, and a subflow carries less than half of their range.
            first = sent[0][0] if sent else packet.seq
            start = first + (packet.seq - first + 2**31) % 2**32 - 2**31
            sent.append((start, start + packet.length))
    total = 0
    for sent in ranges.values():
        end = min(sent)[0]
        for start, after in sorted(sent):
            total += max(after - max(start, end), 0)
            end = max(end, after)
    return total


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            {"link": link, "cut": cut, "upwards": upwards, "pings": pings, "stale": stale},
            id=name,
            marks=marks,
        )
        for name, link, cut, upwards, pings, stale, marks in (
            ("eth-up", "eth", dropped, True, True, True, ()),
            ("wlan-down", "wlan", dropped, False, True, True, pytest.mark.long),
            ("eth-down-unplugged", "eth", switched_off, False, True, True, pytest.mark.long),
            ("wlan-up-without-pings", "wlan", dropped, True, False, False, pytest.mark.long),
        )
    ],
)
def test_cut_path_is_one_failover(make_pair, case):
    with measuring(0.02):
        done = transfer(make_pair(rate=RATE), **case)
        connection = analysis(done)
        assert len(connection["failovers"]) == 1, json.dumps(connection)
        [failover] = connection["failovers"]
        assert has_times_of_the_cut(failover, done, case), f"{done.cut} to {done.restored}: {failover}"
    assert done.received == BYTES
    way = done.sender
    assert connection["new_bytes"][way] == BYTES
    parts = [subflow["directions"][way] for subflow in connection["subflows"]]
    assert sum(part["new_bytes"] for part in parts) == BYTES
    packets = packets_of(done.captures)
    sent = [packet for packet in packets if packet.from_client == case["upwards"]]
    on_the_wire = sum(packet.length for packet in sent)
    assert connection["bytes"][way] == sum(part["bytes"] for part in parts) == on_the_wire

    other = next(link for link in ADDRESSES if link != case["link"])
    assert failover["path"].startswith(ADDRESSES[case["link"]] + " ")
    assert failover["taken_over_by"].startswith(ADDRESSES[other] + " ")
    assert failover["direction"] == way
    assert failover["resumed"] >= failover["to"]

    gap = longest_gap(packets, not case["upwards"], (failover["from"], failover["resumed"]))
    assert abs(failover["stall_s"] - gap) <= 0.01
    assert 0 < failover["reinjected"]["bytes"] <= connection["reinjected"]["bytes"]
    copies = sum(
        part["reinjected"]["bytes"] + part["repeated_bytes"] - part["retransmitted"]["bytes"]
        for part in parts
    )
    assert copies == unique_bytes(sent) - BYTES
    check_kernel_counters(done, case["upwards"], copies)


def has_times_of_the_cut(failover: dict, done: Transfer, case: dict) -> bool:
    if not is_near(failover["from"], done.cut):
        return False
    if case["cut"] is switched_off:
        # The kernel notices a returned carrier within a second (net/core/link_watch.c).
        return done.restored[0] <= failover["to"] <= done.restored[1] + 1.5
    if case["pings"]:
        return is_near(failover["to"], done.restored)
    # TCP's next retransmission, after up to twice the time of the cut, is the first sign that the path is back.
    return done.restored[0] <= failover["to"] <= done.restored[1] + 2 * CUT_S


def is_near(when: float, command: tuple[float, float]) -> bool:
    """Whether a time is within that of a command, with a tolerance of 50 ms."""
    return command[0] - 0.05 <= when <= command[1] + 0.05


def check_kernel_counters(done: Transfer, upwards: bool, copies: int):
    """Compares the bytes that MPTCP sent more than once with the counters of the sending kernel.

    Linux sends data again on another subflow in two ways:
    - Without a DATA_ACK, __mptcp_retrans sends what is missing on a subflow without outstanding data, possibly the
      original one. The counter MPTCPRetrans counts these calls, mptcpi_bytes_retrans their bytes.
    - After net.mptcp.stale_loss_cnt such timeouts, a subflow is stale (counter SubflowStale), and all data without a
      DATA_ACK is sent again. No counter includes its bytes.
    """
    bytes_retrans = done.info.bytes_retrans
    if bytes_retrans is None:
        return
    assert done.info.bytes_sent == BYTES
    assert (done.counters["MPTcpExtMPTCPRetrans"] > 0) == (bytes_retrans > 0)
    # Data lost in the cut was not captured at the client, so that its copy is the first there.
    if upwards:
        assert bytes_retrans <= copies
    if not done.counters["MPTcpExtSubflowStale"]:
        assert copies <= bytes_retrans


class UnevenPair(DelayedPair):
    """Two links with different rates and round-trip times."""

    LINKS = {"eth": ("20mbit", "15ms"), "wlan": ("10mbit", "25ms")}
    RATES = {"eth": 20e6, "wlan": 10e6}


# Seconds. With a path left, data flows again within MAX_STALL; without, within the same after the first return.
MAX_STALL, MAX_ALL_IN_USE = 1.0, 2.0
BEFORE_S, AFTER_S = 3, 6


def outages():
    for name, fault, links, seconds, direction, marks in (
        ("second-path", silence, ("wlan",), 2.5, "down", ()),
        ("first-path", silence, ("eth",), 2.5, "up", ()),
        ("second-path-5s-up", silence, ("wlan",), 5, "up", pytest.mark.long),
        ("second-path-30s", silence, ("wlan",), 30, "down", pytest.mark.long),
        ("first-path-5s", silence, ("eth",), 5, "down", pytest.mark.long),
        ("first-path-30s", silence, ("eth",), 30, "down", pytest.mark.long),
        ("both-paths-5s", silence, ("eth", "wlan"), 5, "down", pytest.mark.long),
        ("both-paths-5s-each-way", silence, ("eth", "wlan"), 5, "both", ()),
        ("both-paths-30s-up", silence, ("eth", "wlan"), 30, "up", pytest.mark.long),
        ("both-paths-90s", silence, ("eth", "wlan"), 90, "down", pytest.mark.long),
        ("address", address_lost, ("wlan",), 5, "down", pytest.mark.long),
        ("first-address-up", address_lost, ("eth",), 5, "up", pytest.mark.long),
        ("carrier", carrier_lost, ("wlan",), 5, "down", pytest.mark.long),
        ("first-carrier-up", carrier_lost, ("eth",), 5, "up", pytest.mark.long),
    ):
        yield pytest.param(fault, links, seconds, direction, id=name, marks=marks)


@contextlib.contextmanager
def streams_through_gateways(directory, direction: str, *options: str):
    """A pair, and streams through its gateways, which use both links. `options`: of both gateways."""
    with built(UnevenPair(unique_id(), directory)) as pair:
        pair.add_route_by_wlan()
        listener = listen(pair.server)
        pair.serve(*options, to="127.0.0.1:9000")
        pair.proxy(*options, *NAMED)
        ends = connect_by_socks(pair), accept(listener)
        deliver(*ends)
        deliver(*reversed(ends))
        streams = start_streams(pair.client, ends, pair.RATES, direction)
        wait_for("use of both links", lambda: all(usage.all_in_use(0) for _, usage in streams))
        yield pair, streams


def measure_outage(pair, streams, fault, links, seconds: float) -> list:
    """The outcome for each stream, all of which are complete."""
    time.sleep(BEFORE_S)
    start = time.monotonic()
    with fault(pair, *links):
        time.sleep(seconds)
    end = time.monotonic()
    time.sleep(AFTER_S)
    until = time.monotonic()
    for _, usage in streams:
        usage.stop()
    outcomes = [outcome(stream, usage, start, end, until) for stream, usage in streams]
    for stream, _ in streams:
        stream.finish()
    return outcomes


@pytest.mark.parametrize("fault, links, seconds, direction", outages())
def test_connection_survives_outage(tmp_path, fault, links, seconds, direction):
    with streams_through_gateways(tmp_path, direction, "--require") as (pair, streams), measuring(0.05):
        for found in measure_outage(pair, streams, fault, links, seconds):
            if len(links) < len(pair.LINKS):
                assert found.stall <= MAX_STALL, found
            assert found.later_stall <= MAX_STALL, found
            assert found.all_in_use is not None and found.all_in_use <= MAX_ALL_IN_USE, found


@pytest.mark.parametrize("mode", ["off", "stream"])
def test_download_goes_on_soon_after_a_second_without_paths(tmp_path, mode):
    """The client cannot know that there is more to come, nor the server reach it; the server's retransmissions are a second apart."""
    with streams_through_gateways(tmp_path, "down", "--mode", mode) as (pair, streams), measuring(0.05):
        [found] = measure_outage(pair, streams, silence, pair.LINKS, 1)
        assert found.later_stall <= MAX_STALL, found


def receive_buffer_sizes(host) -> dict[str, int]:
    """Of each established subflow, by its addresses."""
    sockets = host.tool("ss", "-tinmOH", "state", "established", "( dport = :8443 or sport = :8443 )")
    return {
        " ".join(line.split()[2:4]): int(re.search(r",rb(\d+),", line)[1]) for line in sockets.splitlines()
    }


def test_new_subflows_have_the_receive_buffer_of_the_connection(tmp_path):
    """With the initial one, a connection whose subflows were all replaced would receive some 85 kB per round trip."""
    if linux_release() < (6, 7):
        pytest.skip("subflows get the receive buffer of their connection from Linux 6.7 on")
    with streams_through_gateways(tmp_path, "both", "--require") as (pair, streams):
        time.sleep(BEFORE_S)
        hosts = (pair.client, pair.server)
        before = [receive_buffer_sizes(host) for host in hosts]
        with silence(pair, *pair.LINKS):
            time.sleep(2)

        def all_subflows_replaced():
            after = [receive_buffer_sizes(host) for host in hosts]
            are_new = [len(found) == 2 and not found.keys() & old.keys() for found, old in zip(after, before)]
            return (
                all(are_new)
                and min(itertools.chain.from_iterable(found.values() for found in after)) >= 1 << 20
            )

        wait_for("new subflows with large buffers", all_subflows_replaced, timeout=AFTER_S)
        for stream, usage in streams:
            usage.stop()
            stream.finish()


# crates/gateway/bpf/unsent_limit.bpf.c: what eth sends in 20 ms, and two bursts of the kernel's scheduler, each handed over at once; and what eth
# sends in the time by which wlan's round trip takes longer: mostly 50 ms, as both queues fill alike; 120 ms while wlan's is full (100 ms) and
# eth's has drained after a loss.
BURSTS = 50_000 + (2 * 64 << 10)
MOSTLY_UNSENT, MAX_UNSENT = BURSTS + 125_000, BURSTS + 300_000


def sample_unsent_bytes(host, seconds: float) -> list[list[int]]:
    """What each subflow of a gateway holds that is not sent yet, in bytes; several times in this time."""
    found, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        sockets = host.tool("ss", "-Htino", "state", "established", "( dport = :8443 or sport = :8443 )")
        found.append([int(number) for number in re.findall(r"notsent:(\d+)", sockets)])
    return found


@pytest.mark.parametrize("options", [("--require",), ("--mode", "off")], ids=["sealed", "off"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_unsent_data_of_subflows_is_limited(tmp_path, direction, options):
    """What a failing path had not delivered is sent on the other behind what waits there; the kernel alone lets 700 kB wait."""
    with streams_through_gateways(tmp_path, direction, *options) as (pair, [(stream, usage)]):
        found = sample_unsent_bytes(pair.client if direction == "up" else pair.server, 4)
        usage.stop()
        stream.finish()
    most = [max(numbers) for numbers in found if numbers]
    assert statistics.median(most) <= MOSTLY_UNSENT, found
    assert max(most) <= MAX_UNSENT, found
    assert any(len(numbers) == 2 for numbers in found), found


def test_unsent_data_of_new_subflows_is_limited(tmp_path):
    """After an outage, which the round trip of an old subflow may include."""
    with streams_through_gateways(tmp_path, "down", "--require") as (pair, [(stream, usage)]):
        time.sleep(BEFORE_S)
        with silence(pair, *pair.LINKS):
            time.sleep(6)
        found = sample_unsent_bytes(pair.server, 3)
        usage.stop()
        stream.finish()
    assert max(max(numbers) for numbers in found if numbers) <= MAX_UNSENT, found


@pytest.mark.parametrize("link", ["eth", "wlan"])
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.long
def test_path_whose_nat_forgets_is_used_again(tmp_path, link, direction):
    """Nothing tells: packets of the old flows disappear for good."""
    with (
        streams_through_gateways(tmp_path, direction, "--require") as (pair, [(stream, usage)]),
        measuring(0.05),
    ):
        with forgotten_flows(pair, link):
            start = time.monotonic()
            time.sleep(AFTER_S)
            usage.stop()
            found = outcome(stream, usage, start, start, time.monotonic())
            stream.finish()
        assert found.later_stall <= MAX_STALL, found
        back = usage.idle_until(link, start)
        assert back is not None and back - start <= MAX_ALL_IN_USE, found


def paths_of(pair, command="proxy") -> set[str]:
    """The local addresses of the only connection's subflows."""
    [connection] = report_of(pair, command)["connections"]
    return {subflow["local"].rsplit(":", 1)[0] for subflow in connection["subflows"]}


@pytest.fixture
def talking(two_ways):
    """A pair with one connection by both links."""
    echo_server(two_ways.server)
    two_ways.serve("--require", to="127.0.0.1:9000")
    two_ways.proxy(*REQUIRE)
    with connect_by_socks(two_ways) as client:
        assert_echo(client)
        wait_for("second subflow", lambda: paths_of(two_ways) == {"10.77.1.1", "10.77.2.1"})
        yield two_ways, client


def test_changed_address_is_used(talking):
    pair, client = talking
    pair.client.ip("addr del 10.77.2.1/24 dev wlan")
    wait_for("end of the old subflow", lambda: paths_of(pair) == {"10.77.1.1"}, timeout=1)
    pair.client.ip("addr add 10.77.2.7/24 dev wlan")
    wait_for("subflow from the new address", lambda: paths_of(pair) == {"10.77.1.1", "10.77.2.7"}, timeout=2)
    assert_echo(client)


def test_renamed_interface_is_used(talking):
    """As a modem that is plugged in again may have another name."""
    pair, client = talking
    pair.client.ip("link del wlan")
    wait_for("end of the old subflow", lambda: paths_of(pair) == {"10.77.1.1"}, timeout=1)
    tool("ip", "link", "add", "wwan7", "netns", pair.client.name, "type", "veth",
         "peer", "name", "wlan", "netns", pair.server.name)  # fmt: skip
    pair.server.ip("addr add 10.77.2.2/24 dev wlan")
    pair.server.ip("link set wlan up")
    pair.client.ip("addr add 10.77.2.1/24 dev wwan7")
    pair.client.ip("link set wwan7 up")
    wait_for("subflow", lambda: paths_of(pair) == {"10.77.1.1", "10.77.2.1"}, timeout=3)
    assert_echo(client)


def test_later_route_is_used(pair):
    """A path whose interface is up before it has a route."""
    pair.client.ip("addr del 10.77.2.1/24 dev wlan")
    pair.client.ip("addr add 10.99.2.1/32 dev wlan")
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    pair.proxy(*REQUIRE)
    pair.server.ip("route add 10.99.2.1/32 dev wlan")
    with connect_by_socks(pair) as client:
        assert_echo(client)
        pair.client.ip(f"route add {pair.WLAN}/32 dev wlan src 10.99.2.1")
        wait_for("second subflow", lambda: paths_of(pair) == {"10.77.1.1", "10.99.2.1"}, timeout=2)
        assert_echo(client)


def test_connection_bound_to_an_interface_without_role_keeps_its_subflow(two_ways):
    """The program chose that interface; only the others' roles are configured."""
    pair = two_ways
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    script = f"""
import socket, time
with socket.socket() as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth")
    client.connect(("{pair.ETH}", 8443))
    for _ in range(40):
        client.sendall(b"hello")
        client.recv(5)
        time.sleep(0.1)
"""
    options = (*REQUIRE[:1], "--trusted", "wlan", "--untrusted", "other0")
    program = pair.client.start(PLAIT, "run", *options, "--", "python3", "-c", script)
    both = {"10.77.1.1", "10.77.2.1"}
    wait_for("both subflows", lambda: pair.status()[-1]["connections"] and paths_of(pair, "run") == both)
    ports = {subflow["local"] for subflow in report_of(pair, "run")["connections"][0]["subflows"]}
    time.sleep(1.5)
    assert {subflow["local"] for subflow in report_of(pair, "run")["connections"][0]["subflows"]} == ports
    assert program.wait(20) == 0
