#!/usr/bin/env python3
"""What loaded policies cost a transfer: MPTCP over two unlimited links, with and without a policy.

Each round downloads the same document by kernel MPTCP without plait, with chains whose selectors never match, and with
chains that record every packet. The order rotates, and ratios are taken within a round. The chains are on both hooks of both
links of both hosts. Transfers take some seconds, because shorter ones scatter by more than the effect. Needs root and a built
plait.
"""

import json
import os
import sys

import download
import prologue
import rounds

from policies import chain, load, plait, policy

NEVER = ["src(203.0.113.0/24)", "connection(1)", "size(900GB-)", "subflow(sport = 1, dport = 1)"]
# The limit for policies that match nothing.
MIN_RATIO = 0.97


def everywhere(selectors, actors):
    """A policy with these chains on each hook."""
    hooks = ("ingress", "egress")
    some = enumerate(selectors)
    return policy(*(chain(f"{hook}-{n}", hook, text, actors) for n, text in some for hook in hooks))


VARIANTS = {
    "without": None,
    "no match": everywhere(NEVER, '["drop"]'),
    "record": everywhere(["any"], '["record"]'),
}


def with_policy(pair, text) -> float:
    hosts = (pair.client, pair.server) if text else ()
    for host in hosts:
        load(host, text)
    rate = download.direct(pair)
    for host in hosts:
        plait(host, "unload", "--all")
    return rate


def measure(megabytes, count, progress):
    with download.served(megabytes * download.MIB) as pair:
        rates = rounds.in_turn(
            VARIANTS, count, lambda variant: with_policy(pair, VARIANTS[variant]), progress
        )
    return rounds.summary(rates, [(variant, "without") for variant in VARIANTS if variant != "without"])


def main():
    parser = prologue.parser(__doc__, rounds=9)
    parser.add_argument("--megabytes", type=int, default=6144, help="size of the document")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    result = measure(arguments.megabytes, arguments.rounds, progress)
    progress("")
    met = result["ratio"]["no match/without"] >= MIN_RATIO
    kernel = os.uname().release
    if arguments.json:
        about = {"kernel": kernel, "rounds": arguments.rounds, "least_ratio": MIN_RATIO, "met": met}
        print(json.dumps(about | result, indent=2))
    else:
        print(f"policies on two unlimited links, {arguments.rounds} rounds, kernel {kernel}")
        wanted = f"at least {MIN_RATIO}: {'met' if met else 'MISSED'}"
        print(rounds.text(result, {"no match/without": wanted}))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
