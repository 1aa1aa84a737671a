#!/usr/bin/env python3
"""What schedulers cost where processors are the limit: the rate of an MPTCP connection over two unlimited virtual links that goes on by
turns with cubic alone, nothing of plait in the network namespace, with `off`, which calls cubic and closes nothing, and with `ecf`.

Bound: with `ecf` 0.98 of cubic. Needs root, a built plait and a quiet machine.
"""

import contextlib
import json
import subprocess
import time

import pairs  # makes tests/helpers importable

# isort: split
import prologue
import rounds
from congestion import Connection, give_each_link_a_processor, serve_connections
from hosts import PLAIT, tool

WAYS = {"cubic": "cubic", "off": "plait_off", "ecf": "plait_ecf"}
BOUND = 0.98
# Until windows and buffers have grown.
START = 0.5


def main():
    parser = prologue.parser(__doc__, rounds=200)
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds per scheduler and round")
    arguments = prologue.parse(parser)
    with pairs.built() as pair:
        give_each_link_a_processor(pair)
        serve_connections(pair)
        netns = ("--netns", pair.client.name)
        try:
            for name in ("off", "ecf"):
                tool(PLAIT, "sched", "load", name)
            with contextlib.closing(Connection(pair, "cubic")) as connection:

                def measure(way: str) -> float:
                    # A host that uses one has its program at the interfaces too. For cubic, the same happens, but before.
                    tool(PLAIT, "sched", "use", "off" if way == "cubic" else way, *netns)
                    if way == "cubic":
                        tool(PLAIT, "sched", "disable", *netns)
                    rate = connection.rate(WAYS[way], arguments.seconds)
                    if way != "cubic":
                        tool(PLAIT, "sched", "disable", *netns)
                    return rate

                time.sleep(START)
                found = rounds.in_turn(WAYS, arguments.rounds, measure, prologue.progress())
        finally:
            subprocess.run((PLAIT, "sched", "unload", "--all"), capture_output=True)
    summary = rounds.summary(found, [("off", "cubic"), ("ecf", "cubic")])
    if arguments.json:
        print(json.dumps(summary, indent=2))
        return
    ratio = summary["ratio"]["ecf/cubic"]
    print(rounds.text(summary, {"ecf/cubic": f"wanted: {BOUND}, {'met' if ratio >= BOUND else 'MISSED'}"}))


if __name__ == "__main__":
    main()
