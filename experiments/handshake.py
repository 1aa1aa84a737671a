#!/usr/bin/env python3
"""Compare the messages and options of an MPTCP connection with the drawings of the papers by Kato et al.

    handshake.py --trusted CAPTURE --untrusted CAPTURE

Prints JSON: how many of the seven messages of Figure 2 came in its order, whether the keys and the token are where it has them, and
which share of the options DSS consists of the fields of Figure 3.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import NamedTuple

CAPABLE, JOIN, DSS = 0, 1, 2
SYN, ACK = 0x02, 0x10
# Figure 2: which subflow, its flags, its option. The last acknowledgment is plain, or has a DSS option.
MESSAGES = [
    ("trusted", SYN, CAPABLE),
    ("trusted", SYN | ACK, CAPABLE),
    ("trusted", ACK, CAPABLE),
    ("untrusted", SYN, JOIN),
    ("untrusted", SYN | ACK, JOIN),
    ("untrusted", ACK, JOIN),
    ("untrusted", ACK, None),
]


class Packet(NamedTuple):
    """A packet of one path."""

    time: float
    path: str
    flags: int
    from_client: bool
    options: dict[int, bytes]
    """MPTCP options by subtype, whole."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trusted", required=True, metavar="CAPTURE", help="of the initial subflow's path")
    parser.add_argument("--untrusted", required=True, metavar="CAPTURE", help="of the other path")
    arguments = parser.parse_args()
    packets = sorted(
        read("trusted", arguments.trusted) + read("untrusted", arguments.untrusted),
        key=lambda packet: packet.time,
    )
    found = messages(packets)
    options = [packet.options[DSS] for packet in packets if DSS in packet.options]
    third, join = found[2:4] if len(found) > 3 else (None, None)
    print(
        json.dumps(
            {
                "messages": len(found),
                # Kind, length, subtype and flags take 4 octets, a key 8.
                "both_keys": int(third is not None and len(third.options[CAPABLE]) >= 4 + 8 + 8),
                # Then a token of 4 octets and a nonce of 4.
                "token_and_nonce": int(join is not None and len(join.options[JOIN]) == 4 + 4 + 4),
                "dss": len(options),
                "as_drawn": sum(map(is_as_drawn, options)) / len(options),
                "mappings": sum(1 for option in options if option[3] & 4),
            }
        )
    )


def messages(packets: list[Packet]) -> list[Packet]:
    """Return the first packets that are those of Figure 2, as far as they come in its order."""
    found: list[Packet] = []
    for packet in packets:
        if len(found) == len(MESSAGES):
            break
        path, flags, subtype = MESSAGES[len(found)]
        from_client = len(found) in (0, 2, 3, 5)
        has_option = (
            subtype in packet.options if subtype is not None else not {CAPABLE, JOIN} & set(packet.options)
        )
        if (packet.path, packet.flags, packet.from_client, has_option) == (path, flags, from_client, True):
            found.append(packet)
    return found


def is_as_drawn(option: bytes) -> bool:
    """Whether an option DSS has the length of Figure 3's fields, those that its flags announce."""
    flags = option[3]
    length = 4
    if flags & 1:
        length += 8 if flags & 2 else 4
    if flags & 4:
        # Data sequence number, subflow sequence number, data-level length; the checksum if it was negotiated.
        length += (8 if flags & 8 else 4) + 4 + 2
        return len(option) in (length, length + 2)
    return len(option) == length


def read(path: str, capture: str) -> list[Packet]:
    fields = ["frame.time_epoch", "tcp.flags", "tcp.dstport", "tcp.options"]
    command = ["tshark", "-n", "-r", capture, "-Y", "tcp", "-T", "fields"]
    command += [word for field in fields for word in ("-e", field)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    packets = []
    for line in output.splitlines():
        time, flags, port, options = line.split("\t")
        # Without PSH, which a sender may set at will.
        kept = int(flags, 16) & ~0x08
        packets.append(Packet(float(time), path, kept, port == "8080", mptcp(bytes.fromhex(options))))
    return packets


def mptcp(options: bytes) -> dict[int, bytes]:
    """Return the MPTCP options (kind 30) among a segment's options, by subtype."""
    found = {}
    at = 0
    while at < len(options) and options[at] != 0:
        length = 1 if options[at] == 1 else options[at + 1]
        if options[at] == 30:
            found[options[at + 2] >> 4] = options[at : at + length]
        at += length
    return found


if __name__ == "__main__":
    main()
