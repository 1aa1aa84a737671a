"""The module plait.lab, programs that use it, and what there is of the labs that they make."""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess

import pytest
from hosts import PLAIT, reason_to_skip, tool
from package import PYTHON, install

PAIR = {
    "hosts": {"client": {}, "server": {}},
    "links": [
        {
            "name": "lte1",
            "role": "trusted",
            "a": "client",
            "b": "server",
            "each_way": {"rate": "20mbit", "delay": "5ms"},
        },
        {"name": "lte2", "a": {"host": "client", "interface": "wwan0"}, "b": "server"},
    ],
}
PAIR_TOML = """
[hosts.client]
[hosts.server]
[[links]]
name = "lte1"
role = "trusted"
a = "client"
b = "server"
each_way = { rate = "20mbit", delay = "5ms" }
[[links]]
name = "lte2"
a = { host = "client", interface = "wwan0" }
b = "server"
"""
EXPERIMENT = """
[experiment]
name = "pings"
title = "Round trips"
source = "none"
description = "What a ping takes."
repetitions = 2
lateness_limit = "50ms"
[parameters]
delay = ["2ms", "10ms"]
[hosts.client]
[hosts.server]
[[links]]
name = "wire"
a = "client"
b = "server"
each_way = { delay = "${delay}" }
[[steps]]
name = "ping"
host = "client"
command = ["ping", "-c", "3", "-i", "0.1", "${server.wire}"]
[metrics.took_s]
measure = "duration_s"
step = "ping"
unit = "s"
paper = 0.3
expect = { at_least = 0.1 }
"""

needs_labs = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "")


@pytest.fixture(scope="session")
def directory(tmp_path_factory) -> pathlib.Path:
    """Where the package is installed."""
    directory = tmp_path_factory.mktemp("package")
    install(directory)
    return directory


@pytest.fixture
def lab(directory, monkeypatch):
    """The module plait.lab, in this process."""
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("PLAIT", PLAIT)
    return importlib.import_module("plait.lab")


@pytest.fixture
def program(directory, tmp_path):
    """Starts an interpreter with a program; it is killed with the test."""
    started = []

    def start(text: str) -> subprocess.Popen:
        file = tmp_path / "program.py"
        file.write_text(text)
        environment = os.environ | {"PYTHONPATH": str(directory), "PLAIT": PLAIT}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running = subprocess.Popen([PYTHON, file], cwd=tmp_path, env=environment, text=True, **pipes)
        started.append(running)
        return running

    yield start
    for running in started:
        running.kill()
        running.wait()


def left_of(lab_id: str) -> list[str]:
    """Namespaces, processes and files of a lab."""
    namespaces = [name for name in tool("ip", "netns").split() if name.startswith(f"plait-{lab_id}-")]
    files = [str(file) for file in pathlib.Path("/run/plait").glob(f"lab-{lab_id}*")]
    return namespaces + files + [f"process {lab_id}"] * is_running(lab_id)


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
