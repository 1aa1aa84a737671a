"""`plait analyze`: real transfers, compared with tshark and the counters of the kernel."""

import collections
import json
import os

import pytest
from captures import analyze, document, pcap, segment
from hosts import tool, wait_for
from streams import OFF, fetch, random_file
from transfers import counters

WAYS = ("client_to_server", "server_to_client")


def mptcp(found: dict) -> dict:
    (connection,) = [connection for connection in found["connections"] if connection["version"] is not None]
    return connection


def by_sender(connection: dict, part) -> dict:
    """A part of each direction of each subflow, by the addresses of sender and receiver."""
    sent = {}
    for subflow in connection["subflows"]:
        ends = (subflow["src"], subflow["dst"])
        for way, (source, destination) in zip(WAYS, (ends, ends[::-1]), strict=True):
            sent[source, destination] = part(subflow["directions"][way])
    return sent


def tshark_by_sender(file, *fields, where="tcp") -> dict:
    """Rows of fields by sender and receiver."""
    names = ("ip.src", "tcp.srcport", "ip.dst", "tcp.dstport", *fields)
    options = [option for name in names for option in ("-e", name)]
    text = tool("tshark", "-n", "-r", str(file), "-Y", where, "-T", "fields", *options)
    rows = collections.defaultdict(list)
    for line in text.splitlines():
        source, source_port, destination, destination_port, *values = line.split("\t")
        rows[f"{source}:{source_port}", f"{destination}:{destination_port}"].append(values)
    return rows


@pytest.fixture
def transfer(make_pair, documents):
    """A download over two links, captured on the server side, and how many bytes it had."""
    pair = make_pair(rate="100mbit")
    size = 8_000_000
    file = random_file(documents, size)
    pair.nginx(documents)
    # An MPTCP listener in front of nginx, and a client that is not protected.
    pair.serve("--mode", "off", to="127.0.0.1:8080")
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        assert fetch(pair, file, options=OFF) == file.read_bytes()
    return [eth.file, wlan.file], size


def test_transfer_counts_match_tshark(transfer):
    files, size = transfer
    connection = mptcp(document(*files))
    assert connection["version"] == 1 and not connection["partial"] and connection["fallback"] is None
    assert len(connection["subflows"]) == 2
    # Whatever precedes the document is the header of the answer.
    assert size < connection["new_bytes"]["server_to_client"] < size + 1000
    payload, packets, trips, opening = {}, {}, {}, {}
    for file in files:
        for ends, rows in tshark_by_sender(file, "tcp.len").items():
            packets[ends] = len(rows)
            payload[ends] = sum(int(length) for (length,) in rows)
        acks = "tcp.analysis.ack_rtt && tcp.flags.fin == 0"
        for (source, destination), rows in tshark_by_sender(file, "tcp.analysis.ack_rtt", where=acks).items():
            trips[destination, source] = [float(row[0]) * 1e3 for row in rows]
        for ends, rows in tshark_by_sender(file, "tcp.analysis.initial_rtt").items():
            opening[ends] = float(next(row[0] for row in reversed(rows) if row[0])) * 1e3
    assert by_sender(connection, lambda sent: sent["bytes"]) == payload
    assert by_sender(connection, lambda sent: sent["packets"]) == packets
    for subflow in connection["subflows"]:
        assert subflow["syn_rtt_ms"] == pytest.approx(opening[subflow["src"], subflow["dst"]], abs=0.001)
        sent = subflow["directions"]["server_to_client"]
        expected = trips[subflow["dst"], subflow["src"]]
        if sent["retransmitted"]["segments"] == 0 and expected:
            # tshark also measures the SYN/ACK.
            assert abs(sent["ack_rtt_ms"]["samples"] - len(expected)) <= 3
            assert sent["ack_rtt_ms"]["mean"] == pytest.approx(sum(expected) / len(expected), rel=0.02)


def test_data_of_dead_path_is_reinjected(make_pair, documents):
    """One link drops everything during a transfer; the other link carries the data again. Without gateways, which close the dead
    subflow: the kernel does not count what it sends again after that."""
    pair = make_pair(rate="20mbit")
    size = 6_000_000
    file = random_file(documents, size)
    serve = ("python3", "-m", "http.server", "--bind", "0.0.0.0", "--directory", documents, 8443)
    pair.server.start("mptcpize", "run", *serve, log="server.log")
    wait_for("server", lambda: pair.server.listens(8443))
    target = documents / "received"
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        url = f"http://{pair.ETH}:8443/{file.name}"
        client = pair.client.start("mptcpize", "run", "curl", "-sS", "-o", target, url, log="curl.log")
        wait_for("data", lambda: target.exists() and target.stat().st_size > size // 4)
        pair.client.add_packet_rules(input="iifname wlan drop")
        assert client.wait(60) == 0
    assert target.read_bytes() == file.read_bytes()
    connection = mptcp(document(eth.file, wlan.file))
    found = [
        [sent["new_bytes"], sent["reinjected"]["bytes"], sent["repeated_bytes"]]
        for sent in (subflow["directions"]["server_to_client"] for subflow in connection["subflows"])
    ]
    assert found == by_data_sequence_number([eth, wlan], size + 1000)
    assert sum(new for new, _, _ in found) == connection["new_bytes"]["server_to_client"] >= size
    assert found[0][1] > 0
    assert counters(pair.server)["MPTcpExtMPTCPRetrans"] > 0


def by_data_sequence_number(captures, size) -> list[list[int]]:
    """Bytes that are new, reinjected and repeated on each path, from tshark's fields of each packet, byte by byte."""
    names = ("frame.time_epoch", "tcp.len", "tcp.seq", "tcp.options.mptcp.rawdataseqno",
             "tcp.options.mptcp.subflowseqno")  # fmt: skip
    where = "tcp.srcport == 8443 && tcp.len > 0"
    packets = sorted(
        (float(time), path, int(length), int(data) + int(seq) - int(subflow))
        for path, capture in enumerate(captures)
        for time, length, seq, data, subflow in capture.fields(*names, where=where)
    )
    origin = packets[0][3]
    # By each path, and by any.
    carried = [bytearray(size) for _ in (*captures, None)]
    counts = [[0, 0, 0] for _ in captures]
    for _, path, length, data in packets:
        here = slice(data - origin, data - origin + length)
        new = carried[-1][here].count(0)
        repeated = carried[path][here].count(1)
        carried[path][here] = carried[-1][here] = b"\1" * length
        for index, count in enumerate((new, length - new - repeated, repeated)):
            counts[path][index] += count
    return counts


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b"no capture at all, only text", "not a capture")],
)
def test_rejects_files_that_are_not_captures(tmp_path, content, message):
    file = tmp_path / "some.pcap"
    file.write_bytes(content)
    done = analyze("--json", file)
    assert done.returncode == 1 and done.stdout == ""
    assert message in done.stderr and "some.pcap" in done.stderr


UDP = bytes.fromhex("4500001c 00000000 40110000 c0000201 c0000202 0001000200080000")


def test_capture_without_tcp_fails(tmp_path):
    file = tmp_path / "udp.pcap"
    file.write_bytes(pcap(UDP, UDP))
    done = analyze("--json", "-o", tmp_path / "out", file)
    assert done.returncode == 1 and done.stdout == "" and not os.listdir(tmp_path / "out")
    assert "expected TCP" in done.stderr and "2 packets" in done.stderr and "2 not TCP" in done.stderr


def test_warns_if_there_is_only_plain_tcp(tmp_path):
    file = tmp_path / "tcp.pcap"
    file.write_bytes(pcap(segment(1), UDP))
    done = analyze("--json", file)
    assert done.returncode == 0 and "no MPTCP" in done.stderr
    found = json.loads(done.stdout)
    assert (found["packets"], found["skipped"]["not_tcp"]) == (2, 1)
    (connection,) = found["connections"]
    assert connection["version"] is None
    assert connection["subflows"][0]["src"] == "192.0.2.1:1"
