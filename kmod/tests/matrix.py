#!/usr/bin/python3
"""Runs calls.py between two hosts over two lossy paths, in every mode, over IPv4 and IPv6, in both directions.

Both paths are captured. In a control run without rules the text must appear on both; in a protected run, on neither.
In the guest: kmod/guest/boot kmod/tests/matrix.py
"""

import argparse
import itertools
import re
import subprocess
import sys
import time

from network import HERE, PORT, Capture, address, counters, finish, grown, load, set_mode, start

MODES = ["plain", "xor64-hmac", "xor64-key", "stream"]
# Every mode, family and direction at least once.
QUICK = [
    ("plain", 4, "connect"),
    ("xor64-hmac", 4, "listen"),
    ("xor64-hmac", 6, "connect"),
    ("xor64-key", 4, "connect"),
    ("stream", 6, "listen"),
]


def transfer(mode, sender, family, extra):
    """Runs calls.py once; `sender` is the side that sends the text."""
    receiver = "connect" if sender == "listen" else "listen"
    roles = {sender: "send", receiver: "receive"}
    if mode == "plain":
        # Linux 6.1 itself returns the beginning repeatedly.
        extra = [*extra, "--without", "peek_all"]
    ends = {}
    for side, host in (("listen", "B"), ("connect", "A")):
        words = [HERE / "calls.py", roles[side], side, address(family), str(PORT), *extra]
        ends[side] = start(host, sys.executable, *words, stderr=subprocess.STDOUT)
        if side == "listen":
            assert "listening" in ends[side].stdout.readline()
    output = {side: end.communicate(timeout=300)[0] for side, end in ends.items()}
    ok = not any(end.returncode for end in ends.values())
    return ok, output[receiver].strip(), output[sender].strip()


def problems_of(mode, paths, counted):
    if mode == "plain":
        if not all(marks for _, marks in paths):
            yield "expected the text on both paths"
        return
    if any(marks for _, marks in paths):
        yield "the text was sent as plaintext"
    if counted.get("connections_protected") != 2:
        yield f"expected 2 protected ends: {counted}"
    if min(size for size, _ in paths) < 20000:
        yield "expected at least 20000 bytes on each path"


def one(mode, family, sender, extra):
    set_mode(mode)
    before = counters()
    start = time.monotonic()
    with Capture() as capture:
        ok, received, sent = transfer(mode, sender, family, extra)
    seconds = time.monotonic() - start
    paths = capture.found()
    problems = [] if ok else [f"receiver: {received}", f"sender: {sent}"]
    problems += problems_of(mode, paths, grown(before))
    summary = re.search(r"received (\d+) mismatches (\d+)", received)
    total, wrong = summary.groups() if summary else ("-", "-")
    wire = "; ".join(
        f"path {number} {size:>8} B, {marks:>6} marks" for number, (size, marks) in enumerate(paths, 1)
    )
    print(
        f"{mode:10} IPv{family} {sender:7} sends {total:>8} bytes, {wrong} mismatches; {wire}; {seconds:5.1f} s  "
        f"{'ok' if not problems else 'FAILED'}",
        *problems,
        sep="\n    ",
        flush=True,
    )
    return not problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--family", type=int, choices=[4, 6], action="append")
    parser.add_argument("--sender", choices=["connect", "listen"], action="append")
    parser.add_argument("--quick", action="store_true", help="a few of the combinations")
    parser.add_argument("--only", help="one of the calls")
    parser.add_argument("--smaller", default="1", help="divides the long texts, for a slow guest")
    parser.add_argument("--loss", default="0.5%")
    arguments = parser.parse_args()
    senders = arguments.sender or ["connect", "listen"]
    every = itertools.product(arguments.mode or MODES, arguments.family or [4, 6], senders)
    extra = ["--smaller", arguments.smaller, *(["--only", arguments.only] if arguments.only else [])]
    load(arguments.loss)
    good = [one(*way, extra) for way in (QUICK if arguments.quick else every)]
    finish(all(good), f"{sum(good)} of {len(good)} ok")


if __name__ == "__main__":
    main()
