"""Streams of known content over two links, and what an outage of a link does to them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import random
import re
import socket
import threading
import time

from hosts import Host, Pair

SAMPLE_S = 0.02
# A link is in use if it carries this share of its rate for this long.
IN_USE_SHARE, IN_USE_S = 0.2, 0.3
NETWORKS = {"eth": "10.77.1.", "wlan": "10.77.2."}
BLOCK = random.Random(22).randbytes(1 << 20)
# One block after the other; what is received at once begins in the first.
EXPECTED = BLOCK + BLOCK[: 1 << 16]


class Stream(threading.Thread):
    """Sends on one socket until stopped, receives on the other, and notes when how much has arrived."""

    def __init__(self, sender: socket.socket, receiver: socket.socket):
        super().__init__(daemon=True)
        self.sender, self.receiver = sender, receiver
        # Time and bytes until then.
        self.arrivals: list[tuple[float, int]] = []
        self.error: Exception | None = None
        self._ending = threading.Event()
        for each in (sender, receiver):
            each.settimeout(200)

    def run(self):
        sending = threading.Thread(target=self._send, daemon=True)
        sending.start()
        total = 0
        try:
            while data := self.receiver.recv(1 << 16):
                start = total % len(BLOCK)
                if data != EXPECTED[start : start + len(data)]:
                    raise AssertionError(f"wrong bytes from byte {total} on")
                total += len(data)
                self.arrivals.append((time.monotonic(), total))
        except (OSError, AssertionError) as error:
            self.error = error
        sending.join(10)

    def _send(self):
        try:
            while not self._ending.is_set():
                self.sender.sendall(BLOCK)
            self.sender.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.error = self.error or error

    def finish(self, timeout: float = 60):
        """Stops sending, and waits until all has arrived, which must be right."""
        self._ending.set()
        self.join(timeout)
        for each in (self.sender, self.receiver):
            each.close()
        if self.error:
            raise self.error
        assert not self.is_alive(), f"the end of the stream did not arrive within {timeout} s"

    def longest_gap(self, since: float, until: float) -> float:
        """The longest time without an arrival in a span."""
        inside = [when for when, _ in self.arrivals if since <= when <= until]
        return max(after - before for before, after in itertools.pairwise([since, *inside, until]))

    def longest_stall(self, since: float, until: float) -> float:
        """The longest time without an arrival that began in a span, whenever it ended."""
        times = [when for when, _ in self.arrivals]
        begun = [pair for pair in itertools.pairwise([*times, time.monotonic()]) if since <= pair[1]]
        return max((after - max(before, since) for before, after in begun if before <= until), default=0.0)

    def rate(self, since: float, until: float) -> float:
        """Bits per second that arrived in a span."""
        totals = [total for when, total in self.arrivals if since <= when <= until]
        return 8 * (totals[-1] - totals[0]) / (until - since) if len(totals) > 1 else 0.0


class Usage(threading.Thread):
    """Samples the bytes that links carry in one direction, from one end's counters."""

    def __init__(self, host: Host, links: dict[str, float], counter: str):
        """`links`: the rate of each, in bits per second. `counter`: rx_bytes or tx_bytes."""
        super().__init__(daemon=True)
        self.links = links
        self.samples: list[tuple[float, dict[str, int]]] = []
        self._host, self._counter, self._ending = host, counter, threading.Event()

    def run(self):
        with self._host.inside(), contextlib.ExitStack() as stack:
            # This thread's view of the namespace.
            lines = stack.enter_context(open("/proc/thread-self/net/dev"))
            column = {"rx_bytes": 0, "tx_bytes": 8}[self._counter]
            while not self._ending.wait(SAMPLE_S):
                lines.seek(0)
                words = re.findall(r"^\s*(\S+):\s*(.*)$", lines.read(), re.MULTILINE)
                found = {name: int(counts.split()[column]) for name, counts in words if name in self.links}
                self.samples.append((time.monotonic(), found))

    def stop(self):
        self._ending.set()
        self.join()

    def in_use(self, link: str, since: float) -> float | None:
        """When a link began to be in use, at or after a time."""
        needed = IN_USE_SHARE * self.links[link] / 8 * IN_USE_S
        samples = [(when, found[link]) for when, found in self.samples if when >= since and link in found]
        for index, (start, count) in enumerate(samples):
            window = [other for when, other in samples[index:] if when <= start + IN_USE_S]
            if len(window) > 1 and window[-1] - count >= needed:
                return start
        return None

    def idle_until(self, link: str, since: float) -> float | None:
        """When a link that stopped after a time began to be in use again; the time, if it did not stop."""
        # At the end, too little is left to tell.
        end = self.samples[-1][0] - IN_USE_S
        times = [when for when, _ in self.samples if since <= when <= end]
        idle = next((when for when in times if (self.in_use(link, when) or math.inf) > when + SAMPLE_S), None)
        return since if idle is None else self.in_use(link, idle)

    def all_in_use(self, since: float) -> float | None:
        """When the last of the links began to be in use."""
        times = [self.in_use(link, since) for link in self.links]
        return None if None in times else max(times)


def start_streams(
    host: Host, ends: tuple[socket.socket, socket.socket], rates: dict[str, float], direction: str
) -> list[tuple[Stream, Usage]]:
    """Starts a stream over a connection, `up` or `down`, or `both`, with the use of the links in its direction. `host`: the client's.
    `ends`: the client's and the service's, which streams close. `rates`: of the links."""
    started = []
    for way in ("down", "up") if direction == "both" else (direction,):
        # Of its own, to close.
        client, service = (end.dup() for end in ends)
        if way == "up":
            started.append((Stream(client, service), Usage(host, rates, "tx_bytes")))
        else:
            started.append((Stream(service, client), Usage(host, rates, "rx_bytes")))
    for end in ends:
        end.close()
    for thread in itertools.chain.from_iterable(started):
        thread.start()
    return started


@dataclasses.dataclass
class Outcome:
    """What an outage did to a stream, in seconds. `None`: it did not happen while it was watched."""

    # The longest time without an arrival that began during the outage.
    stall: float
    # The longest after its end, from there on.
    later_stall: float
    # From the end until all links were in use.
    all_in_use: float | None
    # Arrived during the outage, and in the 5 s after its end, in Mb/s.
    rate_during: float
    rate_after: float


def outcome(stream: Stream, usage: Usage, start: float, end: float, until: float) -> Outcome:
    back = usage.all_in_use(end)
    return Outcome(
        stall=stream.longest_stall(start, end),
        later_stall=stream.longest_gap(end, until),
        all_in_use=None if back is None else max(back - end, 0.0),
        rate_during=stream.rate(start, end) / 1e6,
        rate_after=stream.rate(end, min(end + 5, until)) / 1e6,
    )


@contextlib.contextmanager
def silence(pair: Pair, *links: str):
    """Within this context, packets on links are dropped in both directions."""
    names = "{ " + ", ".join(links) + " }"
    with pair.server.packet_rules(prerouting=f"iifname {names} drop", output=f"oifname {names} drop"):
        yield


@contextlib.contextmanager
def forgotten_flows(pair: Pair, *links: str):
    """From here on, the packets of the flows that exist now are dropped on links, as by a NAT that was restarted."""
    lines = pair.client.tool("ss", "-Htn", "state", "established").splitlines()
    locals_ = (line.split()[2].rsplit(":", 1) for line in lines)
    ports = {port for address, port in locals_ if any(address.startswith(NETWORKS[link]) for link in links)}
    listed = "{ " + ", ".join(sorted(ports)) + " }"
    with pair.server.packet_rules(prerouting=f"tcp sport {listed} drop", output=f"tcp dport {listed} drop"):
        yield


@contextlib.contextmanager
def address_lost(pair: Pair, *links: str):
    """Within this context, the client has no addresses on links."""
    for link in links:
        pair.client.ip(f"addr del {NETWORKS[link]}1/24 dev {link}")
    try:
        yield
    finally:
        for link in links:
            pair.client.ip(f"addr add {NETWORKS[link]}1/24 dev {link}")
        pair.add_route_by_wlan()


@contextlib.contextmanager
def carrier_lost(pair: Pair, *links: str):
    """Within this context, the client's ends of links have no carrier."""
    for link in links:
        pair.client.ip(f"link set {link} carrier off")
    try:
        yield
    finally:
        for link in links:
            pair.client.ip(f"link set {link} carrier on")
