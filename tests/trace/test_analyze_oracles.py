"""`plait analyze` beside tshark, tcptrace and the kernel's counters: equal, or different for a reason that is tested here.

docs/reference/other-tools.md explains the differences.
"""

from __future__ import annotations

import collections
import csv
import ipaddress
import math
import os
import pathlib
import shutil
import struct
import threading

import pytest
from captures import document, pcap, segment
from hosts import tool, wait_for
from streams import MPTCP, listen
from transfers import counters, disable_offloads

WAYS = ("client_to_server", "server_to_client")

# Version and number of subflows of each MPTCP connection.
CAPTURES = {
    "DPI-mp_capable.pcapng": [(0, 4), (0, 4)],
    "DPI-mp_key_change.pcap": [(0, 1)],
    "DPI-wrongAdd_Addr.pcap": [(0, 1)],
    "own-native-s128.pcap": [(1, 1)],
    "ptcpdump-mptcp.pcap": [(1, 1)],
    "pymptcpanalyzer-iperf-mptcp-0-0.pcap": [(0, 4)],
    "tcpdump-mptcp-aa-echo.pcap": [(1, 1), (1, 1)],
    "tcpdump-mptcp-aa-v1.pcap": [(1, 1)],
    # Its only MPTCP option has an impossible length.
    "tcpdump-mptcp-dss-oobr.pcap": [],
    "tcpdump-mptcp-fclose.pcap": [(0, 1)],
    "tcpdump-mptcp-tcprst.pcap": [(1, 1)],
    "tcpdump-mptcp-v0.pcap": [(0, 2)],
    "tcpdump-mptcp-v1.pcap": [(1, 1)],
}


def needs(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


needs_tshark = needs("tshark", "mergecap", "editcap")
needs_tcptrace = needs("tcptrace", "editcap", "mergecap")


@pytest.fixture(params=CAPTURES)
def real(request) -> pathlib.Path:
    if not (directory := os.environ.get("PLAIT_CAPTURES")):
        pytest.skip("PLAIT_CAPTURES is not set")
    file = pathlib.Path(directory) / request.param
    if not file.exists():
        pytest.skip(f"no {request.param} in {directory}")
    return file


def end(address: str, port) -> tuple:
    return ipaddress.ip_address(address), int(port)


def end_of(text: str) -> tuple:
    address, port = text.rsplit(":", 1)
    return end(address.strip("[]"), port)


def plait_by_sender(found: dict) -> dict:
    """What each end of each subflow sent, by the sender's and the receiver's address."""
    sent = {}
    for connection in found["connections"]:
        for subflow in connection["subflows"]:
            ends = end_of(subflow["src"]), end_of(subflow["dst"])
            for way, (source, destination) in zip(WAYS, (ends, ends[::-1]), strict=True):
                sent[source, destination] = subflow["directions"][way]
    return sent


def plait_groups(found: dict) -> set:
    """The subflows of each MPTCP connection, each as its two ends."""
    return {
        frozenset(
            frozenset((end_of(subflow["src"]), end_of(subflow["dst"]))) for subflow in connection["subflows"]
        )
        for connection in found["connections"]
        if connection["version"] is not None
    }


def tshark(file, *fields, preferences=()) -> list[dict]:
    """The fields of every TCP packet, in two passes, and between which ends it went."""
    ends = ("ip.src", "ipv6.src", "tcp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport")
    chosen = [
        word
        for preference in ("tcp.desegment_tcp_streams:FALSE", *preferences)
        for word in ("-o", preference)
    ]
    names = [word for field in (*ends, *fields) for word in ("-e", field)]
    text = tool("tshark", "-2", "-n", "-r", str(file), *chosen, "-T", "fields", *names)
    packets = []
    for line in text.splitlines():
        row = dict(zip((*ends, *fields), line.split("\t"), strict=True))
        if row["tcp.srcport"]:
            row["source"] = end(row["ip.src"] or row["ipv6.src"], row["tcp.srcport"])
            row["destination"] = end(row["ip.dst"] or row["ipv6.dst"], row["tcp.dstport"])
            packets.append(row)
    return packets


def tshark_groups(packets) -> set:
    """The TCP streams of each MPTCP stream, each as its two ends."""
    groups = collections.defaultdict(set)
    streams = collections.defaultdict(set)
    for packet in packets:
        ends = frozenset((packet["source"], packet["destination"]))
        streams[packet["tcp.stream"]].add(ends)
        if packet["mptcp.stream"]:
            groups[packet["mptcp.stream"]].add(ends)
    assert all(len(ends) == 1 for ends in streams.values())
    return {frozenset(group) for group in groups.values()}


def tcptrace(file) -> dict:
    """The values of tcptrace for each direction, by the addresses of sender and receiver."""
    text = tool("tcptrace", "-n", "-lr", "--csv", str(file))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = {}
    for row in csv.DictReader(lines, skipinitialspace=True):
        ends = end(row["host_a"], row["port_a"]), end(row["host_b"], row["port_b"])
        for suffix, way in (("_a2b", ends), ("_b2a", ends[::-1])):
            values = {
                name.removesuffix(suffix): text.strip() for name, text in row.items() if name.endswith(suffix)
            }
            found[way] = values
    return found


def counts_of_document(sent: dict) -> dict:
    return {
        "packets": sent["packets"],
        "bytes": sent["bytes"],
        "retransmitted_segments": sent["retransmitted"]["segments"],
        "retransmitted_bytes": sent["retransmitted"]["bytes"],
    }


def counts_of_tcptrace(sent: dict) -> dict:
    """To tcptrace, SYN and FIN are a byte each: it counts those that were sent again as retransmissions of a byte."""
    again = sum(max(int(count) - 1, 0) for count in sent["SYN/FIN_pkts_sent"].split("/"))
    return {
        "packets": int(sent["total_packets"]),
        "bytes": int(sent["actual_data_bytes"]),
        "retransmitted_segments": int(sent["rexmt_data_pkts"]) - again,
        "retransmitted_bytes": int(sent["rexmt_data_bytes"]) - again,
    }


@needs_tshark
def test_versions_connections_and_subflows(real):
    connections = document(real)["connections"]
    found = [
        (connection["version"], len(connection["subflows"]))
        for connection in connections
        if connection["version"] is not None
    ]
    assert found == CAPTURES[real.name]


@needs_tshark
def test_connections_match_tshark(real):
    packets = tshark(real, "tcp.stream", "mptcp.stream")
    found = document(real)
    assert plait_groups(found) == tshark_groups(packets)
    # Everything else is plain TCP to both.
    streams = {frozenset((packet["source"], packet["destination"])) for packet in packets}
    assert {frozenset(ends) for ends in plait_by_sender(found)} == streams


# tcptrace takes an IPv6 packet in a PPP frame for the packet before it, which it counts again.
IPV6_IN_PPP = {"pymptcpanalyzer-iperf-mptcp-0-0.pcap": ("1", "2", "3", "4", "1463", "1465")}


@needs_tcptrace
def test_bytes_and_retransmissions_match_tcptrace(real, tmp_path):
    file = real
    if frames := IPV6_IN_PPP.get(real.name):
        sender = end("10.1.0.1", 49078), end("10.2.1.1", 5001)
        assert counts_of_tcptrace(tcptrace(real)[sender])["retransmitted_segments"] == 1
        file = tmp_path / "without.pcap"
        tool("editcap", "-F", "pcap", str(real), str(file), *frames)
        assert plait_by_sender(document(real)) == plait_by_sender(document(file))
    expected = {ends: counts_of_tcptrace(sent) for ends, sent in tcptrace(file).items()}
    assert {
        ends: counts_of_document(sent) for ends, sent in plait_by_sender(document(real)).items()
    } == expected


def send(pair, size: int, connections: int = 1):
    """The client sends over both links, at once in each connection, until the server has everything."""
    listener = listen(pair.server, 9000, "0.0.0.0", MPTCP)
    received = []
    receivers = [threading.Thread(target=receive, args=(listener, received)) for _ in range(connections)]
    for receiver in receivers:
        receiver.start()
    senders = [threading.Thread(target=send_one, args=(pair, size)) for _ in range(connections)]
    for thread in senders:
        thread.start()
    for thread in (*senders, *receivers):
        thread.join(60)
    listener.close()
    assert received == [size] * connections


def receive(listener, received):
    connection, _ = listener.accept()
    total = 0
    with connection:
        connection.settimeout(30)
        while data := connection.recv(1 << 20):
            total += len(data)
    received.append(total)


def send_one(pair, size):
    with pair.client.socket(protocol=MPTCP) as sender:
        sender.settimeout(30)
        sender.connect((pair.ETH, 9000))
        # The first byte's way back and forth is when the other link is joined.
        sender.sendall(b"x")
        wait_for_join(pair, sender.getsockname()[1])
        sender.sendall(os.urandom(size - 1))


def wait_for_join(pair, port):
    """Until this connection has a second subflow: another socket with the token of the first."""

    def joined():
        sockets = pair.client.run("ss", "-HtniO", "dport = :9000", text=True).stdout.splitlines()
        tokens = [socket.rpartition("token:")[2].split()[0] for socket in sockets if "token:" in socket]
        ports = [socket.split()[3].rsplit(":", 1)[1] for socket in sockets if "token:" in socket]
        mine = tokens[ports.index(str(port))].split("/")[1].split("(")[0] if str(port) in ports else None
        return mine and sum(f"/{mine}(" in token for token in tokens) == 2

    wait_for("second subflow", joined)


def lose_data(pair, percent: int):
    """Loses some of the packets with data, after the client has captured them."""
    pair.server.add_packet_rules(input=f"meta length > 200 numgen random mod 100 < {percent} drop")


def slow_acknowledgements(pair):
    """Queues acknowledgements, so that round trips differ, by more than the time of a capture."""
    for link in ("eth", "wlan"):
        tool("tc", "-n", pair.server.name, "qdisc", "replace", "dev", link, "root",
             "tbf", "rate", "4mbit", "burst", "2k", "latency", "20ms")  # fmt: skip


def merged(files, directory) -> pathlib.Path:
    target = directory / "merged.pcap"
    tool("mergecap", "-F", "pcap", "-w", str(target), *map(str, files))
    return target


@pytest.fixture
def lossy(pair, tmp_path) -> pathlib.Path:
    """A transfer over two links that lose 2 % of the data, captured where it is sent."""
    disable_offloads(pair, "eth", "wlan")
    slow_acknowledgements(pair)
    lose_data(pair, 2)
    with pair.capture("eth", pair.client) as eth, pair.capture("wlan", pair.client) as wlan:
        send(pair, 12_000_000)
    return merged((eth.file, wlan.file), tmp_path)


@pytest.fixture
def clean(pair, tmp_path) -> pathlib.Path:
    """A transfer over two links that lose nothing, captured where it is sent."""
    disable_offloads(pair, "eth", "wlan")
    slow_acknowledgements(pair)
    # On a busy machine, the kernel may take a late acknowledgement for a loss.
    for _ in range(5):
        before = counters(pair.client)["TcpRetransSegs"]
        with pair.capture("eth", pair.client) as eth, pair.capture("wlan", pair.client) as wlan:
            send(pair, 3_000_000)
        if counters(pair.client)["TcpRetransSegs"] == before:
            return merged((eth.file, wlan.file), tmp_path)
    pytest.fail("nothing was lost, and yet the kernel sent data again each time")


@needs_tshark
def test_grouping_of_joins_matches_tshark(pair, tmp_path):
    with pair.capture("eth", pair.client) as eth, pair.capture("wlan", pair.client) as wlan:
        send(pair, 200_000, connections=5)
    file = merged((eth.file, wlan.file), tmp_path)
    found = plait_groups(document(file))
    assert found == tshark_groups(tshark(file, "tcp.stream", "mptcp.stream"))
    assert sorted(map(len, found)) == [2] * 5


@needs_tcptrace
def test_retransmissions_match_kernel_and_tcptrace(lossy, pair):
    sent = plait_by_sender(document(lossy))
    expected = {ends: counts_of_tcptrace(counts) for ends, counts in tcptrace(lossy).items()}
    found = {ends: counts_of_document(counts) for ends, counts in sent.items()}
    assert found == expected
    retransmitted = sum(counts["retransmitted_segments"] for counts in found.values())
    assert retransmitted == counters(pair.client)["TcpRetransSegs"] > 10
    # Where data is sent, nothing overtakes.
    assert all(direction["out_of_order"]["segments"] == 0 for direction in sent.values())


@needs_tshark
def test_packet_split_by_offload_counts_once(pair, tmp_path):
    slow_acknowledgements(pair)
    lose_data(pair, 5)
    with pair.capture("eth", pair.client) as eth, pair.capture("wlan", pair.client) as wlan:
        send(pair, 6_000_000)
    file = merged((eth.file, wlan.file), tmp_path)
    again = [int(packet["tcp.len"]) for packet in tshark_sent_again(file)]
    retransmitted = [sent["retransmitted"] for sent in plait_by_sender(document(file)).values()]
    assert sum(count["segments"] for count in retransmitted) == len(again)
    assert sum(count["bytes"] for count in retransmitted) == sum(again)
    # 1500 bytes, without the headers of IP and TCP, time stamps, and the space kept for the longest DSS.
    segment = 1500 - 20 - 20 - 12 - 24
    split = sum(-(-length // segment) for length in again)
    assert split == counters(pair.client)["TcpRetransSegs"] >= len(again) > 0


ANALYSIS = ("retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order")


@needs_tshark
def test_retransmissions_match_tshark_with_its_reordering(lossy):
    """tshark takes a retransmission for reordering if it follows the segment after it within a round trip."""
    flagged = collections.Counter(
        (packet["source"], packet["destination"]) for packet in tshark_sent_again(lossy)
    )
    found = {
        ends: sent["retransmitted"]["segments"]
        for ends, sent in plait_by_sender(document(lossy)).items()
        if sent["retransmitted"]["segments"]
    }
    assert found == flagged and len(found) == 2


def tshark_sent_again(file) -> list[dict]:
    """The packets with data that tshark takes for sent again, or for reordered, which nothing is at the sender."""
    names = [f"tcp.analysis.{name}" for name in ANALYSIS]
    packets = tshark(file, "tcp.len", *names)
    return [packet for packet in packets if int(packet["tcp.len"]) and any(packet[name] for name in names)]


def stretched(file, factor: int) -> pathlib.Path:
    """The capture with times since its beginning made longer: tcptrace writes times in tenths of milliseconds."""
    data = bytearray(file.read_bytes())
    first, position = None, 24
    while position < len(data):
        seconds, micros, kept = struct.unpack_from("<III", data, position)
        time = seconds * 1_000_000 + micros
        first = time if first is None else first
        struct.pack_into("<II", data, position, *divmod(first + (time - first) * factor, 1_000_000))
        position += 16 + kept
    target = file.with_name(f"stretched-{file.name}")
    target.write_bytes(data)
    return target


def without_openings_and_ends(file) -> pathlib.Path:
    """What tcptrace and tshark also take round trips of; a FIN may come with data."""
    target = file.with_name(f"data-{file.name}")
    where = "tcp.flags.syn == 0 && tcp.flags.fin == 0"
    tool("tshark", "-n", "-r", str(file), "-Y", where, "-F", "pcap", "-w", str(target))
    return target


@needs_tcptrace
def test_round_trips_match_tcptrace(lossy):
    """To the sample, also around losses. tcptrace's deviation is that of a sample, plait's that of all there were."""
    # More would have pauses that tcptrace takes for the end of a connection.
    factor = 100
    file = without_openings_and_ends(lossy)
    expected = tcptrace(stretched(file, factor))
    compared = 0
    for ends, sent in plait_by_sender(document(file)).items():
        found, theirs = sent["ack_rtt_ms"], expected[ends]
        if found is None:
            assert theirs["RTT_samples"] == "0"
            continue
        count = found["samples"]
        assert count == int(theirs["RTT_samples"]) > 100
        for ours, name in (("min", "RTT_min"), ("max", "RTT_max"), ("mean", "RTT_avg")):
            assert found[ours] * factor == pytest.approx(float(theirs[name]), abs=0.1), name
        deviation = found["stddev"] * math.sqrt(count / (count - 1))
        assert deviation * factor == pytest.approx(float(theirs["RTT_stdev"]), abs=0.1)
        compared += 1
    assert compared == 2


@needs_tcptrace
def test_segment_that_fills_a_gap_gives_no_round_trip(tmp_path):
    """Its first transmission may have been lost before the capture. tcptrace cannot know, and takes the time."""
    # Two segments are lost before the capture, and sent again one by one.
    sent_and_acknowledged = ((1, 101), (301, 101), (101, 201), (201, 401))
    packets = [segment(1000), segment(1000, flags=0x12, ack=1, back=True), segment(1000, b"", 0x10, 1, 1)]
    for sequence, ack in sent_and_acknowledged:
        packets += [segment(1000, bytes(100), 0x10, sequence, 1), segment(1000, b"", 0x10, 1, ack, back=True)]
    file = tmp_path / "filled.pcap"
    file.write_bytes(pcap(*packets, start=1))
    ends = end("192.0.2.1", 1000), end("192.0.2.2", 443)
    sent = plait_by_sender(document(file))[ends]
    assert sent["ack_rtt_ms"]["samples"] == 1
    assert (sent["out_of_order"]["segments"], sent["retransmitted"]["segments"]) == (2, 0)
    theirs = tcptrace(file)[ends]
    # The opening, the first segment, and the first of those that fill the gap.
    assert (theirs["RTT_samples"], theirs["outoforder_pkts"], theirs["rexmt_data_pkts"]) == ("3", "2", "0")


@needs_tshark
def test_round_trips_match_tshark_without_losses(clean):
    """Around losses, tshark also measures to acknowledgements that waited for another segment."""
    file = without_openings_and_ends(clean)
    theirs = collections.defaultdict(list)
    for packet in tshark(file, "tcp.analysis.ack_rtt"):
        if packet["tcp.analysis.ack_rtt"]:
            # The acknowledgement's receiver is who sent the data.
            theirs[packet["destination"], packet["source"]].append(
                float(packet["tcp.analysis.ack_rtt"]) * 1e3
            )
    found = {
        ends: sent["ack_rtt_ms"]
        for ends, sent in plait_by_sender(document(file)).items()
        if sent["ack_rtt_ms"]
    }
    assert found.keys() == theirs.keys() and len(found) == 2
    # The kernel decides how much of the transfer each subflow carries.
    assert sum(map(len, theirs.values())) > 200
    for ends, sent in found.items():
        samples = theirs[ends]
        assert sent["samples"] == len(samples)
        assert sent["min"] == pytest.approx(min(samples), abs=1e-6)
        assert sent["max"] == pytest.approx(max(samples), abs=1e-6)
        assert sent["mean"] == pytest.approx(sum(samples) / len(samples), abs=1e-6)


@needs_tcptrace
def test_capture_of_all_interfaces_matches_tcptrace(pair, tmp_path):
    """tcptrace cannot read what tcpdump writes of all interfaces (LINUX_SLL2), only the IP packets in it."""
    with pair.capture("any", pair.client) as everything:
        send(pair, 300_000)
    packets = tmp_path / "packets.pcap"
    tool("editcap", "-F", "pcap", "-C", "20", "-T", "rawip", str(everything.file), str(packets))
    sent = plait_by_sender(document(everything.file))
    assert sum(counts["bytes"] for counts in sent.values()) >= 300_000
    expected = {ends: counts_of_tcptrace(counts) for ends, counts in tcptrace(packets).items()}
    assert {ends: counts_of_document(counts) for ends, counts in sent.items()} == expected
