#!/usr/bin/env python3
"""What outages of a path do to a connection: the longest stall, and the time until both paths are in use again.

Two emulated links: `first` (eth, 20 Mb/s, round trip 30 ms), which is the trusted path, and `second` (wlan, 10 Mb/s, 50 ms). A stream of known
content runs through gateways in each mode, through plain MPTCP sockets with cubic and the kernel's path manager (`kernel`), and the same with
`plait sched use ecf` on both hosts (`ecf`), 4 s before,
during, and --after seconds after an outage. A cell is a fault, the paths that have it, seconds, a direction and a variant; options select cells. With
`--direction both`, the connection carries a stream each way at once, and the worse of the two counts. Per cell, over
--rounds: the longest time without an arrival during the outage (`stall`) and after it (`later`), the time from its end until each
path carries a fifth of its rate (`both`), and the rates during it and in the 5 s after it. Medians, and the worst in brackets.

Faults: `silent`: packets are dropped. `carrier`, `address`: the client's end loses it. `nat`: packets of existing flows are dropped for good; the
end of the outage is its start. `loss`: 30 %. `rtt`: 2 s. `mtu`: packets above 1,280 bytes are dropped, without ICMP.

On a virtual machine, an outage during which its hypervisor took more than a tenth of the processors' time away is measured again, up to three times
(`steal`, `repetitions`).

Bounds, with one path left: stalls of at most 0.5 s (median) and 1 s (worst), both paths within 1 s and 2 s; with none left, within 1 s of the
end. Needs root and a built plait.
"""

import contextlib
import functools
import itertools
import json
import os
import socket
import statistics
import sys
import time

import pairs
import prologue
from disturbance import MAX_STEAL, steal_since, ticks
from outages import address_lost, carrier_lost, forgotten_flows, outcome, silence, start_streams
from streams import NAMED, accept, connect_by_socks, deliver, listen

MPTCP = 262
RATES = {"eth": 20e6, "wlan": 10e6}
OPTIONS = {"eth": ("--rate", "20mbit", "--delay", "15ms"), "wlan": ("--rate", "10mbit", "--delay", "25ms")}
PATHS = {"first": ("eth",), "second": ("wlan",), "both": ("eth", "wlan")}
# Options of both gateways; programs without gateways have none.
VARIANTS = {
    "off": ("--mode", "off"),
    "stream": ("--mode", "stream", "--require"),
    "sealed": ("--mode", "sealed", "--require"),
    "kernel": (),
    "ecf": (),
}
# The congestion control of programs without gateways. Gateways use cubic as well where the host's default is bbr.
CONGESTION_CONTROL = {"kernel": b"cubic", "ecf": b"plait_ecf"}
BEFORE_S = 4
# While a link is changed by its emulator: from its start until the outage.
LINK_CHANGES = {"loss": ("loss=30%", "loss=0%"), "rtt": ("delay=1s", "delay={delay}")}
CHANGE_AT_S = 12
DELAYS = {"eth": "15ms", "wlan": "25ms"}
MAX_STALL, MAX_BOTH = (0.5, 1.0), (1.0, 2.0)
# Of an outage during which more than MAX_STEAL was taken: such a machine stands still for seconds at times.
MAX_REPETITIONS = 3


def small_packets_only(pair, *links):
    """Within this context, longer packets are dropped on links, silently."""
    names = "{ " + ", ".join(links) + " }"
    stack = contextlib.ExitStack()
    for host in (pair.client, pair.server):
        stack.enter_context(host.packet_rules(prerouting=f"iifname {names} meta length > 1280 drop"))
    return stack


@contextlib.contextmanager
def changed_link(pair, *links):
    """The emulator changes the link by itself, at a time that was given when it started."""
    yield


FAULTS = {
    "silent": silence,
    "carrier": carrier_lost,
    "address": address_lost,
    "nat": forgotten_flows,
    "mtu": small_packets_only,
    "loss": changed_link,
    "rtt": changed_link,
}


def link_options(fault, links, seconds):
    """The options of both links' emulators, for one outage."""
    found = {}
    for link, options in OPTIONS.items():
        if fault in LINK_CHANGES and link in links:
            there, back = (change.format(delay=DELAYS[link]) for change in LINK_CHANGES[fault])
            options = (
                *options,
                "--at",
                f"{CHANGE_AT_S}s:{there}",
                "--at",
                f"{CHANGE_AT_S + seconds}s:{back}",
            )
        found[link] = options
    return found


def connected(pair, variant):
    """The client's and the service's ends of a connection. The pair keeps the listener, which accepts subflows."""
    if algorithm := CONGESTION_CONTROL.get(variant):
        pair.client.ip("mptcp endpoint add 10.77.2.1 dev wlan subflow")
        pair.listener = listen(pair.server, 9001, "0.0.0.0", MPTCP)
        client = pair.client.socket(protocol=MPTCP)
        for endpoint in (pair.listener, client):
            endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
        client.connect((pair.ETH, 9001))
        return client, accept(pair.listener)
    pair.listener = listen(pair.server)
    pair.serve(*VARIANTS[variant], to="127.0.0.1:9000")
    pair.proxy(*VARIANTS[variant], *NAMED)
    return connect_by_socks(pair), accept(pair.listener)


def measure(fault, path, seconds, direction, variant, after):
    """One outage."""
    links = PATHS[path]
    started = time.monotonic()
    with contextlib.ExitStack() as built:
        make = functools.partial(pairs.Emulated, options=link_options(fault, links, seconds))
        pair = built.enter_context(pairs.built(make))
        if variant == "ecf":
            built.enter_context(pairs.scheduler_enabled(variant, pair.client, pair.server))
        ends = connected(pair, variant)
        deliver(*ends)
        deliver(*reversed(ends))
        streams = start_streams(pair.client, ends, RATES, direction)
        if fault in LINK_CHANGES:
            # Links are ready some tenths of a second after the start.
            time.sleep(max(CHANGE_AT_S + 0.3 - (time.monotonic() - started), BEFORE_S))
        else:
            time.sleep(BEFORE_S)
        with contextlib.ExitStack() as stack:
            start = time.monotonic()
            stack.enter_context(FAULTS[fault](pair, *links))
            if fault == "nat":
                # The rules are in force, which takes a while on a busy machine.
                start = end = time.monotonic()
                time.sleep(after)
            else:
                time.sleep(seconds)
                stack.close()
                end = time.monotonic()
                time.sleep(after)
        until = time.monotonic()
        found, failed = [], None
        for stream, usage in streams:
            usage.stop()
            each = outcome(stream, usage, start, end, until)
            if fault == "nat":
                back = [usage.idle_until(link, start) for link in links]
                each.all_in_use = None if None in back else max(back) - start
            found.append(vars(each))
        for stream, _ in streams:
            try:
                stream.finish()
            except (OSError, AssertionError) as error:
                failed = f"{type(error).__name__}: {error}"
        return worst_of_streams(found) | {"failed": failed}


def measure_without_steal(*cell):
    """One outage; again if a hypervisor took the processors away meanwhile, as often as it takes up to MAX_REPETITIONS."""
    for repetitions in range(MAX_REPETITIONS + 1):
        before = ticks()
        found = measure(*cell)
        found |= {"steal": round(steal_since(before), 3), "repetitions": repetitions}
        if found["steal"] <= MAX_STEAL:
            break
        print(f"{' '.join(map(str, cell))}: {found['steal']:.0%} of processor time stolen", file=sys.stderr)
    return found


def worst_of_streams(found):
    """Of the streams of one connection, the longest times and the lowest rates."""

    def worst_value(name):
        values = [each[name] for each in found]
        if None in values:
            return None
        return (min if name.startswith("rate") else max)(values)

    return {name: worst_value(name) for name in found[0]}


def summary(found):
    """Median and worst of the rounds."""
    row = {"failed": [each["failed"] for each in found if each["failed"]], "rounds": found}
    for name in ("stall", "later_stall", "all_in_use"):
        values = [each[name] for each in found]
        worst = None if None in values else max(values)
        known = [value for value in values if value is not None]
        row[name] = {"median": statistics.median(known) if known else None, "worst": worst}
    return row


def meets(path, row):
    """Whether a cell keeps the bounds."""

    def within(name, bounds):
        found = row[name]
        return found["worst"] is not None and found["median"] <= bounds[0] and found["worst"] <= bounds[1]

    if row["failed"]:
        return False
    if path == "both":
        return within("later_stall", (1, 1)) and within("all_in_use", MAX_BOTH)
    return all(within(name, MAX_STALL) for name in ("stall", "later_stall")) and within(
        "all_in_use", MAX_BOTH
    )


def text(cell, row):
    def seconds(name):
        found = row[name]
        if found["median"] is None:
            return "      never      "
        worst = "never" if found["worst"] is None else f"{found['worst']:.2f}"
        return f"{found['median']:7.2f} ({worst:>6}) "

    fault, path, length, direction, variant = cell
    name = f"{fault:8} {path:7} {length:3} s {direction:5} {variant:7}"
    rates = [
        statistics.median(each[f"rate_{when}"] for each in row["rounds"]) for when in ("during", "after")
    ]
    failed = f"  FAILED {len(row['failed'])}: {row['failed'][0]}" if row["failed"] else ""
    columns = "".join(map(seconds, ("stall", "later_stall", "all_in_use")))
    met = "met" if meets(path, row) else "MISSED"
    return f"{name}{columns}  {rates[0]:5.1f} {rates[1]:5.1f}  {met}{failed}"


def main():
    parser = prologue.parser(__doc__, rounds=3)
    several = {"action": "append"}
    parser.add_argument("--fault", choices=FAULTS, help="default: silent", **several)
    parser.add_argument("--path", choices=PATHS, help="default: all", **several)
    parser.add_argument("--seconds", type=int, help="length of the outage; default: 5 and 30", **several)
    parser.add_argument("--direction", choices=("down", "up", "both"), help="default: down", **several)
    parser.add_argument("--variant", choices=VARIANTS, help="default: sealed and kernel", **several)
    parser.add_argument("--after", type=float, default=12, help="seconds after the outage")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    cells = itertools.product(
        arguments.fault or ["silent"],
        arguments.path or list(PATHS),
        arguments.seconds or [5, 30],
        arguments.direction or ["down"],
        arguments.variant or ["sealed", "kernel"],
    )
    if not arguments.json:
        print(f"{'':35}{'stall':>9}{'later':>17}{'both':>17}       Mb/s during, after")
    results = []
    for cell in cells:
        found = []
        for number in range(arguments.rounds):
            progress(f"{' '.join(map(str, cell))}: round {number + 1} of {arguments.rounds}")
            found.append(measure_without_steal(*cell, arguments.after))
        row = summary(found)
        names = ("fault", "path", "seconds", "direction", "variant")
        results.append(dict(zip(names, cell)) | row | {"met": meets(cell[1], row)})
        progress("")
        if not arguments.json:
            print(text(cell, row), flush=True)
    if arguments.json:
        print(json.dumps({"kernel": os.uname().release, "cells": results}, indent=2))


if __name__ == "__main__":
    main()
