"""Running gateways, seen from outside: their cgroups, their counts, and other programs in their place."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from hosts import PLAIT, skip_without_feature, wait_for

PEER = pathlib.Path(__file__).with_name("peer_sockets.py")


def skip_without_programs_at_interfaces():
    """Skips a test of `--negotiate flag`."""
    skip_without_feature("BPF programs at TC (TCX)")


def cgroup_of(gateway) -> str:
    """The cgroup of a gateway, which listens before it has one, and enters it when its programs are attached."""

    def has_entered(cgroup: str) -> bool:
        return str(gateway.pid) in (pathlib.Path(cgroup) / "cgroup.procs").read_text().split()

    def entered():
        own = (cgroup for cgroup in cgroups_of(gateway.pid) if cgroup.endswith("-gateway"))
        return next(filter(has_entered, own), None)

    return wait_for("cgroup", entered)


def cgroup_mount() -> str:
    lines = (line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines())
    return next(line[1] for line in lines if line[2] == "cgroup2")


def cgroups_of(pid: int) -> list[str]:
    """All cgroups that a process of plait created."""
    return [directory for directory, _, _ in os.walk(cgroup_mount()) if f"plait-{pid}-" in directory]


def start_peer(host, gateway, *arguments, **options) -> subprocess.Popen:
    """Starts `peer_sockets.py` on a host, in a gateway's cgroup, whose BPF program writes the TCP option."""
    # Unlike `ip netns exec`, nsenter keeps the cgroup hierarchy mounted.
    enter = ["nsenter", f"--net=/run/netns/{host.name}", sys.executable, PEER]
    command = [*enter, *map(str, arguments), cgroup_of(gateway)]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, **options)
    host.programs.append(program)
    return program


def report_of(pair, command: str) -> dict:
    """The status report of the gateway that a command runs."""
    [gateway] = [gateway for gateway in pair.status() if gateway["command"] == command]
    return gateway
