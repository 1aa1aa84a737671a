#!/usr/bin/env python3
"""What a weak second path costs connections in mode `sealed`, beside `stream`.

Connections are opened one after the other through `plait proxy`, each with an echoed byte, while the path `wlan` has a fault. Per mode: connections
that failed, the median and the longest time until the byte was back, and how many began at which level; and with
--require=all-paths, which waits, a tenth of the number. The path `eth` has no fault; its round-trip time is --rtt.

Bound: none fails, and the median is at most 1.2 times that of `stream` and a round trip of `eth`, which the handshake of `sealed`
takes more. Needs root and a built plait.
"""

import collections
import contextlib
import functools
import json
import os
import statistics
import time

import pairs
import prologue
from gateways import report_of
from streams import NAMED, assert_echo, connect_by_socks, echo_server

# Options of wlan's emulated link, and a rule that the server applies to what arrives by it.
FAULTS = {
    "none": ((), None),
    "30 % loss": (("--loss", "30%"), None),
    "50 % loss": (("--loss", "50%"), None),
    "RTT of 1.6 s": (("--delay", "800ms"), None),
    "silent": ((), "iifname wlan drop"),
    "data is lost": ((), "iifname wlan tcp flags & psh == psh drop"),
    "80 ms more": (("--delay", "40ms"), None),
}
MODES = {
    "stream": ("stream", "--require"),
    "sealed": ("sealed", "--require"),
    "sealed, all-paths": ("sealed", "--require=all-paths"),
}
MAX_RATIO = 1.2


def connections(pair, proxy: int, gateway: int, count: int) -> dict:
    """Opens connections one after the other."""
    times, levels, failed = [], collections.Counter(), 0
    for _ in range(count):
        began = time.monotonic()
        try:
            with connect_by_socks(pair, pair.ETH, gateway, ("127.0.0.1", proxy)) as client:
                assert_echo(client, b"?")
                times.append(1e3 * (time.monotonic() - began))
                [open_now] = report_of(pair, "proxy")["connections"]
                levels[open_now["level"] or "none"] += 1
        except (AssertionError, OSError):
            failed += 1
        while report_of(pair, "proxy")["connections"]:
            time.sleep(0.01)
    found = {"failed": failed, "levels": dict(sorted(levels.items()))}
    if times:
        found |= {"median_ms": statistics.median(times), "longest_ms": max(times)}
    return found


def measure(fault: str, rtt: float, count: int, progress) -> dict:
    link, rule = FAULTS[fault]
    options = {"eth": ("--delay", f"{rtt / 2}ms"), "wlan": link}
    found = {}
    with pairs.built(functools.partial(pairs.Emulated, options=options)) as pair:
        echo_server(pair.server)
        rules = pair.server.packet_rules(prerouting=rule) if rule else contextlib.nullcontext()
        with rules:
            for number, (name, mode) in enumerate(MODES.items()):
                progress(f"{fault}: {name}")
                gateway, proxy = 8443 + number, 1080 + number
                serving = pair.serve("--mode", *mode, to="127.0.0.1:9000", listen=f"[::]:{gateway}")
                client = pair.proxy("--mode", *mode, *NAMED, listen=f"127.0.0.1:{proxy}")
                waits = name.endswith("all-paths")
                found[name] = connections(pair, proxy, gateway, count // 10 if waits else count)
                for program in (client, serving):
                    program.terminate()
                    program.wait(20)
    stream, sealed = found["stream"], found["sealed"]
    bound = MAX_RATIO * stream["median_ms"] + rtt
    found["bound_ms"], found["met"] = bound, not sealed["failed"] and sealed["median_ms"] <= bound
    return found


def text(fault: str, found: dict) -> str:
    lines = [f"\nwlan: {fault}"]
    for name in MODES:
        row = found[name]
        levels = ", ".join(f"{number} at {level}" for level, number in row["levels"].items())
        times = f"{row['median_ms']:8.1f} ms, at most {row['longest_ms']:8.1f}" if "median_ms" in row else ""
        lines.append(f"  {name:18} {row['failed']:3} failed {times}   {levels}")
    lines.append(f"  bound {found['bound_ms']:.1f} ms and no failure: {'met' if found['met'] else 'MISSED'}")
    return "\n".join(lines)


def main():
    parser = prologue.parser(__doc__)
    parser.add_argument("--connections", type=int, default=200, help="per fault and mode")
    parser.add_argument("--rtt", type=float, default=10, help="of eth, in milliseconds")
    parser.add_argument("--only", choices=FAULTS, action="append", help="this fault; may be repeated")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    results = {}
    for fault in arguments.only or FAULTS:
        results[fault] = measure(fault, arguments.rtt, arguments.connections, progress)
        progress("")
        if not arguments.json:
            print(text(fault, results[fault]), flush=True)
    if arguments.json:
        about = {"kernel": os.uname().release, "connections": arguments.connections, "rtt_ms": arguments.rtt}
        print(json.dumps(about | {"max_ratio": MAX_RATIO, "faults": results}, indent=2))


if __name__ == "__main__":
    main()
