"""MPTCP packets built by scapy, and their results in `plait policy dry-run`.

scapy provides everything but the MPTCP options, which are built here as in RFC 8684.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import pathlib
import struct
import subprocess

import pytest
from hosts import PLAIT

scapy = pytest.importorskip("scapy.all", reason="not installed: python3-scapy")

CLIENT, SERVER = "192.0.2.7", "198.51.100.9"
CLIENT6, SERVER6 = "2001:db8:7::7", "2001:db8:9::9"
TIMESTAMPS = ("Timestamp", (0x01020304, 0x05060708))
NOP = ("NOP", None)


def option(subtype: int, low: int, rest: bytes = b"") -> tuple[int, bytes]:
    """An option of kind 30: subtype, four bits defined by the subtype, and the rest."""
    return 30, bytes([subtype << 4 | low]) + rest


def mp_capable(*keys: int, flags: int = 0x01, length: int | None = None) -> tuple[int, bytes]:
    more = b"" if length is None else struct.pack(">H", length)
    return option(0, 1, bytes([flags]) + b"".join(struct.pack(">Q", key) for key in keys) + more)


def mp_join_syn(token: int, nonce: int = 1, address_id: int = 2, backup: bool = False):
    return option(1, backup, struct.pack(">BII", address_id, token, nonce))


def mp_join_syn_ack(hmac: int = 3, nonce: int = 2, address_id: int = 2):
    return option(1, 0, struct.pack(">BQI", address_id, hmac, nonce))


def mp_join_ack(hmac: bytes = bytes(range(20))):
    return option(1, 0, b"\0" + hmac)


def dss(*, ack=None, ack_bytes=8, sequence=None, sequence_bytes=8, subflow_sequence=1, length=0, fin=False):
    """RFC 8684, section 3.3: the acknowledgment and the mapping, if given."""
    flags, rest = 0, b""
    if ack is not None:
        flags |= 0x01 | (0x02 if ack_bytes == 8 else 0)
        rest += ack.to_bytes(ack_bytes, "big")
    if sequence is not None:
        flags |= 0x04 | (0x08 if sequence_bytes == 8 else 0)
        rest += sequence.to_bytes(sequence_bytes, "big") + struct.pack(">IH", subflow_sequence, length)
    return option(2, 0, bytes([flags | (0x10 if fin else 0)]) + rest)


def add_addr(address: str, address_id: int = 3, port: int | None = None, echo: bool = False):
    rest = bytes([address_id]) + ipaddress.ip_address(address).packed
    rest += b"" if port is None else struct.pack(">H", port)
    return option(3, echo, rest + (b"" if echo else b"\xa5\x5a\xa5\x5a\xa5\x5a\xa5\x5a"))


def remove_addr(*ids: int):
    return option(4, 0, bytes(ids))


def mp_prio(backup: bool):
    return option(5, backup)


def mp_fail(sequence: int):
    return option(6, 0, b"\0" + struct.pack(">Q", sequence))


def mp_fastclose(key: int):
    return option(7, 0, b"\0" + struct.pack(">Q", key))


def mp_tcprst(reason: int):
    return option(8, 0, bytes([reason]))


def packet(*options, back=False, ipv6=False, payload=b"", aligned=True, **fields):
    """A packet from the client to the server, or back; options are padded with leading NOPs."""
    ends = (CLIENT6, SERVER6) if ipv6 else (CLIENT, SERVER)
    ports = (40001, 443)
    if back:
        ends, ports = ends[::-1], ports[::-1]
    network = fields.pop("network", None) or (scapy.IPv6 if ipv6 else scapy.IP)(src=ends[0], dst=ends[1])
    ether = scapy.Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    for tag in fields.pop("vlan", ()):
        ether /= tag
    values = {"sport": ports[0], "dport": ports[1], "flags": "A", "seq": 1000, "ack": 2000, "window": 500}
    options = list(options)
    missing = -sum(_length(each) for each in options) % 4
    if aligned:
        options = [NOP] * missing + options
    return ether / network / scapy.TCP(options=options, **(values | fields)) / scapy.Raw(payload)


def _length(each) -> int:
    name, value = each
    known = {"NOP": 1, "EOL": 1, "Timestamp": 10, "MSS": 4, "WScale": 3, "SAckOK": 2, "SAck": 10}
    return known[name] if name in known else 2 + len(value)


def syn(*options, scale=7, **fields):
    return packet(("MSS", 1460), ("WScale", scale), *options, flags="S", ack=0, window=64240, **fields)


def syn_ack(*options, scale=9, **fields):
    fields = {"back": True, "flags": "SA", "seq": 1999, "ack": 1000, "window": 65160} | fields
    return packet(("MSS", 1460), ("WScale", scale), *options, **fields)


def changed(original, **fields):
    """The packet with other TCP fields and the checksums scapy computes for it."""
    copy = original.copy()
    for name, value in fields.items():
        setattr(copy[scapy.TCP], name, value)
    return settled(copy)


def settled(original):
    """The packet with the lengths and checksums scapy computes."""
    copy = original.copy()
    for layer, names in (
        (scapy.IP, ("len", "chksum")),
        (scapy.IPv6, ("plen",)),
        (scapy.TCP, ("chksum", "dataofs")),
    ):
        if layer in copy:
            for name in names:
                copy[layer].delfieldval(name)
    return copy.__class__(bytes(copy))


@dataclasses.dataclass
class DryRun:
    """The results of `plait policy dry-run`: per packet, the packets that would be sent on, and totals."""

    packets: list[dict]
    output: list[bytes]
    totals: dict

    def matched(self, number: int) -> list[str]:
        """The names of the chains that matched a packet, by index."""
        return [found["chain"] for found in self.packets[number]["matched"]]

    @property
    def verdicts(self) -> list[str]:
        return [each["verdict"] for each in self.packets]

    def unchanged(self, sent) -> bool:
        """Whether all packets passed unmodified."""
        acted = any(each["changed"] or each["verdict"] != "pass" for each in self.packets)
        return not acted and self.output == [bytes(each) for each in sent]


def dry_run(directory: pathlib.Path, policy: str, packets, *options) -> DryRun:
    """Runs packets through a policy, each as an Ethernet frame."""
    if os.geteuid() != 0:
        pytest.skip("BPF test runs need root")
    file, capture, out = (directory / name for name in ("policy.toml", "in.pcap", "out.pcap"))
    file.write_text(policy)
    capture.write_bytes(pcap(map(bytes, packets)))
    command = [PLAIT, "policy", "dry-run", file, capture, "-o", out, "--json", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *results, totals = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(packets)
    return DryRun(results, [frame for frame, _ in frames(out.read_bytes())], totals)


def pcap(packets) -> bytes:
    """An Ethernet capture with packets one microsecond apart."""
    header = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
    records = (struct.pack("<IIII", 1, at, len(raw), len(raw)) + raw for at, raw in enumerate(packets))
    return header + b"".join(records)


def frames(capture: bytes) -> list[tuple[bytes, int]]:
    """The frames of a capture with nanosecond timestamps, and their times in nanoseconds."""
    assert capture[:4] == struct.pack("<I", 0xA1B23C4D)
    found, at = [], 24
    while at < len(capture):
        seconds, nanoseconds, length, _ = struct.unpack_from("<IIII", capture, at)
        found.append((capture[at + 16 : at + 16 + length], seconds * 10**9 + nanoseconds))
        at += 16 + length
    return found
