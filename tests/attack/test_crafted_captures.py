"""Captures that somebody crafted to cost much time: their analysis is that of a straightforward computation.

What a segment costs, however mappings overlap, is bounded by a test that counts it, in
crates/trace/src/assembly/mappings.rs.
"""

import itertools
import random
import struct

import pytest
from captures import document, pcap, segment

SEGMENTS = 1000
PAYLOAD = 60_000
# The most recent mappings of a subflow are kept.
KEPT = 256


def dss(position: int, start: int, length: int) -> bytes:
    """A DSS option with a mapping (RFC 8684, section 3.3), and padding."""
    return struct.pack(">BBBBQIHH", 30, 18, 0x20, 0x0C, position, start, length, 0x0101)


def alternate_bytes():
    """Mappings of one byte each, so that a segment has twice as many parts as mappings are kept."""
    return [(1_000_000 + 1000 * index, 1 + 2 * (index % 300), 1) for index in range(SEGMENTS)]


def overlapping():
    """Mappings that cover parts of each other, of places and of the stream."""
    dice = random.Random(8)
    first = (1_000_000, 1, 10)
    return [first] + [
        (1_000_000 + dice.randrange(5000), dice.randrange(1, 600), dice.randrange(1, 60))
        for _ in range(SEGMENTS - 1)
    ]


def computed(mappings) -> dict:
    """What `plait analyze` should find in segments that all have the same sequence number."""
    crossed, mapped = set(), 0
    for count in range(1, SEGMENTS + 1):
        position_of = {}
        for position, start, length in mappings[max(count - KEPT, 0) : count]:
            position_of |= zip(range(start, start + length), range(position, position + length))
        crossed |= set(position_of.values())
        mapped += len(position_of)
    run_of = (position - index for index, position in enumerate(sorted(crossed)))
    runs = [len(list(run)) for _, run in itertools.groupby(run_of)]
    return {
        "bytes": SEGMENTS * PAYLOAD,
        "unmapped_bytes": SEGMENTS * PAYLOAD - mapped,
        "new_bytes": len(crossed),
        "repeated_bytes": mapped - len(crossed),
        "exposure": {"bytes": len(crossed), "runs": len(runs), "longest_run": max(runs)},
    }


@pytest.mark.parametrize("craft", [alternate_bytes, overlapping])
def test_overlapping_mappings(tmp_path, craft):
    mappings = craft()
    packets = [
        segment(4000, flags=0x10, sequence=1, options=dss(*mapping), uncaptured=PAYLOAD)
        for mapping in mappings
    ]
    file = tmp_path / "crafted.pcap"
    file.write_bytes(pcap(*packets))
    (connection,) = document(file)["connections"]
    (subflow,) = connection["subflows"]
    (found,) = (sent for sent in subflow["directions"].values() if sent["bytes"])
    expected = computed(mappings)
    found["exposure"] = {name: found["exposure"][name] for name in expected["exposure"]}
    assert {name: found[name] for name in expected} == expected
