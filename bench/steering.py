#!/usr/bin/env python3
"""What schedulers cost where processors are the limit: the rate of MPTCP connections over two unlimited virtual links, with cubic alone,
with `off`, which calls cubic and closes nothing, and with `ecf`; one connection after the other, round by round.

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
    parser = prologue.parser(__doc__, rounds=40)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds per connection")
    arguments = prologue.parse(parser)
    with pairs.built() as pair:
        give_each_link_a_processor(pair)
        serve_connections(pair)

        def measure(way: str) -> float:
            with contextlib.closing(Connection(pair, WAYS[way])) as connection:
                time.sleep(START)
                return connection.present_rate(arguments.seconds)

        try:
            for name in ("off", "ecf"):
                tool(PLAIT, "sched", "load", name)
            # As a host that uses it: its program is at the interfaces too.
            tool(PLAIT, "sched", "use", "ecf", "--netns", pair.client.name)
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
