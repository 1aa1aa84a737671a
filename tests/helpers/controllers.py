"""Runs Python controllers on the hosts of a test, and provides hosts with emulated links."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import time

import pytest
from hosts import PLAIT, REPOSITORY, Host, Pair, reason_to_skip, unique_id, wait_for
from package import PYTHON, install
from transfers import counters

# The included policies.
POLICIES = REPOSITORY / "policies"


@pytest.fixture
def work(tmp_path) -> pathlib.Path:
    """A directory with the installed package."""
    install(tmp_path)
    return tmp_path


# Of each link of `distant`, in Mb/s. Few packets per second, because the emulator takes a processor for them.
RATE = 20


class DelayedPair(Pair):
    """A client and a server with two links and a round-trip time of 20 ms."""

    LINKS = {"eth": (f"{RATE}mbit", "10ms"), "wlan": (f"{RATE}mbit", "10ms")}

    def join(self, link: str):
        rate, delay = self.LINKS[link]
        words = ("lab", "link", "--a", f"{self.client.name}:{link}", "--b", f"{self.server.name}:{link}")
        program = subprocess.Popen(
            [PLAIT, *words, "--rate", rate, "--delay", delay], stderr=subprocess.PIPE, text=True
        )
        self.links = [*getattr(self, "links", []), program]
        lines = iter(program.stderr.readline, "")
        assert any("ready" in line for line in lines), "the link emulator exited"

    def remove(self):
        super().remove()
        for program in getattr(self, "links", []):
            program.terminate()
            program.communicate()


class UnevenPair(DelayedPair):
    """One link is fast with low delay, the other slow with high delay."""

    LINKS = {"eth": (f"{RATE}mbit", "10ms"), "wlan": ("2mbit", "100ms")}


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
    with built(DelayedPair(unique_id(), work)) as pair:
        yield pair


@pytest.fixture
def uneven(work):
    with built(UnevenPair(unique_id(), work)) as pair:
        yield pair


def run(work: pathlib.Path, program: str, host: Host | None = None, check: bool = True):
    """Runs a Python snippet that uses `plait.policy`, on a host or in the current namespace."""
    file = work / "program.py"
    file.write_text(f"import json\nfrom plait import policy\nfrom plait.policy import *\n{program}")
    if host:
        done = host.run(PYTHON, file, cwd=work, text=True)
    else:
        done = subprocess.run([PYTHON, file], cwd=work, capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done


def start(work: pathlib.Path, host: Host, *command) -> subprocess.Popen:
    """Starts a controller and waits until it has loaded its policy."""
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
    """The names of the policies that are loaded on a host and have not expired."""
    program = (
        "print(json.dumps([one.name for one in policies() if one.remaining is None or one.remaining > 0]))"
    )
    return json.loads(run(work, program, host).stdout)


def joined(host: Host) -> int:
    """How many subflows of a host the peer has accepted."""
    return counters(host)["MPTcpExtMPJoinSynAckRx"]


def alone(pair):
    """Limits connections to one subflow: the server announces no address."""
    pair.server.run("ip", "mptcp", "endpoint", "flush")


def backup_flags_received(pair) -> list[bool]:
    """Whether each end has received the backup flag from the other, according to ss."""

    def subflow_flags(host) -> str:
        output = host.run("ss", "-HtinO", "state", "established", text=True).stdout
        return "".join(re.findall(r"tcp-ulp-mptcp flags:(\w+)", output))

    return ["B" in subflow_flags(host) for host in (pair.client, pair.server)]
