#!/usr/bin/env python3
"""share.py [--json] COMMAND...: the share of time, and of all processors, that a host's policies take.

Runs a command on a host with policies while the kernel counts the calls and the time of their BPF programs, for incoming and
outgoing packets, nested calls included. Meanwhile the kernel counts for all BPF programs of the machine, which costs some ten
nanoseconds per call. Needs root and Linux 5.8.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time

import prologue

# isort: split
import bpf

OPEN_PINNED, ENABLE_STATISTICS = 7, 32

NETWORK = os.stat("/proc/thread-self/ns/net").st_ino
PROGRAMS = pathlib.Path(f"/run/plait/bpf/{NETWORK}/programs")


def programs():
    """Descriptors of the programs that plait has pinned for this host."""
    if not PROGRAMS.is_dir():
        sys.exit("no policy is loaded here")
    paths = [ctypes.create_string_buffer(os.fsencode(path)) for path in PROGRAMS.iterdir()]
    return [bpf.syscall(OPEN_PINNED, (ctypes.c_uint64 * 2)(ctypes.addressof(path))) for path in paths]


def counted(descriptors):
    """Total calls and nanoseconds since the programs were loaded."""
    found = [bpf.fdinfo(descriptor) for descriptor in descriptors]
    return sum(info["run_cnt"] for info in found), sum(info["run_time_ns"] for info in found)


def main():
    parser = prologue.parser(__doc__)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND...")
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("expected a command")
    prologue.require_root()
    ours = programs()
    bpf.syscall(ENABLE_STATISTICS, (ctypes.c_uint64 * 2)())
    before, started = counted(ours), time.monotonic()
    status = subprocess.run(arguments.command, stdout=sys.stderr).returncode
    seconds = time.monotonic() - started
    runs, nanoseconds = (after - before for after, before in zip(counted(ours), before, strict=True))
    of_time = nanoseconds / 1e9 / seconds
    found = {
        "seconds": seconds,
        "runs": runs,
        "ns_each": nanoseconds / max(1, runs),
        "of_time": of_time,
        "of_processors": of_time / os.cpu_count(),
    }
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"{runs} packets in {seconds:.2f} s, {found['ns_each']:.0f} ns each: {of_time:.3%} of the time")
    sys.exit(status)


if __name__ == "__main__":
    main()
