#!/usr/bin/python3
"""Random calls (stress.c), from a seed, on protected connections over two lossy paths. Runs in the guest."""

import argparse

from network import ADDRESS, HERE, PORT, finish, load, run, set_mode, start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", default="xor64-hmac")
    parser.add_argument("--address", default=ADDRESS)
    parser.add_argument("--loss", default="0.5%")
    arguments = parser.parse_args()
    run("cc", "-O2", "-Wall", "-pthread", "-o", "/run/stress", HERE / "stress.c")
    load(arguments.loss)
    set_mode(arguments.mode)
    ends = []
    # The server runs until it is stopped: the client's last connection still needs it.
    for host, side, more in (("B", "listen", 300), ("A", "connect", 0)):
        words = [str(arguments.seed), str(arguments.seconds + more), side, arguments.address, str(PORT)]
        end = start(host, "/run/stress", *words, stderr=None)
        if side == "listen":
            assert "listening" in end.stdout.readline()
        ends.append(end)
    for end in reversed(ends):
        print(end.communicate()[0].strip(), flush=True)
        ends[0].terminate()
    finish(not any(end.returncode for end in ends))


if __name__ == "__main__":
    main()
