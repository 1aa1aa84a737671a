#!/usr/bin/python3
"""Random calls (stress.c), from a seed, on protected connections over two lossy paths. Runs in the guest."""

import argparse
import subprocess
import sys

from network import COUNTERS, HERE, PORT, alarms, inside, load, run, set_mode, unload


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", default="xor64-hmac")
    parser.add_argument("--address", default="10.0.1.2")
    parser.add_argument("--loss", default="0.5%")
    arguments = parser.parse_args()
    run("cc", "-O2", "-Wall", "-pthread", "-o", "/run/stress", HERE / "stress.c")
    load(arguments.loss)
    set_mode(arguments.mode)
    ends = []
    # The server runs until it is stopped: the client's last connection still needs it.
    for host, side, more in (("B", "listen", 300), ("A", "connect", 0)):
        words = [str(arguments.seed), str(arguments.seconds + more), side, arguments.address, str(PORT)]
        end = subprocess.Popen(inside(host, "/run/stress", *words), stdout=subprocess.PIPE, text=True)
        if side == "listen":
            assert "listening" in end.stdout.readline()
        ends.append(end)
    for end in reversed(ends):
        print(end.communicate()[0].strip(), flush=True)
        ends[0].terminate()
    print(COUNTERS.read_text())
    unload()
    found = alarms()
    print(*found, sep="\n")
    sys.exit(any(end.returncode for end in ends) or bool(found))


if __name__ == "__main__":
    main()
