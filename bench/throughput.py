#!/usr/bin/env python3
"""Throughput of curl from nginx through two gateways: mode off, mode xor64, and kernel MPTCP without plait.

The three are run in turn, round by round, in namespaces with two links; ratios are taken within a round. Needs root and a
built plait.
"""

import json
import os

import download
import prologue
import rounds

PORTS = {"off": 8443, "xor64": 8444}
PAIRS = (("xor64", "off"), ("xor64", "direct"), ("off", "direct"))


def fetch(pair, way) -> float:
    """Megabits per second of one transfer."""
    if way == "direct":
        return download.direct(pair)
    strictness = ["--require"] if way == "xor64" else []
    options = ("--mode", way, *strictness, "--trusted", "eth")
    return download.mbps(pair.run(*download.curl(pair, PORTS[way]), options=options, timeout=300))


def measure(rate, megabytes, count, progress):
    with download.served(megabytes, rate) as pair:
        nginx = f"{pair.ETH}:{download.NGINX}"
        pair.serve("--mode", "off", to=nginx, listen=f"[::]:{PORTS['off']}")
        pair.serve("--mode", "xor64", "--require", to=nginx, listen=f"[::]:{PORTS['xor64']}")
        say = lambda text: progress(f"{rate or 'unlimited'}: {text}")  # noqa: E731
        rates = rounds.in_turn((*PORTS, "direct"), count, lambda way: fetch(pair, way), say)
    return rounds.summary(rates, PAIRS)


def main():
    arguments = prologue.parser(__doc__, rounds=5).parse_args()
    prologue.require_root()
    prologue.require_plait()
    progress = prologue.progress()
    results = {}
    for name, rate, megabytes in (("2 x 100 Mbit/s", "100mbit", 100), ("unlimited veth", None, 1024)):
        results[name] = measure(rate, megabytes, arguments.rounds, progress)
    progress("")
    kernel = os.uname().release
    if arguments.json:
        print(json.dumps({"kernel": kernel, "rounds": arguments.rounds, "links": results}, indent=2))
        return
    for name, result in results.items():
        print(f"\n{name}, {arguments.rounds} rounds, kernel {kernel}")
        print(rounds.text(result))


if __name__ == "__main__":
    main()
