#!/usr/bin/env python3
"""The cost of coupled congestion control, beside the kernel's reno: the rate of one MPTCP connection over two unlimited virtual links
whose subflows switch between algorithms, round by round; and the kernel time per acknowledgment in an algorithm's programs, counted
by the kernel (kernel.bpf_stats_enabled). Needs root and a built plait.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import socket
import struct
import subprocess
import time

import pairs  # makes tests/helpers importable

# isort: split
import prologue
import rounds
from flows import Flow
from hosts import PLAIT, tool, wait_for
from streams import MPTCP_INFO, SOL_MPTCP

import bpf

ALGORITHMS = ("ewtcp", "coupled", "lia", "olia", "balia")
COUNTING = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")
STRUCT_OPS = 27


def runs() -> tuple[int, int]:
    """Nanoseconds and calls of the struct_ops program that is called most: an algorithm's handler of acknowledgments."""
    found = (0, 0)
    for number in bpf.ids("prog"):
        with contextlib.suppress(OSError):
            descriptor = bpf.syscall(bpf.FD_BY_ID, (ctypes.c_uint32 * 3)(number))
            info = bpf.fdinfo(descriptor)
            os.close(descriptor)
            if info.get("prog_type") == STRUCT_OPS:
                found = max(found, (info["run_time_ns"], info["run_cnt"]), key=lambda run: run[1])
    return found


def give_each_link_a_processor(pair):
    """Receives each link's packets on one processor, as a network card does for one flow. Otherwise a sender that migrates
    reorders its packets, and each spurious retransmission shrinks the window as a loss does: with fully coupled, to nothing.
    """
    processors = sorted(os.sched_getaffinity(0))
    for host in (pair.client, pair.server):
        for number, link in enumerate(("eth", "wlan")):
            host.receive_on(link, processors[number % len(processors)])


def serve_connections(pair):
    """Starts what a connection sends to: it discards everything."""
    receive = ("socat", "-u", "-b", "262144", "TCP-LISTEN:9000,reuseaddr,fork", "OPEN:/dev/null")
    pair.server.start("mptcpize", "run", *receive)
    wait_for("service", lambda: pair.server.listens(9000))


class Connection(Flow):
    """A saturating MPTCP connection with two subflows, one per link."""

    def __init__(self, pair, algorithm="reno"):
        with pair.client.inside():
            # A host's default may be bbr, whose pacing persists on a socket.
            super().__init__(f"mptcp:{algorithm}", (pair.ETH, 9000))
        wait_for("second subflow", lambda: self._info()[0] == 1)

    def _info(self) -> tuple:
        """Additional subflows and the first unacknowledged byte, from `struct mptcp_info`."""
        return struct.unpack("=B23xQ", self.socket.getsockopt(SOL_MPTCP, MPTCP_INFO, 32))

    def rate(self, algorithm: str, seconds: float) -> float:
        """Acknowledged Mbit/s while all subflows use this algorithm; their windows carry over."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
        # Data in flight was sent with the previous algorithm.
        time.sleep(0.05)
        return self.present_rate(seconds)

    def present_rate(self, seconds: float) -> float:
        """Acknowledged Mbit/s from now on."""
        first, began = self._info()[1], time.monotonic()
        time.sleep(seconds)
        last, ended = self._info()[1], time.monotonic()
        return (last - first) % (1 << 64) * 8 / (ended - began) / 1e6

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def cost(pair, name: str, seconds: float) -> float:
    """Nanoseconds per acknowledgment, with only this algorithm loaded."""
    tool(PLAIT, "cc", "load", name)
    before = COUNTING.read_text()
    COUNTING.write_text("1")
    try:
        with contextlib.closing(Connection(pair)) as connection:
            connection.rate(f"plait_{name}", seconds)
        nanoseconds, calls = runs()
    finally:
        COUNTING.write_text(before)
        tool(PLAIT, "cc", "unload", name)
    return nanoseconds / calls


def main():
    parser = prologue.parser(__doc__, rounds=150)
    parser.add_argument("--seconds", type=float, default=0.2, help="seconds per algorithm and round")
    arguments = prologue.parse(parser)
    with pairs.built() as pair:
        give_each_link_a_processor(pair)
        serve_connections(pair)
        costs = {name: cost(pair, name, seconds=2) for name in ALGORITHMS}
        for name in ALGORITHMS:
            tool(PLAIT, "cc", "load", name)
        try:
            ways = ["reno", *(f"plait_{name}" for name in ALGORITHMS)]
            with contextlib.closing(Connection(pair)) as connection:
                measure = lambda way: connection.rate(way, arguments.seconds)  # noqa: E731
                found = rounds.in_turn(ways, arguments.rounds, measure, prologue.progress())
        finally:
            subprocess.run((PLAIT, "cc", "unload", "--all"), capture_output=True)
    summary = rounds.summary(found, [(way, "reno") for way in ways[1:]])
    summary["ns_per_acknowledgment"] = costs
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    wanted = {
        pair: f"wanted: 0.97, {'met' if ratio >= 0.97 else 'MISSED'}"
        for pair, ratio in summary["ratio"].items()
    }
    print(rounds.text(summary, wanted))
    for name, nanoseconds in costs.items():
        print(f"  {name:12} {nanoseconds:6.0f} ns per acknowledgment")


if __name__ == "__main__":
    main()
