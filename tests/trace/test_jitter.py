"""Jitter that `plait analyze` reports, beside tshark's of an RTP stream with the same times."""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
import struct

import pytest
from captures import analyze, segment
from hosts import tool

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="not installed: tshark")

PERIOD = 0.020
CLOCK = 8000


def times(kind: str, count: int = 600) -> list[tuple[float, float]]:
    """When each packet of a periodic flow was sent and arrived, in seconds; they arrive in order."""
    generator = random.Random(7)
    found, last = [], 0.0
    for number in range(count):
        sent = 1000 + number * PERIOD
        delay = {
            "quiet": 0.030 + generator.random() * 0.002,
            "busy": 0.030 + generator.expovariate(1 / 0.015),
            # A path fails for a second; what was sent meanwhile arrives at once.
            "disconnected": max(0.030 + generator.random() * 0.005, 1006 - sent if 1005 < sent < 1006 else 0),
        }[kind]
        last = max(last + 1e-6, sent + delay)
        found.append((sent, last))
    return found


def pcap_at(packets: list[tuple[float, bytes]]) -> bytes:
    """A capture of raw IP packets at these times, with nanoseconds."""
    header = bytes.fromhex("4d3cb2a1 02000400 00000000 00000000 ffff0000 65000000")
    records = b""
    for time, packet in packets:
        seconds, rest = divmod(round(time * 1e9), 10**9)
        records += struct.pack("<IIII", seconds, rest, len(packet), len(packet)) + packet
    return header + records


def tcp_flow(flow) -> bytes:
    """Packets with data, stamped by a clock of milliseconds when they were sent."""
    packets = []
    for number, (sent, arrived) in enumerate(flow):
        options = b"\x01\x01\x08\x0a" + struct.pack(">II", round(sent * 1000), 0)
        data = segment(4000, bytes(160), 0x18, 1 + 160 * number, 1, options=options)
        packets.append((arrived, data))
    return pcap_at(packets)


def rtp_flow(flow) -> bytes:
    packets = []
    for number, (sent, arrived) in enumerate(flow):
        rtp = struct.pack(">BBHII", 0x80, 0, number, round(sent * CLOCK) % 2**32, 1) + bytes(160)
        udp = struct.pack(">HHHH", 4000, 5004, 8 + len(rtp), 0) + rtp
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0)
        packets.append((arrived, ip + bytes((192, 0, 2, 1, 192, 0, 2, 2)) + udp))
    return pcap_at(packets)


def tshark_jitter(file) -> tuple[float, float]:
    """Mean and maximum jitter of the only RTP stream, in milliseconds."""
    out = tool("tshark", "-n", "-r", str(file), "-d", "udp.port==5004,rtp", "-q", "-z", "rtp,streams")
    lines = out.splitlines()
    assert any("Mean Jitter(ms)  Max Jitter(ms) Problems?" in line for line in lines), out
    (row,) = [line.split() for line in lines if "192.0.2.1" in line]
    numbers = [float(cell) for cell in row if cell.replace(".", "", 1).isdigit() and "." in cell]
    return numbers[-2], numbers[-1]


@pytest.mark.parametrize("kind", ["quiet", "busy", "disconnected"])
def test_jitter_matches_tshark_of_an_rtp_stream_with_the_same_times(tmp_path, kind):
    flow = times(kind)
    (tmp_path / "rtp.pcap").write_bytes(rtp_flow(flow))
    (tmp_path / "tcp.pcap").write_bytes(tcp_flow(flow))
    mean, maximum = tshark_jitter(tmp_path / "rtp.pcap")
    out = tmp_path / "out"
    assert analyze("-o", out, tmp_path / "tcp.pcap").returncode == 0
    (connection,) = json.loads((out / "analysis.json").read_text())["connections"]
    sent = connection["subflows"][0]["directions"]["client_to_server"]
    assert sent["jitter_ms"]["samples"] == len(flow) - 1
    # tshark prints microseconds.
    assert sent["jitter_ms"]["mean"] == pytest.approx(mean, rel=0.01, abs=0.001)
    assert sent["jitter_ms"]["max"] == pytest.approx(maximum, rel=0.01, abs=0.001)
    gaps = [(after - before) * 1e3 for (_, before), (_, after) in zip(flow, flow[1:], strict=False)]
    average = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - average) ** 2 for gap in gaps) / len(gaps))
    assert sent["interarrival_ms"]["stddev"] == pytest.approx(deviation, rel=0.001)
    with (out / "subflows.csv").open(newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert float(row["jitter_mean_s_client_to_server"]) == sent["jitter_ms"]["mean"] / 1e3
    assert float(row["interarrival_stddev_s_client_to_server"]) == sent["interarrival_ms"]["stddev"] / 1e3


def test_series_has_the_jitter_of_each_interval(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    flow = times("busy")
    (tmp_path / "tcp.pcap").write_bytes(tcp_flow(flow))
    assert analyze("-o", tmp_path / "out", "--interval", "1s", tmp_path / "tcp.pcap").returncode == 0
    rows = parquet.read_table(tmp_path / "out" / "series.parquet").to_pylist()
    jitter, expected = 0.0, {}
    for (sent, arrived), (next_sent, next_arrived) in zip(flow, flow[1:], strict=False):
        jitter += (abs((next_arrived - arrived) - (next_sent - sent)) - jitter) / 16
        expected[int(next_arrived)] = jitter
    found = {int(row["time"].timestamp()): row["jitter_s"] for row in rows if row["bytes"]}
    # The unit of the clock is not known at once.
    known = {second: value for second, value in found.items() if value is not None}
    assert len(known) >= len(found) - 1 > 5
    for second, value in known.items():
        assert value == pytest.approx(expected[second], rel=0.01)
