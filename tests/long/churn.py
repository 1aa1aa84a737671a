#!/usr/bin/python3
"""Connections that come and go while their congestion control is switched and unloaded and their paths are cut: every
transfer must be right, the kernel must not complain, and nothing may stay registered. What happens is drawn from the seed.
Needs root.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import pathlib
import queue
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

import helpers_path  # noqa: F401, I001  (before what it finds)
from hosts import PLAIT, Pair, tool
from streams import receive_exactly

MPTCP, PORT = 262, 9400
ALGORITHMS = ("ewtcp", "coupled", "lia", "olia", "balia")
LARGEST = 1 << 20
# Seconds within which an end must hear of the other: cut paths come back after less.
PATIENCE = 60
COMPLAINTS = re.compile(r"WARNING|BUG:|Oops|refcount|use-after-free|general protection|stall")


class Churn:
    def __init__(self, pair: Pair, connections: int, seed: int, concurrency: int = 12):
        self.pair, self.connections, self.concurrency = pair, connections, concurrency
        self.seed = seed
        self.outcomes = collections.Counter()
        self.done = threading.Event()
        self.switches = self.cuts = 0
        self.problems: list[str] = []

    def run(self) -> dict:
        began, said_before = time.monotonic(), complaints()
        with self.pair.server.inside():
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", PORT))
        listener.listen(256)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        jobs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        for number in range(self.connections):
            jobs.put(number)
        workers = [threading.Thread(target=self._work, args=(jobs,)) for _ in range(self.concurrency)]
        disturbers = [threading.Thread(target=each) for each in (self._switch, self._cut)]
        for thread in (*workers, *disturbers):
            thread.start()
        for worker in workers:
            worker.join()
        self.done.set()
        for disturber in disturbers:
            disturber.join()
        listener.close()
        self._cc("unload", "--all")
        return {
            "connections": self.connections,
            "whole": self.outcomes["whole"],
            "outcomes": dict(self.outcomes),
            "switches": self.switches,
            "cuts": self.cuts,
            "left": registered(),
            "kernel": complaints()[len(said_before) :],
            "problems": self.problems,
            "seconds": round(time.monotonic() - began, 1),
        }

    def _accept(self, listener: socket.socket):
        while not self.done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket):
        """Gets so many bytes, and answers with their digest and as many others, whose digest comes first."""
        connection.settimeout(PATIENCE)
        with connection:
            size = int.from_bytes(receive_exactly(connection, 8), "big")
            got = receive_exactly(connection, size)
            back = random.randbytes(size)
            connection.sendall(hashlib.sha256(got).digest() + hashlib.sha256(back).digest() + back)
            connection.recv(1)

    def _work(self, jobs: queue.SimpleQueue):
        while True:
            try:
                number = jobs.get_nowait()
            except queue.Empty:
                return
            try:
                self._transfer(random.Random(f"{self.seed} {number}"))
                self.outcomes["whole"] += 1
            except Exception as error:
                self.outcomes[type(error).__name__] += 1
                self.problems.append(f"connection {number}: {error}")

    def _transfer(self, chance: random.Random):
        sent = chance.randbytes(int(LARGEST ** chance.uniform(0.3, 1)))
        with self.pair.client.socket(protocol=MPTCP) as connection:
            connection.settimeout(PATIENCE)
            connection.connect((self.pair.ETH, PORT))
            half = len(sent) // 2
            connection.sendall(len(sent).to_bytes(8, "big") + sent[:half])
            # So that it lives to see something.
            time.sleep(chance.uniform(0, 1))
            connection.sendall(sent[half:])
            answer = receive_exactly(connection, 64 + len(sent))
        if (
            answer[:32] != hashlib.sha256(sent).digest()
            or answer[32:64] != hashlib.sha256(answer[64:]).digest()
        ):
            raise ValueError("what was sent is not what arrived")

    def _switch(self):
        chance = random.Random(f"{self.seed} switches")
        while not self.done.wait(chance.uniform(0, 0.2)):
            host = chance.choice((self.pair.client, self.pair.server))
            name = chance.choice(ALGORITHMS)
            self._cc(
                *chance.choice(
                    (("use", name, "--netns", host.name),) * 3 + (("unload", name), ("unload", "--all"))
                )
            )
            self.switches += 1

    def _cut(self):
        """One of the paths for some moments: taken down, or without its second address."""
        chance = random.Random(f"{self.seed} cuts")
        while not self.done.wait(chance.uniform(0.1, 0.6)):
            link = chance.choice(("eth", "wlan"))
            tool("ip", "-n", self.pair.server.name, "link", "set", link, "down")
            time.sleep(chance.uniform(0.02, 0.3))
            tool("ip", "-n", self.pair.server.name, "link", "set", link, "up")
            self.cuts += 1

    def _cc(self, *words: str):
        done = subprocess.run([PLAIT, "cc", *words], capture_output=True, text=True)
        # What is not loaded cannot be unloaded.
        if done.returncode and "not loaded" not in done.stderr:
            self.problems.append(f"plait cc {' '.join(words)}: {done.stderr.strip()}")


def registered() -> list[str]:
    names = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return [name for name in names if name.startswith("plait_")]


def complaints() -> list[str]:
    """What the kernel has said that it should not have had to."""
    log = subprocess.run(("dmesg",), capture_output=True, text=True, errors="replace").stdout
    return [line for line in log.splitlines() if COMPLAINTS.search(line)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    with tempfile.TemporaryDirectory(prefix="plait-churn-") as directory:
        pair = Pair(f"churn-{os.getpid()}", pathlib.Path(directory), rate="200mbit")
        try:
            pair.build()
            # What namespaces go back to. With bbr, Linux 6.18 itself delivers wrong bytes now and then after a cut.
            for host in (pair.client, pair.server):
                host.run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno", check=True)
            report = Churn(pair, arguments.connections, arguments.seed).run()
        finally:
            pair.remove()
    print(json.dumps(report, indent=2))
    sys.exit(
        report["whole"] != report["connections"]
        or bool(report["kernel"] or report["left"] or report["problems"])
    )


if __name__ == "__main__":
    main()
