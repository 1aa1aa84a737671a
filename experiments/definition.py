#!/usr/bin/env python3
"""Compare what crossed the paths of a scrambled connection with the papers' definition of scrambling.

    definition.py --streams CAPTURE --sent FILE --received FILE

CAPTURE is what `plait trace reassemble` wrote of both paths. What follows the first 64 bytes of the file depends on the file alone,
not on the keys, so it is computed here: as Figure 9 defines it, and as the program of Figure 14 does. Prints JSON: which share of
the captured bytes equals either, and whether the received file is the one that was sent.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import pathlib
import re
import subprocess

WINDOW = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", required=True, metavar="CAPTURE", help="the reassembled connection")
    parser.add_argument("--sent", required=True, metavar="FILE", help="the file as it was sent")
    parser.add_argument("--received", required=True, metavar="FILE", help="the file as it was received")
    arguments = parser.parse_args()
    sent = pathlib.Path(arguments.sent).read_bytes()
    # The file is the end of what its sender sent.
    captured = longest_direction(arguments.streams)[-len(sent) :][WINDOW:]
    print(
        json.dumps(
            {
                "as_defined": share(captured, defined(sent)),
                "as_programmed": share(captured, programmed(sent)),
                "readable": share(captured, sent[WINDOW:]),
                "restored": int(pathlib.Path(arguments.received).read_bytes() == sent),
            }
        )
    )


def defined(plain: bytes) -> bytes:
    """Each byte but the first 64: the exclusive or of it and the 64 before it."""
    windows = (plain[at - WINDOW : at] for at in range(WINDOW, len(plain)))
    scrambled = (functools.reduce(operator.xor, window) for window in windows)
    return bytes(map(operator.xor, scrambled, plain[WINDOW:]))


def programmed(plain: bytes) -> bytes:
    """The same with a ring buffer, and the exclusive or of its bytes kept beside it."""
    ring = bytearray(plain[:WINDOW])
    kept = functools.reduce(operator.xor, ring)
    index = WINDOW - 1
    scrambled = bytearray()
    for byte in plain[WINDOW:]:
        scrambled.append(byte ^ kept)
        index = (index + 1) % WINDOW
        kept ^= ring[index] ^ byte
        ring[index] = byte
    return bytes(scrambled)


def share(captured: bytes, expected: bytes) -> float:
    return sum(map(operator.eq, captured, expected)) / len(expected)


def longest_direction(capture: str) -> bytes:
    """Return what one side of the connection sent, as tshark reassembles it: of the side that sent more."""
    command = ["tshark", "-n", "-r", capture, "-q", "-z", "follow,tcp,raw,0"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    sent = [bytearray(), bytearray()]
    for line in output.splitlines():
        if re.fullmatch(r"\t?(?:[0-9a-f]{2})+", line):
            sent[line.startswith("\t")] += bytes.fromhex(line.strip())
    return bytes(max(sent, key=len))


if __name__ == "__main__":
    main()
