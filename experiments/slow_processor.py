#!/usr/bin/env python3
"""Compare what `plait-bench policy` measured on an emulated processor with what it measured on this one.

    slow_processor.py --slow FILE --host FILE

Prints JSON: the fastest and slowest actor on the emulated processor and their ratio, how much longer actors take there on average,
the costs of chains relative to each other, and that of a packet that no chain selects.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slow", required=True, metavar="FILE", help="output on the emulated processor")
    parser.add_argument("--host", required=True, metavar="FILE", help="output on this processor")
    arguments = parser.parse_args()
    slow, host = costs(arguments.slow), costs(arguments.host)
    actors = {case: ns for case, ns in slow.items() if case.startswith("actor-")}
    chains = [ns for case, ns in slow.items() if "-flows-" in case]
    print(
        json.dumps(
            {
                "fastest_ns": min(actors.values()),
                "slowest_ns": max(actors.values()),
                "spread": max(actors.values()) / min(actors.values()),
                "to_host": statistics.mean(ns / host[case] for case, ns in actors.items()),
                "chains": max(chains) / min(chains),
                "growth_of_2": slow["chain-2-flows-10000"] / slow["chain-2-flows-1"],
                "growth_of_8": slow["chain-8-flows-10000"] / slow["chain-8-flows-1"],
                "not_selected": slow["no-match"] / slow["chain-4"],
            }
        )
    )


def costs(file: str) -> dict[str, float]:
    """Return nanoseconds by case: above the empty program, or above a policy that matches nothing."""
    results = json.loads(pathlib.Path(file).read_text())["results"]
    return {each["case"]: each.get("above_empty_ns", each.get("above_no_match_ns")) for each in results}


if __name__ == "__main__":
    main()
