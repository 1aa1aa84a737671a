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
import platform
import subprocess
import sys
import time

from prologue import require_root

# The number of bpf(2).
CALL = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
OPEN_PINNED, ENABLE_STATISTICS = 7, 32
LIBC = ctypes.CDLL(None, use_errno=True)

NETWORK = os.stat("/proc/thread-self/ns/net").st_ino
PROGRAMS = pathlib.Path(f"/run/plait/bpf/{NETWORK}/programs")


def bpf(command, *numbers):
    """Calls bpf(2); returns a file descriptor."""
    attributes = (ctypes.c_uint64 * 2)(*numbers)
    descriptor = LIBC.syscall(CALL, command, ctypes.byref(attributes), ctypes.sizeof(attributes))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def programs():
    """Descriptors of the programs that plait has pinned for this host."""
    if not PROGRAMS.is_dir():
        sys.exit("no policy is loaded here")
    paths = [ctypes.create_string_buffer(os.fsencode(path)) for path in PROGRAMS.iterdir()]
    return [bpf(OPEN_PINNED, ctypes.addressof(path)) for path in paths]


def counted(descriptors):
    """Total calls and nanoseconds since the programs were loaded."""
    found = {"run_cnt": 0, "run_time_ns": 0}
    for descriptor in descriptors:
        for line in pathlib.Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] += int(value)
    return found["run_cnt"], found["run_time_ns"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND...")
    arguments = parser.parse_args()
    if not arguments.command:
        parser.error("expected a command")
    require_root()
    ours = programs()
    bpf(ENABLE_STATISTICS, 0)
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
        print(
            "{runs} packets in {seconds:.2f} s, {ns_each:.0f} ns each: {of_time:.3%} of the time".format(
                **found
            )
        )
    sys.exit(status)


if __name__ == "__main__":
    main()
