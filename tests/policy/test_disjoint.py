"""policies/disjoint.py on a full mesh of two access links and two addresses of a server."""

import os
import signal
import subprocess

import pytest
from controllers import POLICIES, work  # noqa: F401
from hosts import PLAIT, wait_for
from labs import lab_command, needs_labs, up  # noqa: F401
from package import PYTHON

pytestmark = [needs_labs, pytest.mark.alone]

LINK = """
[[links]]
name = "access{n}"
family = "ipv4"
a = {{ host = "client", endpoint = ["subflow", "fullmesh"] }}
b = "router"
each_way = {{ rate = "20mbit", delay = "10ms" }}
[[links]]
name = "net{n}"
family = "ipv4"
a = "router"
b = {{ host = "server", endpoint = {endpoint} }}
"""
MESH = f"""
[hosts.client]
mptcp = {{ subflows = 8, add_addr_accepted = 8 }}
[hosts.router]
forward = true
[hosts.server]
mptcp = {{ subflows = 8, add_addr_accepted = 8 }}
{LINK.format(n=1, endpoint="[]")}
{LINK.format(n=2, endpoint='["signal"]')}
[[services]]
name = "traffic"
host = "server"
command = ["{PLAIT}", "lab", "traffic", "serve"]
port = 5400
mptcp = true
"""


def execute(lab: dict, host: str, *command) -> subprocess.CompletedProcess:
    return lab_command("exec", "--lab", lab["id"], host, "--", *command)


def joins(lab: dict) -> int:
    """Joins whose handshake the server completed."""
    done = execute(lab, "server", "nstat", "-asz", "MPTcpExtMPJoinAckRx")
    return int(done.stdout.split()[-2])


def download(lab: dict, size: str):
    words = ("lab", "traffic", "flows", "10.77.2.2:5400", "--sizes", size, "--count", "1")
    done = execute(lab, "client", "mptcpize", "run", PLAIT, *words)
    assert done.returncode == 0, done.stderr


def test_only_disjoint_paths_join_as_the_connection_grows(up, work):  # noqa: F811
    lab = up(MESH)
    download(lab, "6MB")
    # Control: without the policy, all of the mesh.
    assert joins(lab) == 3
    program = (PYTHON, POLICIES / "disjoint.py", "200000")
    command = [PLAIT, "lab", "exec", "--lab", lab["id"], "client", "--", *program]
    controller = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(work), "PLAIT": PLAIT})
    try:
        shown = (PLAIT, "policy", "show", "disjoint")
        wait_for("the policy", lambda: execute(lab, "client", *shown).returncode == 0)
        before = joins(lab)
        download(lab, "100kB")
        assert joins(lab) == before
        download(lab, "6MB")
        assert joins(lab) == before + 1
        assert controller.poll() is None
    finally:
        controller.send_signal(signal.SIGINT)
        controller.wait(20)
