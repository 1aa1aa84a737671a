#!/usr/bin/env python3
"""Accuracy of emulated links: round-trip time, rate, loss, lateness and throughput, for each available backend.

ping, iperf3 and datagrams cross links of `plait lab link` between two namespaces. If this kernel has no netem, netem is measured
by this program inside user-mode-linux, whose own processor time is then included. Everything is measured in each round; a
figure is the median of the rounds. Needs root and a built plait.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import prologue
import uml
from hosts import PLAIT, Host, tool, wait_for

RTTS_MS = (10, 20, 50, 100)
RATES_MBIT = (2.74, 20, 100, 1000)
LOSSES_PERCENT = (0.1, 1, 5)
# A full frame as tcpdump counts it, and its TCP payload.
FRAME, PAYLOAD = 1514, 1448
# From this rate on, the emulator accepts super-packets, which the interface counts as one frame with one header.
WHOLE_FRAMES_BELOW_MBIT = 200


class Ends:
    """Two namespaces, and one link at a time between them."""

    def __init__(self, backend, directory):
        self.backend = backend
        self.hosts = [Host(f"plait-bench-{os.getpid()}-{end}", directory) for end in "ab"]
        # The previous server may still listen.
        self.ports = itertools.count(5201)

    def __enter__(self):
        for host in self.hosts:
            tool("ip", "netns", "add", host.name)
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)

    @contextlib.contextmanager
    def link(self, *options, number=1):
        """A link with addresses; yields a list that receives its report at the end."""
        a, b = (f"{host.name}:lte{number}" for host in self.hosts)
        command = (PLAIT, "lab", "link", "--a", a, "--b", b, "--backend", self.backend, "--json", *options)
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        report = []
        try:
            line = program.stderr.readline()
            if "ready" not in line:
                raise RuntimeError(line + program.stderr.read())
            for last, host in enumerate(self.hosts, start=1):
                tool("ip", "-n", host.name, "addr", "add", f"10.99.{number}.{last}/24", "dev", f"lte{number}")
            self.hosts[0].run("ping", "-c", "1", "-W", "3", f"10.99.{number}.2")
            yield report
        finally:
            program.terminate()
            out, err = program.communicate(timeout=30)
        if program.returncode:
            raise RuntimeError(err)
        report.append(json.loads(out))

    def start_iperf(self, seconds, number=1):
        """Runs iperf3 from a to b with loss-based congestion control, which keeps the queue filled."""
        a, b = self.hosts
        port = next(self.ports)
        b.start("iperf3", "-s", "-1", "-p", port)
        wait_for("iperf3", lambda: b.listens(port), timeout=30)
        options = ("-J", "-C", "cubic", "-O", 1, "-t", seconds, "-p", port, "-c", f"10.99.{number}.2")
        return subprocess.Popen(a.command("iperf3", *options), stdout=subprocess.PIPE, text=True)

    def received_bytes(self):
        """Bytes received by b's interface, and the time of reading."""
        with self.hosts[1].inside():
            table = pathlib.Path("/proc/thread-self/net/dev").read_text()
        return int(re.search(r"lte1:\s*(\d+)", table)[1]), time.monotonic()


def finished(iperf, seconds):
    """Goodput at the receiver in Mb/s."""
    out, _ = iperf.communicate(timeout=seconds + 60)
    report = json.loads(out)
    if iperf.returncode or "error" in report:
        raise RuntimeError(report.get("error", out))
    return report["end"]["sum_received"]["bits_per_second"] / 1e6


def rtt_error_ms(ends, target, pings):
    """Error of the median round-trip time. For a single packet, ping prints microseconds."""
    times = []
    with ends.link("--delay", f"{target / 2}ms"):
        for _ in range(pings):
            output = ends.hosts[0].run("ping", "-q", "-c", "1", "-W", "2", "10.99.1.2").stdout.decode()
            times.append(float(re.search(r"= ([\d.]+)/", output)[1]))
    return statistics.median(times) - target


def rate_error_percent(ends, target, seconds):
    """Error of the link's rate: from bytes counted by the receiving interface, or from TCP's goodput in full frames."""
    with ends.link("--rate", f"{target}mbit"):
        iperf = ends.start_iperf(seconds + 1)
        time.sleep(1.5)
        first, begin = ends.received_bytes()
        time.sleep(seconds)
        last, end = ends.received_bytes()
        goodput = finished(iperf, seconds)
    counted = (last - first) * 8 / (end - begin) / 1e6
    by_tcp = goodput * FRAME / PAYLOAD
    rate = counted if target < WHOLE_FRAMES_BELOW_MBIT else by_tcp
    return (rate / target - 1) * 100


def loss_percent(ends, target, datagrams):
    """The share of lost datagrams."""
    a, b = ends.hosts
    with ends.link("--a-to-b", f"loss={target}%"):
        with b.inside():
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with a.inside():
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with receiver, sender:
            so_rcvbufforce = 33
            receiver.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, 1 << 26)
            receiver.bind(("10.99.1.2", 9000))
            receiver.setblocking(False)
            sender.connect(("10.99.1.2", 9000))
            arrived = 0
            for sent in range(1, datagrams + 1):
                sender.send(b"x" * 64)
                # In small groups, so that no queue fills.
                if sent % 50 == 0:
                    time.sleep(0.002)
                    arrived += drain(receiver, 0)
            arrived += drain(receiver, 1.0)
    return (1 - arrived / datagrams) * 100


def drain(receiver, wait):
    """Counts datagrams until none arrives for that long."""
    count = 0
    while select.select([receiver], [], [], wait)[0]:
        with contextlib.suppress(BlockingIOError):
            while receiver.recv(64):
                count += 1
    return count


def lateness_p99_ms(ends, seconds):
    """The worse of two saturated links of 100 Mb/s."""
    options = ("--rate", "100mbit", "--delay", "10ms")
    with ends.link(*options) as first, ends.link(*options, number=2) as second:
        both = [ends.start_iperf(seconds, number) for number in (1, 2)]
        for iperf in both:
            finished(iperf, seconds)
    found = [report[0]["lateness"] for report in (first, second)]
    return None if None in found else max(lateness["p99_ms"] for lateness in found)


def throughput_gbit(ends, seconds):
    with ends.link():
        return finished(ends.start_iperf(seconds), seconds) / 1e3


def loss_bound(target, datagrams):
    """The tolerance of a share of so many, in percent: 3.3 standard deviations, exceeded by 1 of 1000."""
    share = target / 100
    return 3.3 * math.sqrt(share * (1 - share) / datagrams) * 100


def cases(quick, in_uml):
    """A figure: name, unit, measuring function and bound."""
    pings, seconds, datagrams = (20, 2, 20_000) if quick else (50, 6, 50_000 if in_uml else 200_000)
    some = lambda values: values[1:2] if quick else values  # noqa: E731
    for target in some(RTTS_MS):
        measure = lambda e, t=target: rtt_error_ms(e, t, pings)  # noqa: E731
        yield f"RTT of {target} ms, off by", "ms", measure, ("within", 0.2)
    for target in some(RATES_MBIT):
        measure = lambda e, t=target: rate_error_percent(e, t, seconds)  # noqa: E731
        yield f"rate of {target} Mb/s, off by", "%", measure, ("within", 0.5)
    for target in some(LOSSES_PERCENT):
        measure = lambda e, t=target: loss_percent(e, t, datagrams) - t  # noqa: E731
        yield f"loss of {target} %, off by", "%", measure, ("within", loss_bound(target, datagrams))
    yield "lateness p99, 2 x 100 Mb/s", "ms", lambda e: lateness_p99_ms(e, seconds), ("at most", 0.2)
    yield "TCP without a rate", "Gb/s", lambda e: throughput_gbit(e, seconds), ("at least", 5)


def measure(backend, rounds, quick, in_uml, progress):
    rows = [(name, unit, how, bound, []) for name, unit, how, bound in cases(quick, in_uml)]
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as directory:
        with Ends(backend, pathlib.Path(directory)) as ends:
            for number in range(1, rounds + 1):
                for name, _, how, _, values in rows:
                    progress(f"{backend}: round {number} of {rounds}: {name}")
                    values.append(how(ends))
    return [row(name, unit, bound, values) for name, unit, _, bound, values in rows]


def row(name, unit, bound, values):
    kind, limit = bound
    if None in values:
        return {"name": name, "unit": unit, "median": None, "met": None, "bound": kind, "limit": limit}
    median = statistics.median(values)
    met = {"within": abs(median) <= limit, "at most": median <= limit, "at least": median >= limit}[kind]
    spread = {"min": min(values), "max": max(values), "values": values}
    return {"name": name, "unit": unit, "median": median, **spread, "met": met, "bound": kind, "limit": limit}


def measure_in_uml(rounds, quick):
    """Measures netem by this program in a kernel that has it."""
    arguments = ["--backend", "netem", "--json", "--rounds", str(rounds), *(["--quick"] if quick else [])]
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as directory:
        script = f"PLAIT={PLAIT} python3 -B {pathlib.Path(__file__).resolve()} --in-uml {' '.join(arguments)}"
        output = uml.run(script, pathlib.Path(directory), timeout=60 + rounds * 240)
    return json.loads(output[output.index("{") :])["backends"][0]


def works_here(backend):
    """Whether this backend works here; prints plait's reason if not."""
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as directory:
        with Ends(backend, pathlib.Path(directory)) as ends:
            try:
                with ends.link("--delay", "1ms"):
                    return True
            except RuntimeError as error:
                print(str(error).strip(), file=sys.stderr)
                return False


def text(results):
    """The results of the backends side by side."""
    lines = [f"{'':30}" + "".join(f"{result['backend']:44}" for result in results) + "target"]
    for cells in zip(*(result["rows"] for result in results)):
        cell = cells[0]
        goal = f"{cell['bound']} {cell['limit']:.3g} {cell['unit']}"
        lines.append(f"{cell['name']:30}" + "".join(f"{figure(cell):44}" for cell in cells) + goal)
    lines.append("")
    for result in results:
        rounds = f"{result['rounds']} round{'s' if result['rounds'] > 1 else ''}"
        lines.append(f"{result['backend']}: kernel {result['kernel']}, {rounds}: median (least to most)")
    lines.append(f"load of this machine's {os.cpu_count()} processors in the end: {os.getloadavg()[0]:.1f}")
    if any(result["in_uml"] for result in results):
        lines.append("The processor of user-mode-linux is a process of this machine, so its timers are late.")
    return "\n".join(lines)


def figure(cell):
    if cell["median"] is None:
        return "unknown"
    spread = f"({cell['min']:.3f} to {cell['max']:.3f})"
    return f"{cell['median']:7.3f} {cell['unit']:4} {spread:19} {'met' if cell['met'] else 'MISSED'}"


def main():
    parser = prologue.parser(__doc__, rounds=5)
    parser.add_argument("--quick", action="store_true", help="one round of some figures, under a minute")
    parser.add_argument("--backend", choices=("emu", "netem"), help="only this one")
    parser.add_argument("--in-uml", action="store_true", help=argparse.SUPPRESS)
    arguments = prologue.parse(parser)
    if missing := [name for name in ("ip", "ping", "iperf3") if not shutil.which(name)]:
        sys.exit(f"not installed: {', '.join(missing)}; run `make test-deps`")
    rounds = 1 if arguments.quick else arguments.rounds
    progress = prologue.progress()
    kernel = os.uname().release + (" (user-mode-linux)" if arguments.in_uml else "")
    results = []
    for backend in [arguments.backend] if arguments.backend else ["emu", "netem"]:
        if arguments.in_uml or works_here(backend):
            rows = measure(backend, rounds, arguments.quick, arguments.in_uml, progress)
            about = {"backend": backend, "kernel": kernel, "in_uml": arguments.in_uml, "rounds": rounds}
            results.append(about | {"rows": rows})
        elif backend == "netem" and not (reason := uml.missing()):
            progress("netem: in user-mode-linux")
            results.append(measure_in_uml(rounds, arguments.quick))
        else:
            print(f"not measured: {backend}" + (f"; {reason}" if backend == "netem" else ""), file=sys.stderr)
    progress("")
    print(json.dumps({"backends": results}, indent=2) if arguments.json else text(results))


if __name__ == "__main__":
    main()
