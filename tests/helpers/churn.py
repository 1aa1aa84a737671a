#!/usr/bin/python3
"""Opens and closes connections while their congestion control is switched and unloaded and their paths are cut: every
transfer must arrive unchanged, the kernel must log no warnings, and nothing may stay registered. The sequence is drawn
from the seed. Needs root.
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

from hosts import PLAIT, Pair
from streams import MPTCP, listen, receive_exactly

PORT = 9400
ALGORITHMS = ("ewtcp", "coupled", "lia", "olia", "balia")
MAX_TRANSFER = 1 << 20
# Seconds; cut paths return in less.
SOCKET_TIMEOUT = 60
WARNINGS = re.compile(r"WARNING|BUG:|Oops|refcount|use-after-free|general protection|stall")


class Churn:
    def __init__(self, pair: Pair, connections: int, seed: int, concurrency: int = 12):
        self.pair, self.connections, self.concurrency = pair, connections, concurrency
        self.seed = seed
        self.outcomes = collections.Counter()
        self.done = threading.Event()
        self.switches = self.cuts = 0
        self.problems: list[str] = []

    def run(self) -> dict:
        start, warnings_before = time.monotonic(), kernel_warnings()
        listener = listen(self.pair.server, PORT, "0.0.0.0", MPTCP)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        jobs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        for number in range(self.connections):
            jobs.put(number)
        workers = [threading.Thread(target=self._work, args=(jobs,)) for _ in range(self.concurrency)]
        disruptors = [threading.Thread(target=each) for each in (self._switch, self._cut)]
        for thread in (*workers, *disruptors):
            thread.start()
        for worker in workers:
            worker.join()
        self.done.set()
        for disruptor in disruptors:
            disruptor.join()
        listener.close()
        self._cc("unload", "--all")
        return {
            "connections": self.connections,
            "whole": self.outcomes["whole"],
            "outcomes": dict(self.outcomes),
            "switches": self.switches,
            "cuts": self.cuts,
            "still_registered": registered(),
            "kernel": kernel_warnings()[len(warnings_before) :],
            "problems": self.problems,
            "seconds": round(time.monotonic() - start, 1),
        }

    def _accept(self, listener: socket.socket):
        while not self.done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket):
        """Receive the announced number of bytes; answer with their digest, and as many random bytes after their digest."""
        connection.settimeout(SOCKET_TIMEOUT)
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

    def _transfer(self, rng: random.Random):
        sent = rng.randbytes(int(MAX_TRANSFER ** rng.uniform(0.3, 1)))
        with self.pair.client.socket(protocol=MPTCP) as connection:
            connection.settimeout(SOCKET_TIMEOUT)
            connection.connect((self.pair.ETH, PORT))
            half = len(sent) // 2
            connection.sendall(len(sent).to_bytes(8, "big") + sent[:half])
            # Long enough for switches and cuts to happen meanwhile.
            time.sleep(rng.uniform(0, 1))
            connection.sendall(sent[half:])
            answer = receive_exactly(connection, 64 + len(sent))
        if answer[:64] != hashlib.sha256(sent).digest() + hashlib.sha256(answer[64:]).digest():
            raise ValueError("received data differs from the sent data")

    def _switch(self):
        rng = random.Random(f"{self.seed} switches")
        while not self.done.wait(rng.uniform(0, 0.2)):
            host = rng.choice((self.pair.client, self.pair.server))
            name = rng.choice(ALGORITHMS)
            use, unload = ("use", name, "--netns", host.name), (("unload", name), ("unload", "--all"))
            self._cc(*rng.choice((use, use, use, *unload)))
            self.switches += 1

    def _cut(self):
        """Take one of the paths down for a moment."""
        rng = random.Random(f"{self.seed} cuts")
        while not self.done.wait(rng.uniform(0.1, 0.6)):
            link = rng.choice(("eth", "wlan"))
            self.pair.server.ip(f"link set {link} down")
            time.sleep(rng.uniform(0.02, 0.3))
            self.pair.server.ip(f"link set {link} up")
            self.cuts += 1

    def _cc(self, *words: str):
        done = subprocess.run([PLAIT, "cc", *words], capture_output=True, text=True)
        # Unloading an algorithm that is not loaded is expected to fail.
        if done.returncode and "not loaded" not in done.stderr:
            self.problems.append(f"plait cc {' '.join(words)}: {done.stderr.strip()}")


def registered() -> list[str]:
    names = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return [name for name in names if name.startswith("plait_")]


def kernel_warnings() -> list[str]:
    """Warnings in the kernel log."""
    log = subprocess.run(("dmesg",), capture_output=True, text=True, errors="replace").stdout
    return [line for line in log.splitlines() if WARNINGS.search(line)]


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
            # The setting that namespaces return to. With bbr, Linux 6.18 itself delivers wrong bytes now and then after a cut.
            for host in (pair.client, pair.server):
                host.run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno", check=True)
            report = Churn(pair, arguments.connections, arguments.seed).run()
        finally:
            pair.remove()
    print(json.dumps(report, indent=2))
    sys.exit(
        report["whole"] != report["connections"]
        or bool(report["kernel"] or report["still_registered"] or report["problems"])
    )


if __name__ == "__main__":
    main()
