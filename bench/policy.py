#!/usr/bin/env python3
"""What attached policies cost a transfer: MPTCP over two unlimited links, with and without a policy.

Each round downloads the same document by kernel MPTCP without plait, with chains whose selectors never hold, and with
chains that record every packet; who begins moves on from round to round, and ratios are taken within a round. The chains
are on both hooks of both links of both hosts. Needs root and a built plait.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from hosts import PLAIT, Pair  # noqa: E402
from throughput import start_nginx  # noqa: E402

NEVER = ["src(203.0.113.0/24)", "connection(1)", "size(900GB-)", "subflow(sport = 1, dport = 1)"]
# What is lost without being asked for.
LEAST_RATIO = 0.97


def policy(selectors, actors):
    """These chains on each hook."""
    lines = ['name = "bench"', 'interfaces = ["*"]']
    for hook in ("ingress", "egress"):
        for number, text in enumerate(selectors):
            lines += ["[[chains]]", f'name = "{hook}-{number}"', f'hook = "{hook}"', f'select = "{text}"']
            lines += [f"actors = {actors}"]
    return "\n".join(lines) + "\n"


WAYS = {
    "without": None,
    "no match": policy(NEVER, '["drop"]'),
    "record": policy(["any"], '["record"]'),
}


def fetch(pair) -> float:
    """Megabits per second of one transfer."""
    curl = ["curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{size_download} %{time_total}"]
    done = pair.client.run("mptcpize", "run", *curl, f"http://{pair.ETH}:8080/document", timeout=300)
    if done.returncode:
        sys.exit(done.stderr.decode())
    size, seconds = map(float, done.stdout.split())
    return size * 8 / seconds / 1e6


def with_policy(pair, text) -> float:
    file = pair.folder / "policy.toml"
    hosts = (pair.client, pair.server)
    if text:
        file.write_text(text)
        for host in hosts:
            checked(host, "load", file)
    rate = fetch(pair)
    if text:
        for host in hosts:
            checked(host, "unload", "bench")
    return rate


def checked(host, *command):
    done = host.run(PLAIT, "policy", *command)
    if done.returncode:
        sys.exit(done.stderr.decode())


def measure(megabytes, rounds, progress):
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as folder:
        folder = pathlib.Path(folder)
        documents = folder / "documents"
        documents.mkdir()
        with (documents / "document").open("wb") as out:
            out.truncate(megabytes << 20)
        pair = Pair(f"bench-{os.getpid()}", folder)
        try:
            pair.build()
            start_nginx(pair, documents)
            rates = {way: [] for way in WAYS}
            names = list(WAYS)
            for number in range(rounds + 1):
                first = number % len(names)
                for way in names[first:] + names[:first]:
                    progress(f"round {number} of {rounds}, {way}")
                    value = with_policy(pair, WAYS[way])
                    # The first round warms caches and is not counted.
                    if number:
                        rates[way].append(value)
        finally:
            pair.remove()
    return rates


def summary(rates):
    def of(values):
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return {"mean": statistics.mean(values), "stddev": spread}

    def ratio(way):
        return statistics.median(a / b for a, b in zip(rates[way], rates["without"]))

    return {
        "mbps": {way: of(values) for way, values in rates.items()},
        "ratio": {f"{way}/without": ratio(way) for way in rates if way != "without"},
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the document")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run with sudo")
    if not pathlib.Path(PLAIT).exists():
        sys.exit(f"{PLAIT} is not built: run `make build`, or set PLAIT")
    show = sys.stderr.isatty()
    progress = lambda text: show and print(f"\r{text:60}", end="", file=sys.stderr, flush=True)  # noqa: E731
    result = summary(measure(arguments.megabytes, arguments.rounds, progress))
    progress("")
    met = result["ratio"]["no match/without"] >= LEAST_RATIO
    kernel = os.uname().release
    if arguments.json:
        about = {"kernel": kernel, "rounds": arguments.rounds, "least_ratio": LEAST_RATIO, "met": met}
        print(json.dumps(about | result, indent=2))
    else:
        print(f"policies on two unlimited links, {arguments.rounds} rounds, kernel {kernel}")
        for way, value in result["mbps"].items():
            print(f"  {way:10} {value['mean']:10.1f} Mbit/s  (sigma {value['stddev']:.1f})")
        for pair, value in result["ratio"].items():
            wanted = f", at least {LEAST_RATIO}: {'met' if met else 'MISSED'}" if "no match" in pair else ""
            print(f"  {pair:17} {value:.3f}  (median of the rounds' ratios{wanted})")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
