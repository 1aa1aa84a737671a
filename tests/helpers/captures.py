"""Small captures that tests write, byte by byte, and `plait analyze`."""

from __future__ import annotations

import json
import struct
import subprocess

from hosts import PLAIT


def pcap(*packets: bytes, start: int = 0) -> bytes:
    """A capture of raw IP packets, a millisecond apart."""
    header = bytes.fromhex("d4c3b2a1 02000400 00000000 00000000 ffff0000 65000000")
    times = (divmod(start * 1000 + number, 1000) for number in range(len(packets)))
    records = (
        struct.pack("<IIII", seconds, thousandths * 1000, len(packet), len(packet)) + packet
        for (seconds, thousandths), packet in zip(times, packets, strict=True)
    )
    return header + b"".join(records)


def segment(
    port: int,
    payload: bytes = b"",
    flags: int = 0x02,
    sequence: int = 0,
    ack: int = 0,
    back=False,
    options: bytes = b"",
    uncaptured: int = 0,
) -> bytes:
    """A TCP segment (by default a SYN) of a client with this port, or of the server, without the last bytes of its
    payload."""
    length = 40 + len(options) + len(payload) + uncaptured
    ip = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0, 64, 6, 0)
    ends = [(bytes((192, 0, 2, 1)), port), (bytes((192, 0, 2, 2)), 443)]
    (source, source_port), (destination, port) = reversed(ends) if back else ends
    words = 5 + len(options) // 4
    tcp = struct.pack(">HHIIBBHHH", source_port, port, sequence, ack, words << 4, flags, 65535, 0, 0)
    return ip + source + destination + tcp + options + payload


def connections(count: int) -> bytes:
    """A capture of plain TCP connections; the client of number N, from 1 on, has port N and sends N bytes."""
    packets = []
    for port in range(1, count + 1):
        packets += [segment(port), segment(port, bytes(port), flags=0x18, sequence=1)]
    return pcap(*packets)


def analyze(*arguments, **options) -> subprocess.CompletedProcess:
    command = [PLAIT, "analyze", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, text=True, timeout=120, **options)


def document(*captures) -> dict:
    """The document of captures."""
    done = analyze("--json", *captures)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
