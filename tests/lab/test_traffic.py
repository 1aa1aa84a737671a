"""`plait lab traffic`: flows and periodic messages over an emulated link."""

import json
import subprocess

import pytest
from hosts import PLAIT, wait_for
from kernel_algorithms import congestion_controls
from labs import lab_command, needs_labs, two_hosts, up  # noqa: F401

pytestmark = needs_labs

RATE, DELAY_MS = 20e6, 10
LINK = 'each_way = { rate = "20mbit", delay = "10ms" }\n'
SERVICE = f"""
[[services]]
name = "traffic"
host = "server"
command = ["{PLAIT}", "lab", "traffic", "serve"]
port = 5400
mptcp = true
"""


@pytest.fixture
def lab(up):  # noqa: F811
    return up(two_hosts(LINK) + SERVICE)


def traffic(lab: dict, *arguments, code: int = 0, launcher=()) -> dict:
    command = [*launcher, PLAIT, "lab", "traffic", *arguments]
    done = lab_command("exec", "--lab", lab["id"], "client", "--", *command)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def sizes(report: dict) -> list[int]:
    return [flow["size_bytes"] for flow in report["flows"]]


@pytest.mark.parametrize("launcher", [(), ("mptcpize", "run")], ids=["tcp", "mptcp"])
@pytest.mark.parametrize("direction", [(), ("--upload",)], ids=["download", "upload"])
def test_no_flow_is_faster_than_its_link(lab, launcher, direction):
    given = ("10.77.1.2:5400", "--sizes", "1kB-60kB", "--count", "12", *direction)
    for arrivals in (("--parallel", "3"), ("--load", "10mbit")):
        report = traffic(lab, "flows", *given, *arrivals, launcher=launcher)
        assert report["failed"] == 0 and report["bytes"] == sum(sizes(report))
        for flow in report["flows"]:
            # The handshake and the request with its answer: two round trips.
            at_least = 4 * DELAY_MS + flow["size_bytes"] * 8e3 / RATE
            assert at_least < flow["completion_ms"] < 10_000
        longest = max(flow["completion_ms"] for flow in report["flows"])
        assert report["completion_ms"]["max"] == longest and report["completion_ms"]["count"] == 12


def test_a_seed_repeats_the_flows(lab):
    def run(seed: str) -> list[int]:
        given = ("--sizes", "1kB-60kB", "--count", "8", "--parallel", "4", "--seed", seed)
        return sizes(traffic(lab, "flows", "10.77.1.2:5400", *given))

    assert run("7") == run("7") != run("8")


def test_messages_arrive_after_the_delay_of_the_link(lab):
    given = ("10.77.1.2:5400", "--interval", "10ms", "--for", "1s")
    report = traffic(lab, "periodic", *given, "--deadline", "10s")
    assert (report["messages"], report["lost"], report["late_fraction"]) == (100, 0, 0)
    assert DELAY_MS < report["delay_ms"]["median"] < 50
    assert traffic(lab, "periodic", *given, "--deadline", f"{DELAY_MS}ms")["late_fraction"] == 1


def test_failures_are_reported(lab):
    report = traffic(lab, "flows", "10.77.1.2:5401", "--count", "2", code=1)
    assert report["failed"] == 2 and "refused" in report["flows"][0]["error"]
    done = lab_command("traffic", "flows", "10.77.1.2:5400", "--sizes", "many")
    assert done.returncode == 2 and "expected web-search, data-mining" in done.stderr
    report = traffic(lab, "flows", "10.77.1.2:5400", "--count", "1", "--congestion-control", "none", code=1)
    assert "cannot use the congestion control none" in report["flows"][0]["error"]


def test_connections_use_the_given_congestion_control(up):  # noqa: F811
    lab = up(two_hosts(LINK) + SERVICE.replace('"serve"', '"serve", "--congestion-control", "reno"'))
    given = ("--sizes", "3MB", "--count", "1", "--congestion-control", "reno")
    flows = [PLAIT, "lab", "traffic", "flows", "10.77.1.2:5400", *given]
    command = [PLAIT, "lab", "exec", "--lab", lab["id"], "client", "--", "mptcpize", "run", *flows]

    def algorithms(host: str) -> list[str]:
        sockets = lab_command("exec", "--lab", lab["id"], host, "--", "ss", "-HtinO", "state", "established")
        return congestion_controls(sockets.stdout)

    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as client:
        for host in ("client", "server"):
            wait_for(f"a connection of {host} with reno", lambda: algorithms(host) == ["reno"])  # noqa: B023
        assert client.wait(60) == 0
