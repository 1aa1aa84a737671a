#!/usr/bin/env python3
"""What a slower second path costs a transfer: by the scheduler `ecf`, by plain MPTCP, and by TCP over the better path alone.

One transfer after the other over a path of 20 Mb/s and 20 ms and a second one with each --rate, --rtt and --queue, in mode off: between
two programs with `TCP_NODELAY`, without gateways; or with --gateways in mode `sealed`. Each transfer by `ecf` is one of a connection that finds the second
path not known ("first"), or known from the connections before ("next"). `ecf` is enabled for the sender.

Bound: no median is above 1.05 times the better of TCP's and plain MPTCP's. Needs root and a built plait.
"""

import concurrent.futures
import contextlib
import fcntl
import functools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time

import pairs
import prologue
from hosts import PLAIT
from kernel_algorithms import AVAILABLE
from streams import MPTCP, NAMED, accept, connect_by_socks, listen

BEST = ("--rate", "20mbit", "--delay", "10ms", "--queue", "60kB")
RATES = {"0.5": "0.5mbit", "1": "1mbit", "2": "2mbit", "5": "5mbit", "20": "20mbit"}
RTTS = ("20", "50", "200")
QUEUES = {"shallow": "30kB", "deep": "1MB"}
SIZES = {"100kB": 100_000, "5MB": 5_000_000, "50MB": 50_000_000}
MAX_RATIO = 1.05
TCP_CONGESTION = 13
TIMEOUT = 300
# A gateway that has just begun to listen loads programs, for some tenths of a second.
STARTUP_S = 1


class Transfers:
    """Transfers between two hosts, one after the other."""

    def __init__(self, pair, direction, size, gateways):
        self.pair, self.direction, self.size, self.gateways = pair, direction, size, gateways
        self.port = 9300
        self.data = random.randbytes(size)

    @property
    def sender(self):
        return self.pair.server if self.direction == "down" else self.pair.client

    def seconds(self, protocol, algorithm):
        """The time of one transfer without gateways, from connect() until its last byte was read."""
        self.port += 1
        with listen(self.pair.server, self.port, "0.0.0.0", protocol) as listener:
            set_algorithm(listener, algorithm)
            with self.pair.client.socket(protocol=protocol) as client:
                set_algorithm(client, algorithm)
                return self.run(listener, lambda: client.connect((self.pair.ETH, self.port)) or client)

    def seconds_by_gateways(self, listener, proxy, gateway):
        """The time of one transfer through gateways that run."""
        connect = functools.partial(connect_by_socks, self.pair, self.pair.ETH, gateway, ("127.0.0.1", proxy))
        return self.run(listener, connect)

    def run(self, listener, connect):
        server = threading.Thread(target=self.serve, args=(listener,))
        server.start()
        began = time.monotonic()
        client = connect()
        client.settimeout(TIMEOUT)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client:
            if self.direction == "down":
                read_all(client, self.size)
                took = time.monotonic() - began
                client.sendall(b"!")
            else:
                client.sendall(self.data)
                read_all(client, 1)
                took = time.monotonic() - began
        server.join()
        return took

    def serve(self, listener):
        with accept(listener) as connection:
            connection.settimeout(TIMEOUT)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.direction == "down":
                connection.sendall(self.data)
                connection.recv(1)
            else:
                read_all(connection, self.size)
                connection.sendall(b"!")


def set_algorithm(endpoint, algorithm):
    endpoint.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, algorithm.encode())


def read_all(connection, size):
    while size:
        part = connection.recv(min(size, 1 << 18))
        if not part:
            raise RuntimeError(f"the stream ended {size} bytes early")
        size -= len(part)


def resolve_neighbours(pair):
    """By ARP, for which the first transfer would take a round trip more."""
    for address in (pair.ETH, pair.WLAN):
        pair.client.tool("ping", "-q", "-c", "1", address)


def measure_programs(pair, transfers):
    """Seconds of each variant, without gateways."""
    found = {
        "tcp": transfers.seconds(socket.IPPROTO_TCP, "cubic"),
        "mptcp": transfers.seconds(MPTCP, "cubic"),
    }
    with pairs.scheduler_enabled("ecf", transfers.sender):
        return found | {variant: transfers.seconds(MPTCP, "plait_ecf") for variant in ("first", "next")}


def measure_gateways(pair, transfers):
    """The same through gateways in mode `sealed`, beside TCP without them."""
    found = {"tcp": transfers.seconds(socket.IPPROTO_TCP, "cubic")}
    with listen(pair.server, 9000, "127.0.0.1", socket.IPPROTO_TCP) as listener:
        for offset, scheduler, variants in ((0, "off", ("mptcp",)), (1, "ecf", ("first", "next"))):
            gateway, proxy = 8443 + offset, 1080 + offset
            options = ("--mode", "sealed", "--require", "--scheduler", scheduler)
            serving = pair.serve(*options, to="127.0.0.1:9000", listen=f"[::]:{gateway}")
            client = pair.proxy(*options, *NAMED, listen=f"127.0.0.1:{proxy}")
            time.sleep(STARTUP_S)
            for variant in variants:
                found[variant] = transfers.seconds_by_gateways(listener, proxy, gateway)
            for program in (client, serving):
                program.terminate()
                program.wait(20)
    return found


def measure(arguments, cell):
    rate, rtt, queue = cell
    second = ("--rate", RATES[rate], "--delay", f"{float(rtt) / 2}ms", "--queue", QUEUES[queue])
    options = {"eth": BEST, "wlan": second}
    how = measure_gateways if arguments.gateways else measure_programs
    seconds = {"tcp": [], "mptcp": [], "first": [], "next": []}
    emulators = []
    for _ in range(arguments.rounds):
        # The scheduler knows no path of a new network namespace.
        with pairs.built(functools.partial(pairs.Emulated, options=options)) as pair:
            resolve_neighbours(pair)
            transfers = Transfers(pair, arguments.direction, SIZES[arguments.size], arguments.gateways)
            for variant, found in how(pair, transfers).items():
                seconds[variant].append(found)
        emulators.append(pair.emulator)
    bound = MAX_RATIO * min(statistics.median(seconds[variant]) for variant in ("tcp", "mptcp"))
    met = all(statistics.median(seconds[variant]) <= bound for variant in ("first", "next"))
    about = {"rate_mbit": float(rate), "rtt_ms": float(rtt), "queue": QUEUES[queue]}
    return about | {"seconds": seconds, "bound": bound, "met": met, "emulators": emulators}


@contextlib.contextmanager
def schedulers():
    """Within this context, no test unloads schedulers; none is loaded after it."""
    with AVAILABLE.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            subprocess.run([PLAIT, "sched", "unload", "--all"], capture_output=True)


def text(row):
    values = {name: " ".join(f"{value:.2f}" for value in values) for name, values in row["seconds"].items()}
    path = f"{row['rate_mbit']:4g} Mb/s {row['rtt_ms']:3g} ms {row['queue']:5}"
    columns = "  ".join(f"{name} {value}" for name, value in values.items())
    late = max(link["late_p99_ms"] for emulator in row["emulators"] for link in emulator.values())
    verdict = "met" if row["met"] else "MISSED"
    return f"{path}  {columns}  bound {row['bound']:.2f} {verdict}, links at most {late:.2f} ms late"


def main():
    parser = prologue.parser(__doc__, rounds=1)
    parser.add_argument(
        "--rate", choices=RATES, action="append", help="of the second path, Mb/s; may be repeated"
    )
    parser.add_argument(
        "--rtt", choices=RTTS, action="append", help="of the second path, ms; may be repeated"
    )
    parser.add_argument(
        "--queue", choices=QUEUES, action="append", help="of the second path; may be repeated"
    )
    parser.add_argument("--size", choices=SIZES, default="5MB")
    parser.add_argument(
        "--direction", choices=("down", "up"), default="down", help="from the server, or to it"
    )
    parser.add_argument("--gateways", action="store_true", help="through gateways in mode sealed")
    parser.add_argument("--at-once", type=int, default=1, help="cells that are measured at the same time")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    rates, rtts = arguments.rate or RATES, arguments.rtt or RTTS
    cells = [(rate, rtt, queue) for rate in rates for rtt in rtts for queue in arguments.queue or QUEUES]
    rows = []
    with schedulers(), concurrent.futures.ThreadPoolExecutor(arguments.at_once) as threads:
        for row in threads.map(functools.partial(measure, arguments), cells):
            rows.append(row)
            if not arguments.json:
                print(text(row), flush=True)
            progress(f"{len(rows)} of {len(cells)} cells")
    progress("")
    if arguments.json:
        about = {"kernel": os.uname().release, "rounds": arguments.rounds, "size": arguments.size}
        about |= {"direction": arguments.direction, "gateways": arguments.gateways, "max_ratio": MAX_RATIO}
        print(json.dumps(about | {"cells": rows}, indent=2))
    sys.exit(not all(row["met"] for row in rows))


if __name__ == "__main__":
    main()
