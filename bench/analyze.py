#!/usr/bin/env python3
"""CPU time and memory of `plait analyze --json`, beside tshark's export of the same facts, and tcptrace, which ignores MPTCP.

All read the captures of `bench/captures.py` in turn, round by round, so that a drift of the machine affects all alike; ratios are
taken within a round. Measured are the CPU time of the whole program, user and system, and its peak memory. Exits with status 1 if
plait misses a bound, and prints which.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

import captures
import prologue
from captures import packets_in
from hosts import PLAIT, tool

HALF_OPEN = 200_000
WRONG_TOKENS = 10_000

MAX_MICROSECONDS = 0.5
MIN_GIGABYTES = 1.0
MAX_MEGABYTES = 64
MIN_RATIO = 60

# The fields of plait's document that tshark knows.
FIELDS = [
    "frame.time_epoch",
    "ip.src",
    "ip.dst",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.stream",
    "mptcp.stream",
    "tcp.seq",
    "tcp.ack",
    "tcp.len",
    "tcp.flags",
    "tcp.options.timestamp.tsval",
    "tcp.options.timestamp.tsecr",
    "tcp.options.mptcp.subtype",
    "tcp.options.mptcp.version",
    "tcp.options.mptcp.rawdataseqno",
    "tcp.options.mptcp.rawdataack",
    "tcp.options.mptcp.subflowseqno",
    "tcp.options.mptcp.datalvllen",
    "tcp.analysis.ack_rtt",
    "tcp.analysis.retransmission",
    "tcp.analysis.fast_retransmission",
    "tcp.analysis.spurious_retransmission",
    "tcp.analysis.out_of_order",
    "tcp.analysis.duplicate_ack",
    "mptcp.related_mapping",
    "mptcp.reinjection_of",
    "mptcp.reinjected_in",
]
PREFERENCES = [
    "tcp.desegment_tcp_streams:FALSE",
    "mptcp.analyze_mptcp:TRUE",
    "mptcp.analyze_mappings:TRUE",
    "mptcp.intersubflows_retransmission:TRUE",
]
EXPORT = [
    *("tshark", "-n"),
    *(word for preference in PREFERENCES for word in ("-o", preference)),
    *("-T", "fields"),
    *(word for field in FIELDS for word in ("-e", field)),
    "-r",
]

PROGRAMS = {
    "plait": [PLAIT, "analyze", "--json"],
    "tcptrace": ["tcptrace", "-lr"],
    "tshark": EXPORT,
    "tshark -2": [EXPORT[0], "-2", *EXPORT[1:]],
}


@dataclasses.dataclass
class Case:
    """A capture and the programs that read it; `packets` and `bytes` are of the file that each program reads."""

    name: str
    files: dict[str, pathlib.Path]
    packets: dict[str, int] = dataclasses.field(init=False)
    # CPU seconds and peak megabytes.
    runs: dict[str, list[tuple[float, float]]] = dataclasses.field(init=False)

    def __post_init__(self):
        counts = {file: packets_in(file) for file in set(self.files.values())}
        self.packets = {program: counts[file] for program, file in self.files.items()}
        self.runs = {program: [] for program in self.files}

    def round(self, number, say):
        # The order rotates, so that no program always follows the same other.
        programs = list(self.files)
        start = number % len(programs)
        for program in programs[start:] + programs[:start]:
            say(f"{self.name}: round {number + 1}, {program}")
            self.runs[program].append(cpu_and_peak([*PROGRAMS[program], self.files[program]]))

    def summary(self) -> dict:
        per_packet = {
            program: [cpu * 1e6 / self.packets[program] for cpu, _ in runs]
            for program, runs in self.runs.items()
        }
        return {
            program: {
                "packets": self.packets[program],
                "bytes": self.files[program].stat().st_size,
                "cpu_us_per_packet": {"min": min(values), "median": statistics.median(values)},
                "gb_per_cpu_s": {
                    "max": self.gigabytes(program, min(values)),
                    "median": self.gigabytes(program, statistics.median(values)),
                },
                "peak_mb": max(peak for _, peak in self.runs[program]),
                "ratio_to_plait": statistics.median(
                    other / plait for other, plait in zip(values, per_packet["plait"], strict=True)
                ),
            }
            for program, values in per_packet.items()
        }

    def gigabytes(self, program, us_per_packet) -> float:
        return self.files[program].stat().st_size / (us_per_packet * self.packets[program] * 1e3)


def cpu_and_peak(command) -> tuple[float, float]:
    """CPU seconds and megabytes (10^6 bytes) of a program. Its peak includes that of this process, from which it was forked."""
    with tempfile.TemporaryFile() as errors:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        program = subprocess.Popen(command, stderr=errors, **quiet)
        try:
            _, status, used = os.wait4(program.pid, 0)
        except BaseException:
            program.kill()
            program.wait()
            raise
        program.returncode = os.waitstatus_to_exitcode(status)
        if program.returncode:
            errors.seek(0)
            message = errors.read().decode(errors="replace").strip()
            sys.exit(f"{command[0]}: exit {program.returncode}: {message}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6


def write_flood(file):
    """Half-open connections, and joins to nonexistent connections, each from a different address and port."""
    capable = bytes((30, 4, 0x01, 0x01))
    with file.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101))
        for number in range(HALF_OPEN + WRONG_TOKENS):
            option = capable
            if number >= HALF_OPEN:
                option = bytes((30, 12, 0x10, 1)) + struct.pack(">II", number * 2654435761 % 2**32, number)
            packet = syn(number, option)
            time = 1_700_000_000 + number // 10_000, number % 10_000 * 100
            out.write(struct.pack("<IIII", *time, len(packet), len(packet)) + packet)


def syn(number, option) -> bytes:
    source = 0x0A000001 + number % 50_000
    ports = 1024 + number // 50_000, 443
    sequence, offset = number * 7919 % 2**32, (20 + len(option)) * 4
    tcp = struct.pack(">HHIIBBHHH", *ports, sequence, 0, offset, 2, 64240, 0, 0) + option
    return struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, source, 0xC0000201) + tcp


def broken_promises(results) -> list[str]:
    headers, full, flood = (results[name]["plait"] for name in ("headers", "full", "flood"))
    found = []
    if (cost := headers["cpu_us_per_packet"]["median"]) > MAX_MICROSECONDS:
        found.append(f"headers only: {cost:.3f} us of CPU per packet, promised at most {MAX_MICROSECONDS}")
    if (speed := full["gb_per_cpu_s"]["median"]) < MIN_GIGABYTES:
        found.append(f"full: {speed:.2f} GB per second of CPU, promised at least {MIN_GIGABYTES}")
    for name, used in (("headers", headers), ("full", full), ("flood", flood)):
        if used["peak_mb"] > MAX_MEGABYTES:
            found.append(f"{name}: {used['peak_mb']:.0f} MB of memory, promised at most {MAX_MEGABYTES}")
    if (ratio := results["headers"].get("tshark -2", {}).get("ratio_to_plait", MIN_RATIO)) < MIN_RATIO:
        found.append(
            f"headers only: tshark -2 takes {ratio:.0f} times plait's CPU, promised at least {MIN_RATIO}"
        )
    return found


def print_tables(results, rounds, floor):
    print(
        f"{rounds} rounds, kernel {os.uname().release}; CPU is user and system time; tshark -2 and tshark are run as"
    )
    print(f"  {' '.join(EXPORT)} CAPTURE")
    columns = f"{'packets':>9} {'us/packet, median':>18} {'min':>8} {'GB/s':>7} {'peak MB':>8} {'x plait':>8}"
    for name, case in results.items():
        print(f"\n{name:12} {columns}")
        for program, value in case.items():
            cost, peak = value["cpu_us_per_packet"], value["peak_mb"]
            peak = f"<{floor:.0f}" if peak < floor * 1.05 else f"{peak:.0f}"
            print(
                f"  {program:10} {value['packets']:9} {cost['median']:18.3f} {cost['min']:8.3f}"
                f" {value['gb_per_cpu_s']['median']:7.3f} {peak:>8} {value['ratio_to_plait']:8.2f}"
            )


def cases(directory, tshark_packets, scratch):
    headers, full, flood = directory / "headers.pcap", directory / "full.pcap", scratch / "flood.pcap"
    part = headers
    if tshark_packets:
        part = scratch / "part.pcap"
        tool("editcap", "-F", "pcap", "-r", str(headers), str(part), f"1-{tshark_packets}")
    write_flood(flood)
    files = {"plait": headers, "tcptrace": headers, "tshark": part, "tshark -2": part}
    there = {program: file for program, file in files.items() if shutil.which(PROGRAMS[program][0])}
    missing = files.keys() - there.keys()
    traced = {"plait": full, "tcptrace": full} if "tcptrace" in there else {"plait": full}
    return [Case("headers", there), Case("full", traced), Case("flood", {"plait": flood})], sorted(missing)


def main():
    parser = prologue.parser(__doc__, rounds=3)
    parser.add_argument(
        "--captures", type=pathlib.Path, help="directory of captures to keep (default: temporary)"
    )
    parser.add_argument("--packets", type=int, default=captures.PACKETS, help="packets of new captures")
    parser.add_argument("--tshark-packets", type=int, help="limit of packets that tshark reads")
    arguments = prologue.parse(parser, root=False)
    say = prologue.progress()
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as scratch:
        scratch = pathlib.Path(scratch)
        directory = arguments.captures or scratch
        try:
            made = captures.make(directory, arguments.packets, say)
        except captures.Invalid as reason:
            sys.exit(str(reason))
        every, missing = cases(directory, arguments.tshark_packets, scratch)
        for case in every:
            # The file is in the page cache before measuring, so that the first round is like the others.
            for file in set(case.files.values()):
                cpu_and_peak(["cat", file])
            for number in range(arguments.rounds):
                case.round(number, say)
        _, floor = cpu_and_peak(["true"])
        results = {case.name: case.summary() for case in every}
    say("")
    broken = broken_promises(results)
    if arguments.json:
        print(json.dumps({"kernel": os.uname().release, "rounds": arguments.rounds, "captures": made,
                          "tshark_command": EXPORT, "not_installed": missing, "peak_floor_mb": floor,
                          "results": results, "broken_promises": broken}, indent=2))  # fmt: skip
    else:
        if missing:
            print(f"not installed, not measured: {', '.join(missing)}")
        if arguments.tshark_packets:
            print(f"tshark read only the first {arguments.tshark_packets} packets")
        print_tables(results, arguments.rounds, floor)
        print(f"\n<{floor:.0f} MB: less than the measuring program itself, and not known more exactly")
    for promise in broken:
        print(f"bound missed: {promise}", file=sys.stderr)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
