#!/usr/bin/python3
"""Uploads over two paths of which one is silent or down for a while: how many arrive with wrong bytes.

Directly by MPTCP of the kernel, or between gateways. Each line of JSON is a wrong upload, the last one a summary. Needs root.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import random
import socket
import sys
import tempfile
import threading
import time

import prologue
from hosts import Pair, unique_id
from outages import silence
from streams import MPTCP, connect_by_socks, listen

SIZE = 4_000_000
RATE = "100mbit"
CONTENT = random.Random("uploads").randbytes(2 * SIZE)
# Seconds until a path is silent, and for how long.
BEFORE_S, SILENCE_S = (0.02, 0.3), (0.05, 0.8)
PORT, SERVICE = 8443, 9000
TIMEOUT_S = 60


@dataclasses.dataclass
class Counts:
    uploads: int = 0
    wrong: int = 0
    failed: int = 0


class Uploads:
    """The uploads of one pair of hosts, one after the other."""

    def __init__(self, pair: Pair, arguments: argparse.Namespace, number: int):
        self.pair, self.algorithm = pair, arguments.congestion_control
        self.through, self.cut = arguments.through, arguments.cut
        self.draw = random.Random(f"{arguments.seed} {number}")
        self.counts = Counts()

    def start(self):
        if self.through == "direct":
            self.listener = listen(self.pair.server, PORT, self.pair.ETH, MPTCP)
            self.pair.client.ip("mptcp endpoint add 10.77.2.1 dev wlan subflow")
        else:
            self.listener = listen(self.pair.server, SERVICE)
            options = ("--mode", self.through, "--congestion-control", self.algorithm)
            self.pair.serve(*options, to=f"127.0.0.1:{SERVICE}")
            self.pair.proxy(*options, "--trusted", "eth")
        self.listener.settimeout(TIMEOUT_S)

    def run(self, count: int):
        for _ in range(count):
            self.counts.uploads += 1
            try:
                self._upload()
            except OSError as error:
                self.counts.failed += 1
                print(json.dumps({"failed": str(error)}), flush=True)

    def _connect(self) -> socket.socket:
        if self.through != "direct":
            return connect_by_socks(self.pair)
        client = self.pair.client.socket(protocol=MPTCP)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self.algorithm.encode())
        client.settimeout(TIMEOUT_S)
        client.connect((self.pair.ETH, PORT))
        return client

    def _upload(self):
        offset = self.draw.randrange(SIZE)
        content = memoryview(CONTENT)[offset : offset + SIZE]
        with self._connect() as client:
            server, _ = self.listener.accept()
            with server:
                server.settimeout(TIMEOUT_S)
                received = bytearray()
                reader = threading.Thread(target=read_all, args=(server, received))
                reader.start()
                cutter = threading.Thread(target=self._cut)
                cutter.start()
                with contextlib.suppress(OSError):
                    client.sendall(content)
                    client.shutdown(socket.SHUT_WR)
                reader.join()
                cutter.join()
        if len(received) != SIZE:
            raise OSError(f"{len(received)} of {SIZE} bytes arrived")
        if received != content:
            self.counts.wrong += 1
            wrong = [at for at in range(SIZE) if received[at] != content[at]]
            found = CONTENT.find(bytes(received[wrong[0] : wrong[0] + 64]))
            result = {"first": wrong[0], "last": wrong[-1], "bytes": len(wrong), "of_offset": found - offset}
            print(json.dumps({"wrong": result}), flush=True)

    def _cut(self):
        """Makes a path silent for a while."""
        link = self.draw.choice(("eth", "wlan"))
        time.sleep(self.draw.uniform(*BEFORE_S))
        with CUTS[self.cut](self.pair, link):
            time.sleep(self.draw.uniform(*SILENCE_S))


@contextlib.contextmanager
def down(pair: Pair, link: str):
    """Within this context, the client's interface of a link is down."""
    pair.client.ip(f"link set {link} down")
    try:
        yield
    finally:
        pair.client.ip(f"link set {link} up")


CUTS = {"silent": silence, "down": down}


def read_all(connection: socket.socket, into: bytearray):
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            into += data


def main() -> int:
    parser = prologue.parser(__doc__, json=False)
    parser.add_argument("--congestion-control", default="bbr")
    parser.add_argument("--through", choices=("direct", "off", "xor64", "stream", "sealed"), default="direct")
    parser.add_argument("--cut", choices=CUTS, default="silent", help="what happens to a path for a while")
    parser.add_argument("--uploads", type=int, default=2_000)
    parser.add_argument("--pairs", type=int, default=4, help="of hosts, at once")
    parser.add_argument("--seed", type=int, default=1)
    arguments = prologue.parse(parser)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        every = []
        for number in range(arguments.pairs):
            own = pathlib.Path(directory, str(number))
            own.mkdir()
            pair = Pair(f"wrong-{unique_id()}", own, RATE)
            stack.callback(pair.remove)
            pair.build()
            every.append(Uploads(pair, arguments, number))
            every[-1].start()
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(arguments.pairs) as threads:
            list(threads.map(lambda uploads: uploads.run(arguments.uploads // arguments.pairs), every))
    counts = [uploads.counts for uploads in every]
    totals = {field: sum(getattr(one, field) for one in counts) for field in ("uploads", "wrong", "failed")}
    print(json.dumps(vars(arguments) | totals | {"seconds": round(time.monotonic() - began)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
