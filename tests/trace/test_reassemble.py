"""`plait trace reassemble`: one TCP stream per connection, as tshark reads it."""

from __future__ import annotations

import pathlib
import re
import shutil
import struct
import subprocess

import pytest
from captures import pcap, segment
from hosts import PLAIT, tool
from streams import fetch

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="not installed: tshark")

SIGNATURE = re.compile(rb"signature-\d{6} of the document")

CHECKED = ("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE")


def reassemble(*captures, output: pathlib.Path) -> str:
    command = [PLAIT, "trace", "reassemble", *map(str, captures), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def count(file: pathlib.Path, where: str) -> int:
    """Number of packets that match a display filter of tshark."""
    out = tool("tshark", "-n", *CHECKED, "-r", str(file), "-Y", where, "-T", "fields", "-e", "frame.number")
    return len(out.split())


def streams(file: pathlib.Path) -> int:
    numbers = tool("tshark", "-n", "-r", str(file), "-T", "fields", "-e", "tcp.stream").split()
    return len(set(numbers))


def follow(file: pathlib.Path, stream: int = 0) -> list[bytes]:
    """What each side sent, the client first, as tshark reassembles it."""
    out = tool("tshark", "-n", "-r", str(file), "-q", "-z", f"follow,tcp,raw,{stream}")
    sent = [b"", b""]
    for line in out.splitlines():
        text = line.strip()
        if text and all(character in "0123456789abcdef" for character in text):
            sent[line.startswith("\t")] += bytes.fromhex(text)
    return sent


def packets_with_payload(file: pathlib.Path) -> list[bytes]:
    out = tool("tshark", "-n", "-r", str(file), "-T", "fields", "-e", "tcp.payload")
    return [bytes.fromhex(line) for line in out.split()]


@pytest.fixture
def transfer(make_pair, documents, tmp_path):
    """A document of numbered lines that crossed two links, and the capture of each."""
    pair = make_pair("20mbit")
    document = documents / "lines"
    document.write_text("".join(f"signature-{number:06d} of the document\n" for number in range(150_000)))
    to = pair.nginx(documents)
    pair.serve("--mode", "off", to=to)
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        received = fetch(pair, document, options=("--mode", "off", "--trusted", "eth"))
        assert received == document.read_bytes()
    return document.read_bytes(), [eth.file, wlan.file]


def test_signatures_that_are_split_across_paths_are_found(transfer, tmp_path):
    document, captures = transfer
    packets = [packets_with_payload(file) for file in captures]
    assert min(sum(map(len, link)) for link in packets) > 100_000, "both links carry a part"
    out = tmp_path / "streams.pcap"
    printed = reassemble(*captures, output=out)
    assert printed.startswith("1 stream with ") and "missing" not in printed
    sent = follow(out)[1]
    assert sent.endswith(document), "the stream is the document behind the header of the answer"
    whole = {line for link in packets for packet in link for line in SIGNATURE.findall(packet)}
    split = [line.decode() for line in SIGNATURE.findall(document) if line not in whole]
    assert len(split) > 10
    found = [line for line in split[:8] if count(out, f'tcp contains "{line}"')]
    # Some may be split by the packets of the reassembled stream.
    assert len(found) >= 5
    assert not any(count(file, f'tcp contains "{found[0]}"') for file in captures)


def test_stream_is_without_fault_for_tshark(transfer, tmp_path):
    _, captures = transfer
    out = tmp_path / "streams.pcap"
    reassemble(*captures, output=out)
    assert streams(out) == 1
    for fault in (
        "tcp.analysis.flags",
        "tcp.checksum.status != 1",
        "ip.checksum.status != 1",
        "_ws.malformed",
    ):
        assert count(out, fault) == 0, fault
    assert count(out, "tcp.flags.syn == 1") == 2 and count(out, "tcp.flags.fin == 1") == 2
    times = [
        float(time)
        for time in tool("tshark", "-r", str(out), "-T", "fields", "-e", "frame.time_epoch").split()
    ]
    assert times == sorted(times)


def test_missing_bytes_are_gaps_and_stated(transfer, tmp_path):
    document, captures = transfer
    cut = []
    for file in captures:
        cut.append(tmp_path / f"cut-{file.name}")
        tool("editcap", "-F", "pcap", "-s", "400", str(file), str(cut[-1]))
    out = tmp_path / "streams.pcap"
    printed = reassemble(*cut, output=out)
    assert "bytes were not captured and are missing" in printed
    missing = int(printed.splitlines()[1].split()[0].replace(",", ""))
    kept = int(printed.split(" with ")[1].split()[0].replace(",", ""))
    whole = tmp_path / "whole.pcap"
    assert (
        int(reassemble(*captures, output=whole).split(" with ")[1].split()[0].replace(",", ""))
        == kept + missing
    )
    assert count(out, "tcp.analysis.lost_segment") > 20
    assert count(out, "tcp.checksum.status != 1") == 0
    # What is there is at its place.
    for payload in packets_with_payload(out)[5:50]:
        assert payload in document or b"HTTP/1.1" in payload


def ipv6(payload: bytes, flags: int, sequence: int, ack: int, back: bool = False) -> bytes:
    ends = [
        (bytes.fromhex("20010db8" + "00" * 11 + "01"), 40000),
        (bytes.fromhex("20010db8" + "00" * 11 + "02"), 80),
    ]
    (source, port), (destination, to) = reversed(ends) if back else ends
    tcp = struct.pack(">HHIIBBHHH", port, to, sequence, ack, 5 << 4, flags, 65535, 0, 0) + payload
    return struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + source + destination + tcp


def test_ipv6_and_plain_tcp(tmp_path):
    packets = [
        ipv6(b"", 0x02, 0, 0),
        ipv6(b"", 0x12, 0, 1, back=True),
        ipv6(b"world", 0x18, 7, 1),
        ipv6(b"hello ", 0x18, 1, 1),
        ipv6(b"answer", 0x18, 1, 12, back=True),
        segment(40000),
        segment(40000, b"", flags=0x12, ack=1, back=True),
        segment(40000, b"over IPv4", 0x18, 1, 1),
    ]
    file, out = tmp_path / "file.pcap", tmp_path / "streams.pcap"
    file.write_bytes(pcap(*packets))
    assert reassemble(file, output=out).startswith("2 streams with 26 bytes; 0 of MPTCP connections")
    assert sorted(map(tuple, (follow(out, 0), follow(out, 1)))) == [
        (b"hello world", b"answer"),
        (b"over IPv4", b""),
    ]
    assert count(out, "ipv6 && tcp.checksum.status == 1") == count(out, "ipv6") > 5
    assert count(out, "tcp.checksum.status != 1") == 0


def test_data_that_was_acknowledged_but_not_captured_is_a_gap(tmp_path):
    packets = [
        segment(40000),
        segment(40000, b"", flags=0x12, ack=1, back=True),
        segment(40000, b"first", 0x18, 1, 1),
        segment(40000, b"third", 0x18, 11, 1),
        segment(40000, b"", 0x10, 1, 16, back=True),
        *[segment(40000, b"", 0x10, 1, 16, back=True)] * 40,
        segment(40000, b"fourth", 0x18, 16, 1),
    ]
    file, out = tmp_path / "file.pcap", tmp_path / "streams.pcap"
    file.write_bytes(pcap(*packets))
    printed = reassemble(file, output=out)
    assert "connection 1, sent by the client: 1 gap, 5 bytes" in printed
    assert packets_with_payload(out) == [b"first", b"thirdfourth"]


def test_output_appears_only_when_complete(tmp_path):
    out = tmp_path / "streams.pcap"
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(pcap())
    command = [PLAIT, "trace", "reassemble", str(empty), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "expected TCP" in done.stderr and not out.exists()
