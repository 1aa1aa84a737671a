"""The congestion control algorithms that plait registers with the kernel, in which schedulers are too."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest
from gateways import cgroup_mount
from hosts import PLAIT, skip_without_feature

AVAILABLE = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
SCHEDULER_FEATURE = "schedulers by BPF (struct_ops)"
SETTING = "net.ipv4.tcp_congestion_control"
PINS = pathlib.Path("/run/plait/bpf/congestion")
RECORDS = pathlib.Path("/run/plait/congestion")


def available() -> set[str]:
    """The kernel's names of plait's algorithms, without their prefix, but for schedulers of gateways (`plait_e4711`)."""
    names = [
        name.removeprefix("plait_") for name in AVAILABLE.read_text().split() if name.startswith("plait_")
    ]
    return {name for name in names if not re.fullmatch(r"[a-z]\d+", name)}


def setting(host) -> str:
    return host.run("sysctl", "-n", SETTING, text=True).stdout.strip()


def unload_all():
    for command in ("cc", "sched"):
        subprocess.run([PLAIT, command, "unload", "--all"], check=True, capture_output=True)


def congestion_controls(connections: str) -> list[str]:
    """The algorithm of each connection that `ss -HtinO` has listed."""
    known = AVAILABLE.read_text().split()
    return [next(word for word in line.split() if word in known) for line in connections.splitlines()]


@contextlib.contextmanager
def no_algorithms_loaded(feature: str):
    """Within this context, no other test uses plait's algorithms; none is loaded before and after. Skips the test if
    `plait doctor` lacks the feature."""
    skip_without_feature(feature)
    # The shared file also serves as the lock: a separate lock file would remain afterwards.
    with AVAILABLE.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        unload_all()
        yield
        unload_all()
        assert not PINS.exists() and not RECORDS.exists() and not available()


def kill_commands(command: str, name: str, host, times: int):
    """Kills `plait COMMAND load`, `use` and `unload` of an algorithm at random moments."""
    rng = random.Random(5)
    for _ in range(times):
        for words in (("load", name), ("use", name, "--netns", host.name), ("unload", name)):
            program = subprocess.Popen(
                [PLAIT, command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(rng.uniform(0, 0.03))
            program.send_signal(signal.SIGKILL)
            program.wait()


def enter(directory: pathlib.Path):
    (directory / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def group(name: str):
    """Create a control group for this test."""
    root = pathlib.Path(cgroup_mount())
    directory = root / f"plait-test-{os.getpid()}-{name}"
    lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    before = next(line[3:] for line in lines if line.startswith("0::"))
    directory.mkdir()
    try:
        yield directory
    finally:
        enter(root / before.lstrip("/"))
        directory.rmdir()
