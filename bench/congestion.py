#!/usr/bin/env python3
"""What coupled congestion control costs: MPTCP over two unlimited virtual links, by the kernel's reno and by each algorithm
in turn, round by round; and the time that the kernel spends in an algorithm's programs for each acknowledgment, which it
counts itself (kernel.bpf_stats_enabled). Needs root and a built plait.
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys

import pairs
import prologue
import rounds

# By a path that pairs adds.
import bpf
from hosts import PLAIT, REPOSITORY, tool, wait_for

ALGORITHMS = ("ewtcp", "coupled", "lia", "olia", "balia")
COUNTING = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")
STRUCT_OPS = 27
FD_BY_ID = 13


def runs() -> tuple[int, int]:
    """Nanoseconds and calls of the program of struct_ops that is called most: an algorithm's for acknowledgments."""
    found = (0, 0)
    for number in bpf.ids("prog"):
        attributes = (ctypes.c_uint32 * 3)(number, 0, 0)
        descriptor = bpf._LIBC.syscall(bpf._CALL, FD_BY_ID, ctypes.byref(attributes), ctypes.sizeof(attributes))
        if descriptor < 0:
            continue
        lines = pathlib.Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        os.close(descriptor)
        values = {name: value.split()[0] for name, _, value in (line.partition(":") for line in lines) if value}
        if int(values.get("prog_type", 0)) == STRUCT_OPS:
            found = max(found, (int(values["run_time_ns"]), int(values["run_cnt"])), key=lambda run: run[1])
    return found


def give_each_link_a_processor(pair):
    """What comes by a link is received by one processor, as by a network card what is of one flow. Else a sender that moves
    from one to another overtakes itself, and what is sent again for nothing costs an algorithm as much of its window as
    it leaves after a loss: fully coupled all of it.
    """
    processors = sorted(os.sched_getaffinity(0))
    for host in (pair.client, pair.server):
        for number, link in enumerate(("eth", "wlan")):
            mask = 1 << processors[number % len(processors)]
            receives = f"/sys/class/net/{link}/queues/rx-0/rps_cpus"
            tool("ip", "netns", "exec", host.name, "sh", "-c", f"echo {mask:x} >{receives}")


def flow(pair, name: str, seconds: float) -> float:
    program = (sys.executable, REPOSITORY / "bench" / "flows.py", "--to", f"{pair.ETH}:9000", "--json")
    timing = ("--subflows", "2", "--settle", "1", "--seconds", str(seconds))
    done = pair.client.run(*program, *timing, "--flow", f"mptcp:{name}", timeout=seconds + 60)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return json.loads(done.stdout)["flows"][0]["mbps"]


def cost(pair, name: str, seconds: float) -> float:
    """Nanoseconds for each acknowledgment, with this algorithm alone loaded."""
    tool(PLAIT, "cc", "load", name)
    before = COUNTING.read_text()
    COUNTING.write_text("1")
    try:
        flow(pair, f"plait_{name}", seconds)
        nanoseconds, calls = runs()
    finally:
        COUNTING.write_text(before)
        tool(PLAIT, "cc", "unload", name)
    return nanoseconds / calls


def main():
    parser = prologue.parser(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    arguments = parser.parse_args()
    prologue.require_root()
    prologue.require_plait()
    prologue.end_on_sigterm()
    with pairs.built() as pair:
        give_each_link_a_processor(pair)
        pair.server.start("mptcpize", "run", "socat", "-u", "-b", "262144", "TCP-LISTEN:9000,reuseaddr,fork", "OPEN:/dev/null")  # fmt: skip
        wait_for("service", lambda: pair.server.listens(9000))
        costs = {name: cost(pair, name, arguments.seconds) for name in ALGORITHMS}
        for name in ALGORITHMS:
            tool(PLAIT, "cc", "load", name)
        try:
            ways = ["reno", *(f"plait_{name}" for name in ALGORITHMS)]
            measure = lambda way: flow(pair, way, arguments.seconds)  # noqa: E731
            found = rounds.in_turn(ways, arguments.rounds, measure, prologue.progress())
        finally:
            subprocess.run((PLAIT, "cc", "unload", "--all"), capture_output=True)
    summary = rounds.summary(found, [(way, "reno") for way in ways[1:]])
    summary["ns_per_acknowledgment"] = costs
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    wanted = {f"{way}/reno": f"wanted: 0.97, {'met' if summary['ratio'][f'{way}/reno'] >= 0.97 else 'MISSED'}" for way in ways[1:]}  # fmt: skip
    print(rounds.text(summary, wanted))
    for name, nanoseconds in costs.items():
        print(f"  {name:12} {nanoseconds:6.0f} ns for each acknowledgment")


if __name__ == "__main__":
    main()
