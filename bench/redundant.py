#!/usr/bin/env python3
"""What redundancy gains and costs: exchanges of 100 bytes in mode `sealed` over two paths that lose packets.

One connection through `plait proxy` and `plait serve` carries requests, each answered by an echo, one after the other. Both paths have the
same round-trip time. Three times: without loss, with loss on both paths, and so with `--redundant` at both gateways. Shown are the
median, the 99th percentile and the longest time of an exchange, and the bytes that both links carried in both directions, per exchange.

Bound: with redundancy the 99th percentile is at most 1.2 round trips above that without loss. Needs root and a built plait.
"""

import functools
import json
import os
import socket
import time

import pairs
import prologue
from gateways import report_of
from hosts import wait_for
from streams import NAMED, assert_echo, connect_by_socks, echo_server

MAX_ROUND_TRIPS = 1.2
CASES = ("no loss", "loss", "loss, redundant")


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


def carried(pair) -> int:
    """Bytes that both links have carried, in both directions."""
    counters = (f"/sys/class/net/{link}/statistics/tx_bytes" for link in ("eth", "wlan"))
    files = list(counters)
    return sum(int(word) for host in (pair.client, pair.server) for word in host.tool("cat", *files).split())


def sides(pair) -> int:
    reports = (report_of(pair, command)["connections"][0]["redundancy"] for command in ("proxy", "serve"))
    return min(report["side_connections"] for report in reports)


def subflows(pair) -> int:
    return len(report_of(pair, "proxy")["connections"][0]["subflows"])


def measure(case: str, arguments) -> dict:
    loss = () if case == "no loss" else ("--loss", f"{arguments.loss}%")
    link = ("--delay", f"{arguments.rtt / 2}ms", "--rate", "50mbit", *loss)
    redundant = ("--redundant", "1000") if case.endswith("redundant") else ()
    with pairs.built(functools.partial(pairs.Emulated, options={"eth": link, "wlan": link})) as pair:
        echo_server(pair.server)
        pair.serve("--mode", "sealed", *redundant, to="127.0.0.1:9000")
        pair.proxy("--mode", "sealed", *redundant, *NAMED)
        with connect_by_socks(pair) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert_echo(client, bytes(100))
            wait_for("both paths", lambda: subflows(pair) == 2)
            if redundant:
                wait_for("side connection", lambda: sides(pair) == 2)
            times, before = [], carried(pair)
            for number in range(arguments.exchanges):
                began = time.monotonic()
                assert_echo(client, number.to_bytes(4, "big") * 25)
                times.append(1e3 * (time.monotonic() - began))
            carried_bytes = carried(pair) - before
            copies = {
                command: report_of(pair, command)["connections"][0]["redundancy"]
                for command in ("proxy", "serve")
            }
    return {
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
        "longest_ms": max(times),
        "bytes_per_exchange": carried_bytes / arguments.exchanges,
        "copies": copies if redundant else None,
        "emulator": pair.emulator,
    }


def main():
    parser = prologue.parser(__doc__)
    parser.add_argument("--exchanges", type=int, default=2000, help="per case")
    parser.add_argument("--rtt", type=float, default=30, help="of both paths, in milliseconds")
    parser.add_argument("--loss", type=float, default=2, help="of both paths and directions, in per cent")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    results = {}
    for case in CASES:
        progress(case)
        found = results[case] = measure(case, arguments)
        progress("")
        if not arguments.json:
            times = "p50 {p50_ms:6.1f} ms, p99 {p99_ms:6.1f} ms, longest {longest_ms:7.1f} ms".format(**found)
            print(f"{case:16} {times}, {found['bytes_per_exchange']:6.0f} bytes per exchange", flush=True)
            print(pairs.text(found["emulator"]), flush=True)
    bound = results["no loss"]["p99_ms"] + MAX_ROUND_TRIPS * arguments.rtt
    met = results["loss, redundant"]["p99_ms"] <= bound
    if arguments.json:
        about = {"kernel": os.uname().release, "exchanges": arguments.exchanges}
        about |= {"rtt_ms": arguments.rtt, "loss_percent": arguments.loss}
        print(json.dumps(about | {"bound_ms": bound, "met": met, "cases": results}, indent=2))
    else:
        print(f"bound of the p99 with redundancy, {bound:.1f} ms: {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
