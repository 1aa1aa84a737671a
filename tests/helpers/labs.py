"""Topologies and experiments; labs by the command and by the module plait.lab; what remains of a lab."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import re
import subprocess
import tomllib

import pytest
from hosts import PLAIT, reason_to_skip, tool
from package import PYTHON, installed  # noqa: F401


def two_hosts(lines: str = "", link: str = "wire") -> str:
    """The topology of a client, a server and a link between them, whose table ends with these lines."""
    return f"""
[hosts.client]
[hosts.server]
[[links]]
name = "{link}"
a = "client"
b = "server"
{lines}"""


def experiment(name: str, rest: str, settings: str = "repetitions = 1") -> str:
    """An experiment with these settings, and the rest of its file."""
    return f"""
[experiment]
name = "{name}"
title = "Some {name}"
source = "a paper"
description = "What is done."
{settings}
{rest}
"""


LTE1 = 'role = "trusted"\neach_way = { rate = "20mbit", delay = "5ms" }\n'
LTE2 = '[[links]]\nname = "lte2"\na = { host = "client", interface = "wwan0" }\nb = "server"\n'
PAIR_TOML = two_hosts(LTE1, "lte1") + LTE2
PAIR = tomllib.loads(PAIR_TOML)
PINGS = """
[parameters]
delay = ["2ms", "10ms"]
[[steps]]
name = "ping"
host = "client"
command = ["ping", "-c", "3", "-i", "0.1", "${server.wire}"]
[metrics.took_s]
measure = "duration_s"
step = "ping"
unit = "s"
paper = { value = 0.3, factor = 10 }
expect = { at_least = 0.1 }
"""
EXPERIMENT = experiment(
    "pings",
    PINGS + two_hosts('each_way = { delay = "${delay}" }\n'),
    'repetitions = 2\nlateness_limit = "50ms"',
)

needs_labs = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "")


def lab_command(*arguments, **options) -> subprocess.CompletedProcess:
    command = [PLAIT, "lab", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture
def up(tmp_path):
    """Builds labs from topologies; they are removed at the end of the test."""
    started = []

    def start(text: str, *options) -> dict:
        file = tmp_path / f"lab{len(started)}.toml"
        file.write_text(text)
        done = lab_command("up", file, "--json", *options)
        assert done.returncode == 0, done.stderr
        lab = json.loads(done.stdout)
        started.append(lab["id"])
        return lab

    yield start
    for lab_id in started:
        lab_command("down", "--lab", lab_id)


@pytest.fixture
def lab(installed, monkeypatch):
    """The module plait.lab, in this process."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("PLAIT", PLAIT)
    return importlib.import_module("plait.lab")


@pytest.fixture
def program(installed, tmp_path):
    """Starts an interpreter with a program; it is killed with the test."""
    started = []

    def start(text: str) -> subprocess.Popen:
        file = tmp_path / "program.py"
        file.write_text(text)
        environment = os.environ | {"PYTHONPATH": str(installed), "PLAIT": PLAIT}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running = subprocess.Popen([PYTHON, file], cwd=tmp_path, env=environment, text=True, **pipes)
        started.append(running)
        return running

    yield start
    for running in started:
        running.kill()
        running.wait()


def left_of(lab_id: str) -> list[str]:
    """Everything with the id of a lab: namespaces, files, mounts, and processes in its directory or with its id."""
    mine = f"plait-{lab_id}-"
    left = [name for name in os.listdir("/run/netns") if name.startswith(mine)]
    left += [
        path.name for path in pathlib.Path("/run/plait").glob("*") if re.search(rf"\b{lab_id}\b", path.name)
    ]
    mounts = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    left += [line for line in mounts if mine in line or f"lab-{lab_id}" in line]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = process.joinpath("cmdline").read_bytes()
        except OSError:
            continue
        if f"lab-{lab_id}/".encode() in words or (process.name == lab_id and words):
            left.append(f"process {process.name}")
    return left


def is_running(pid: str) -> bool:
    """Whether there is such a process, which has not ended."""
    try:
        return bool(os.readlink(f"/proc/{pid}/exe"))
    except FileNotFoundError:
        return False


def children(pid: int) -> list[str]:
    """What a process started, by whichever thread: pytest may run a test in any."""
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return [child for thread in threads for child in thread.read_text().split()]


def sleeping(namespace: str) -> int:
    """How many programs sleep there."""
    pids = tool("ip", "netns", "pids", namespace).split()
    return sum(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep") for pid in pids)


def ping(lab, *options: str, link: str = "lte1") -> subprocess.CompletedProcess:
    return lab.run("client", "ping", "-c", "3", "-i", "0.1", "-W", "1", *options, lab.address("server", link))
