"""Programs that use the package's policies, on the hosts of a test, and hosts for what they control."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import time

import pytest
from hosts import PLAIT, REPOSITORY, Host, Pair, reason_to_skip, wait_for
from package import PYTHON, install
from transfers import counters

# Those that come with plait.
POLICIES = REPOSITORY / "policies"


@pytest.fixture
def work(tmp_path) -> pathlib.Path:
    """A directory with the package."""
    install(tmp_path)
    return tmp_path


class Distant(Pair):
    """A client and a server with links of 50 Mb/s and 20 ms there and back."""

    LINKS = {"eth": ("50mbit", "10ms"), "wlan": ("50mbit", "10ms")}

    def join(self, link: str):
        rate, delay = self.LINKS[link]
        words = ("lab", "link", "--a", f"{self.client.name}:{link}", "--b", f"{self.server.name}:{link}")
        program = subprocess.Popen(
            [PLAIT, *words, "--rate", rate, "--delay", delay], stderr=subprocess.PIPE, text=True
        )
        self.links = [*getattr(self, "links", []), program]
        said = iter(program.stderr.readline, "")
        assert any("ready" in line for line in said), "the link has ended"

    def remove(self):
        super().remove()
        for program in getattr(self, "links", []):
            program.terminate()
            program.communicate()


class Uneven(Distant):
    """One path is near and fast, the other far and slow."""

    LINKS = {"eth": ("20mbit", "10ms"), "wlan": ("2mbit", "100ms")}


@contextlib.contextmanager
def built(pair: Pair):
    if reason := reason_to_skip():
        pytest.skip(reason)
    try:
        pair.build()
        yield pair
    finally:
        pair.remove()


@pytest.fixture
def distant(work):
    with built(Distant(f"{os.getpid()}-distant", work)) as pair:
        yield pair


@pytest.fixture
def uneven(work):
    with built(Uneven(f"{os.getpid()}-uneven", work)) as pair:
        yield pair


def run(work: pathlib.Path, program: str, host: Host | None = None, check: bool = True):
    """Runs a program of a few lines, in which `policy` is imported, on a host or where this runs."""
    file = work / "program.py"
    file.write_text(f"import json\nfrom plait import policy\nfrom plait.policy import *\n{program}")
    if host:
        done = host.run(PYTHON, file, cwd=work, text=True)
    else:
        done = subprocess.run([PYTHON, file], cwd=work, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done


def start(work: pathlib.Path, host: Host, *command) -> subprocess.Popen:
    """Starts a controller; it has loaded its policy when this returns."""
    log = f"controller-{time.monotonic_ns()}.log"
    environment = os.environ | {"PYTHONPATH": str(work)}
    program = host.start(PYTHON, *command, log=log, cwd=work, env=environment)
    before = names(work, host)

    def ready():
        assert program.poll() is None, (work / log).read_text()
        return names(work, host) != before or before

    wait_for("controller", ready)
    return program


def names(work: pathlib.Path, host: Host) -> list[str]:
    """The policies that are loaded on a host and act."""
    program = (
        "print(json.dumps([one.name for one in loaded() if one.remaining is None or one.remaining > 0]))"
    )
    return json.loads(run(work, program, host).stdout)


def joined(host: Host) -> int:
    """How many subflows a host has made that the other end agreed to."""
    return counters(host)["MPTcpExtMPJoinSynAckRx"]


def alone(pair):
    """Connections have one subflow: the server announces no address."""
    pair.server.run("ip", "mptcp", "endpoint", "flush")
