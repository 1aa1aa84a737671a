#!/usr/bin/env python3
"""Throughput of curl from nginx through two gateways: mode off, mode xor64, and kernel MPTCP without plait.

The three are run in turn, round by round, in namespaces with two links, so that a drift of the machine meets all alike;
ratios are taken within a round. Needs root and a built plait.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from hosts import PLAIT, Pair, wait_for  # noqa: E402

WAYS = ("off", "xor64", "direct")


def fetch(pair, way) -> float:
    """Megabits per second of one transfer."""
    port = {"off": 8443, "xor64": 8444, "direct": 8080}[way]
    curl = ["curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{size_download} %{time_total}"]
    command = [*curl, f"http://{pair.ETH}:{port}/document"]
    if way == "direct":
        done = pair.client.run("mptcpize", "run", *command, timeout=300)
    else:
        strictness = ["--require"] if way == "xor64" else []
        done = pair.run(*command, options=("--mode", way, *strictness, "--trusted", "eth"), timeout=300)
    if done.returncode:
        sys.exit(f"{way}: {done.stderr.decode()}")
    size, seconds = map(float, done.stdout.split())
    return size * 8 / seconds / 1e6


def measure(rate, megabytes, rounds, progress):
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as folder:
        folder = pathlib.Path(folder)
        documents = folder / "documents"
        documents.mkdir()
        block = os.urandom(1 << 20)
        with (documents / "document").open("wb") as out:
            for _ in range(megabytes):
                out.write(block)
        pair = Pair(f"bench-{os.getpid()}", folder, rate)
        try:
            pair.build()
            start_nginx(pair, documents)
            pair.serve("--mode", "off", to=f"{pair.ETH}:8080", listen="[::]:8443")
            pair.serve("--mode", "xor64", "--require", to=f"{pair.ETH}:8080", listen="[::]:8444")
            rates = {way: [] for way in WAYS}
            for number in range(rounds + 1):
                # Who begins moves on, so that none always follows the same other.
                for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                    progress(f"{rate or 'unlimited'}: round {number} of {rounds}, {way}")
                    value = fetch(pair, way)
                    # The first round warms caches and is not counted.
                    if number:
                        rates[way].append(value)
        finally:
            pair.remove()
    return rates


def start_nginx(pair, documents):
    """The same nginx for all: an MPTCP listener serves plain TCP as well."""
    folder = pair.folder / "nginx"
    folder.mkdir()
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; events {{}} "
        f"http {{ access_log off; sendfile on; server {{ listen 8080; root {documents}; }} }}"
    )
    pair.server.start("mptcpize", "run", "nginx", "-c", configuration, "-g", "user root;", log="nginx.log")
    wait_for("nginx", lambda: pair.server.listens(8080))


def summary(rates):
    def of(values):
        return {
            "mean": statistics.mean(values),
            "stddev": statistics.stdev(values) if len(values) > 1 else 0.0,
        }

    ratio = lambda a, b: statistics.median(x / y for x, y in zip(rates[a], rates[b]))  # noqa: E731
    return {
        "mbps": {way: of(values) for way, values in rates.items()},
        "ratio": {
            "xor64/off": ratio("xor64", "off"),
            "xor64/direct": ratio("xor64", "direct"),
            "off/direct": ratio("off", "direct"),
        },  # fmt: skip
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: run with sudo")
    if not pathlib.Path(PLAIT).exists():
        sys.exit(f"{PLAIT} is not built: run `make build`, or set PLAIT")
    show = sys.stderr.isatty()
    progress = lambda text: show and print(f"\r{text:60}", end="", file=sys.stderr, flush=True)  # noqa: E731
    results = {}
    for name, rate, megabytes in (("2 x 100 Mbit/s", "100mbit", 100), ("unlimited veth", None, 1024)):
        results[name] = summary(measure(rate, megabytes, arguments.rounds, progress))
    progress("")
    if arguments.json:
        print(
            json.dumps({"kernel": os.uname().release, "rounds": arguments.rounds, "links": results}, indent=2)
        )
        return
    for name, result in results.items():
        print(f"\n{name}, {arguments.rounds} rounds, kernel {os.uname().release}")
        for way, value in result["mbps"].items():
            print(f"  {way:8} {value['mean']:10.1f} Mbit/s  (sigma {value['stddev']:.1f})")
        for pair, value in result["ratio"].items():
            print(f"  {pair:14} {value:.3f}  (median of the rounds' ratios)")


if __name__ == "__main__":
    main()
