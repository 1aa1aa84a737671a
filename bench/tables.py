#!/usr/bin/env python3
"""Time and memory from a capture to a data frame: `plait.analyze` to polars, beside tshark to CSV to pandas, scapy, and pyshark.

All read the full capture of `bench/captures.py`, about 1.2 GB with its 900,000 packets; the slow ones a part of it, from its start. They
do not do the same: plait's tables have connections, subflows and series, the others' have the packets with their addresses, ports,
lengths and times, from which a program would have to derive these. Measured are elapsed time, CPU time with children, and peak memory.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import captures
import prologue
from hosts import PLAIT, REPOSITORY, tool

VENV_PYTHON = REPOSITORY / "target" / "venv" / "bin" / "python"

FIELDS = (
    "frame.time_epoch",
    "ip.src",
    "tcp.srcport",
    "ip.dst",
    "tcp.dstport",
    "tcp.len",
    "tcp.seq",
    "tcp.ack",
)
# What it would reassemble of the payload, which no field needs, takes it a time that grows with the square of the packets.
OPTIONS = "-n -o tcp.desegment_tcp_streams:FALSE -T fields -E header=y -E separator=,"
EXPORT = f"tshark -r {{file}} {OPTIONS} {' '.join(f'-e {field}' for field in FIELDS)}"

# Programs that print the payload bytes of the capture.
PROGRAMS = {
    "plait to polars": """
import plait
found = plait.analyze(file)
found.subflows.to_polars(), found.events.to_polars()
print(found.series.to_polars()["bytes"].sum())
""",
    "tshark to CSV to pandas": f"""
import io, subprocess, pandas
lines = subprocess.Popen(f"{EXPORT}".split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
print(int(pandas.read_csv(lines.stdout)["tcp.len"].sum()))
lines.wait()
""",
    "scapy to pandas": """
import pandas
from scapy.all import IP, TCP, PcapReader
rows = []
for packet in PcapReader(file):
    if TCP in packet:
        ip, tcp = packet[IP], packet[TCP]
        length = ip.len - ip.ihl * 4 - tcp.dataofs * 4
        rows.append((float(packet.time), ip.src, tcp.sport, ip.dst, tcp.dport, length, tcp.seq, tcp.ack))
print(pandas.DataFrame(rows)[5].sum())
""",
    "pyshark to pandas": """
import pandas, pyshark
rows = []
for packet in pyshark.FileCapture(file, display_filter="tcp", keep_packets=False):
    ip, tcp = packet.ip, packet.tcp
    rows.append((packet.sniff_time, ip.src, int(tcp.srcport), ip.dst, int(tcp.dstport), int(tcp.len)))
print(pandas.DataFrame(rows)[5].sum())
""",
}
MODULES = {"plait to polars": "polars", "scapy to pandas": "scapy", "pyshark to pandas": "pyshark"}


def run(program: str, file: pathlib.Path, module: pathlib.Path) -> dict:
    """Runs a program on a capture. The peak is that of its largest process."""
    command = [VENV_PYTHON, "-c", f"file = {str(file)!r}\n{program}"]
    environment = os.environ | {"PYTHONPATH": str(module)}
    began = time.monotonic()
    running = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    printed = running.stdout.read()
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        sys.exit(f"exit {running.returncode}: {program}")
    return {
        "elapsed_s": time.monotonic() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss * 1024 / 1e6,
        "payload_bytes": int(printed),
    }


def has(module: str | None) -> bool:
    command = [VENV_PYTHON, "-c", f"import {module}"]
    return module is None or not subprocess.run(command, capture_output=True).returncode


def summary(file: pathlib.Path, runs: list[dict]) -> dict:
    packets = captures.packets_in(file)
    median = {name: statistics.median(each[name] for each in runs) for name in runs[0]}
    return {"packets": packets, "bytes": file.stat().st_size, **median, "rounds": runs}


def main():
    parser = prologue.parser(__doc__, rounds=3)
    parser.add_argument(
        "--captures", type=pathlib.Path, help="directory of captures to keep (default: temporary)"
    )
    parser.add_argument("--packets", type=int, default=captures.PACKETS, help="packets of new captures")
    parser.add_argument("--part", type=int, default=20_000, help="packets that scapy and pyshark read")
    arguments = prologue.parse(parser, root=False)
    say = prologue.progress()
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as scratch:
        scratch = pathlib.Path(scratch)
        directory = arguments.captures or scratch
        captures.make(directory, arguments.packets, say)
        whole, part = directory / "full.pcap", scratch / "part.pcap"
        tool("editcap", "-F", "pcap", "-r", str(whole), str(part), f"1-{arguments.part}")
        (scratch / "plait").symlink_to(install(scratch / "module"))
        files = dict.fromkeys(PROGRAMS, whole) | {"scapy to pandas": part, "pyshark to pandas": part}
        files = {name: file for name, file in files.items() if has(MODULES.get(name))}
        runs = {name: [] for name in files}
        for number in range(arguments.rounds):
            for name, file in files.items():
                say(f"round {number + 1}, {name}")
                runs[name].append(run(PROGRAMS[name], file, scratch))
        results = {name: summary(file, runs[name]) for name, file in files.items()}
    say("")
    missing = sorted(PROGRAMS.keys() - files.keys())
    if arguments.json:
        print(
            json.dumps({"kernel": os.uname().release, "not_installed": missing, "results": results}, indent=2)
        )
        return
    if missing:
        print(f"not installed, not measured: {', '.join(missing)}")
    print(f"{'':24} {'packets':>9} {'elapsed s':>10} {'CPU s':>8} {'us/packet':>10} {'peak MB':>8}")
    for name, found in results.items():
        cost = found["elapsed_s"] / found["packets"] * 1e6
        print(
            f"{name:24} {found['packets']:9} {found['elapsed_s']:10.2f} {found['cpu_s']:8.2f} {cost:10.2f}"
            f" {found['peak_mb']:8.0f}"
        )


def install(package: pathlib.Path) -> pathlib.Path:
    """The package with the native module beside the command."""
    package.mkdir()
    for file in (REPOSITORY / "python" / "plait").glob("*.py"):
        (package / file.name).symlink_to(file)
    (package / "_plait.abi3.so").symlink_to(pathlib.Path(PLAIT).resolve().parent / "libplait_python.so")
    return package


if __name__ == "__main__":
    main()
