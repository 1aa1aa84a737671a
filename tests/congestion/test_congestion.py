"""`plait cc`: every subflow uses the enabled algorithm, and nothing remains after it is unloaded."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import threading
import time

import pytest
from hosts import PLAIT, tool, wait_for
from kernel_algorithms import (
    PINS,
    RECORDS,
    SETTING,
    available,
    enter,
    group,
    kill_commands,
    no_algorithms_loaded,
    setting,
)
from package import PYTHON, examples, install
from streams import receive_exactly
from transfers import connect

ALGORITHMS = ("ewtcp", "coupled", "lia", "olia", "balia")


def cc(*words, host=None, check=True) -> dict | subprocess.CompletedProcess:
    """Run `plait cc`; its JSON output, or the completed process if `check` is False."""
    command = [PLAIT, "cc", *map(str, words), *["--json"] * check]
    done = subprocess.run(host.command(*command) if host else command, capture_output=True, text=True)
    if not check:
        return done
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def net(pair):
    """A pair of hosts, while no other test uses the kernel's algorithms and none of plait's is loaded."""
    with no_algorithms_loaded("congestion control by BPF (struct_ops)"):
        yield pair
        pair.client.stop_programs()


class Connected:
    """An MPTCP connection with two subflows, on which the client has sent data."""

    def __init__(self, pair, port=9300):
        self.pair = pair
        self.near, self.far, self.listener = connect(pair, port)
        self.send(100_000)
        wait_for("second subflow", lambda: len(self.subflows()) == 2)

    def send(self, size: int):
        """Send random bytes and check that they arrive unchanged."""
        sent, got = random.randbytes(size), []
        reader = threading.Thread(target=lambda: got.append(receive_exactly(self.far, size)))
        reader.start()
        self.near.sendall(sent)
        reader.join(60)
        assert hashlib.sha256(got[0]).digest() == hashlib.sha256(sent).digest()

    def subflows(self, host=None) -> list[dict]:
        connections = cc("show", host=host or self.pair.client)["connections"]
        return [subflow for connection in connections for subflow in connection["subflows"]]

    def algorithms(self, host=None) -> set[str]:
        return {subflow["congestion_control"] for subflow in self.subflows(host)}

    def close(self):
        for each in (self.near, self.far, self.listener):
            each.close()


def test_algorithms_are_loaded_listed_and_unloaded(net):
    assert [each["name"] for each in cc("list")["algorithms"]] == list(ALGORITHMS)
    for name in ALGORITHMS:
        assert cc("load", name) == {
            "schema_version": 1,
            "loaded": name,
            "kernel_name": f"plait_{name}",
            "new": True,
        }
    assert available() == set(ALGORITHMS)
    assert cc("load", "lia")["new"] is False
    assert all(each["loaded"] for each in cc("list")["algorithms"])
    assert cc("unload", "lia") == {"schema_version": 1, "unloaded": [{"name": "lia", "sockets": 0}]}
    assert available() == set(ALGORITHMS) - {"lia"}
    assert len(cc("unload", "--all")["unloaded"]) == 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_namespace_uses_algorithm_for_every_subflow_until_unloaded(net, name):
    before = setting(net.client)
    cc("use", name, "--netns", net.client.name)
    assert setting(net.client) == f"plait_{name}"
    used = next(each for each in cc("list")["algorithms"] if each["name"] == name)["used_by"]
    assert [by["name"] for by in used] == [net.client.name]
    connected = Connected(net)
    assert connected.algorithms() == {f"plait_{name}"}
    assert all(subflow["increase"] is not None for subflow in connected.subflows())
    assert connected.algorithms(net.server) == {setting(net.server)}
    # Existing connections keep it; new ones get the previous setting.
    unloaded = cc("unload", name)["unloaded"]
    assert unloaded == [{"name": name, "sockets": 2}]
    assert setting(net.client) == before and name not in available()
    connected.send(2_000_000)
    assert connected.algorithms() == {f"plait_{name}"}
    connected.close()
    again = Connected(net, 9301)
    assert again.algorithms() == {before}
    again.close()


def test_disable_restores_the_previous_setting_of_a_namespace(net):
    net.client.run("sysctl", "-qw", f"{SETTING}=reno")
    for name in ("lia", "olia"):
        cc("use", name, host=net.client)
    assert setting(net.client) == "plait_olia"
    assert cc("disable", host=net.client)["disabled"] == "olia"
    assert setting(net.client) == "reno"
    done = cc("disable", host=net.client, check=False)
    assert done.returncode == 1 and "uses no algorithm" in done.stderr


def test_control_group_uses_algorithm_for_outgoing_and_accepted_connections(net):
    """Including the subflows that the kernel adds to both."""
    with group("cc") as directory:
        cc("use", "balia", "--cgroup", directory)
        outside = Connected(net)
        assert outside.algorithms() | outside.algorithms(net.server) == {setting(net.client)}
        outside.close()
        enter(directory)
        inside = Connected(net, 9301)
        inside.send(500_000)
        assert inside.algorithms() == inside.algorithms(net.server) == {"plait_balia"}
        inside.close()
        # Enabling another algorithm replaces the first.
        cc("use", "lia", "--cgroup", directory)
        paths = {each["name"]: each["used_by"] for each in cc("list")["algorithms"]}
        assert paths["balia"] == [] and paths["lia"][0]["path"].endswith(directory.name)
        second = Connected(net, 9302)
        assert second.algorithms() == {"plait_lia"}
        second.close()
        cc("disable", "--cgroup", directory)
        third = Connected(net, 9303)
        assert third.algorithms() == {setting(net.client)}
        third.close()


@pytest.mark.alone  # Another test's `doctor --clean` would remove them first.
def test_doctor_cleans_up_after_removed_groups_and_namespaces(net):
    with group("gone") as directory:
        cc("use", "lia", "--cgroup", directory)
    (pin,) = PINS.glob("lia@*")
    gone = f"{net.client.name}-gone"
    tool("ip", "netns", "add", gone)
    try:
        cc("use", "lia", "--netns", gone)
        (record,) = (each for each in RECORDS.iterdir())
    finally:
        tool("ip", "netns", "del", gone)
    assert record.exists()
    assert "which no longer exists" in tool(PLAIT, "cc", "list")
    removed = {entry["name"] for entry in json.loads(tool(PLAIT, "doctor", "--clean", "--json"))["removed"]}
    assert any(name.endswith(pin.name) for name in removed), removed
    assert any(name.endswith(f"congestion/{record.name}") for name in removed), removed
    assert not pin.exists() and not record.exists() and available() == {"lia"}


def test_killed_command_leaves_no_partial_state(net):
    kill_commands("cc", "lia", net.client, 25)
    before = setting(net.server)
    cc("load", "lia")
    cc("unload", "lia")
    assert not available() and setting(net.client) == before


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("load", "cubic"), 2, "expected ewtcp, coupled, lia, olia or balia"),
        (("unload", "lia"), 1, "not loaded"),
        (("use", "lia", "--netns", "no-such"), 1, "no-such"),
        (("use", "lia", "--cgroup", "/no/such"), 1, "/no/such"),
        (("use", "lia", "--cgroup", "/", "--netns", "x"), 2, "cannot be used with"),
        (("disable", "--cgroup", "/"), 1, "uses no algorithm"),
    ],
)
def test_errors_name_the_cause(net, arguments, status, message):
    done = cc(*arguments, check=False)
    assert done.returncode == status and message in done.stderr, done.stderr


def test_missing_privileges_are_reported_with_the_requirements(net):
    without = ("setpriv", "--bounding-set", "-bpf,-sys_admin,-perfmon,-net_admin")
    done = subprocess.run([*without, PLAIT, "cc", "load", "lia"], capture_output=True, text=True)
    assert done.returncode == 1 and "this requires root" in done.stderr and "6.4" in done.stderr
    found = subprocess.run([*without, PLAIT, "doctor", "--json"], capture_output=True)
    features = {each["name"]: each for each in json.loads(found.stdout)["features"]}
    feature = features["congestion control by BPF (struct_ops)"]
    assert not feature["present"] and "6.4" in feature["how_to_get"]


def test_connections_survive_algorithm_changes_and_path_cuts(net):
    """A small version of `tests/helpers/churn.py`."""
    from churn import Churn

    report = Churn(net, connections=40, seed=3).run()
    assert report["whole"] == 40 and report["switches"] > 3, report
    assert not report["kernel"], report


def test_python_module_matches_the_command(net, tmp_path):
    install(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(f"""
from plait import cc
cc.use("olia", netns={net.client.name!r})
olia = next(each for each in cc.algorithms() if each.name == "olia")
assert olia.loaded and [use.name for use in olia.used_by] == [{net.client.name!r}], olia
input()
(connection,) = cc.connections()
assert connection.algorithms == ["plait_olia"] and len(connection.subflows) == 2, connection
assert all(subflow.cwnd > 0 and subflow.rtt_ms > 0 and subflow.increase for subflow in connection.subflows)
assert cc.unload("olia") == 2
try:
    cc.unload("olia")
except cc.Error as error:
    assert "not loaded" in str(error)
else:
    raise SystemExit("expected an error")
""")
    environment = {**os.environ, "PLAIT": PLAIT}
    command = net.client.command(PYTHON, program)
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    wait_for("the algorithm", lambda: run.poll() is not None or setting(net.client) == "plait_olia")
    connected = Connected(net)
    _, errors = run.communicate("\n", timeout=30)
    assert run.returncode == 0, errors
    connected.close()


def test_python_block_enables_an_algorithm_and_restores_what_was_enabled(net, tmp_path):
    """For a namespace and a control group; blocks may be nested and end by an exception."""
    install(tmp_path)
    with group("block") as directory:
        (tmp_path / "program.py").write_text(f"""
import pathlib
from plait import cc
setting = lambda: pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
loaded = lambda: [each.name for each in cc.algorithms() if each.loaded]
users = lambda: {{each.name: len(each.used_by) for each in cc.algorithms() if each.used_by}}
before = setting()
cc.load("balia")
try:
    with cc.enabled("lia"):
        assert setting() == "plait_lia", setting()
        with cc.enabled("olia"), cc.enabled("balia", cgroup={str(directory)!r}):
            assert setting() == "plait_olia", setting()
            assert users() == {{"olia": 1, "balia": 1}}, users()
            with cc.enabled("lia", cgroup={str(directory)!r}):
                assert users() == {{"olia": 1, "lia": 1}}, users()
            assert users() == {{"olia": 1, "balia": 1}}, users()
        assert setting() == "plait_lia" and users() == {{"lia": 1}}, users()
        raise KeyError
except KeyError:
    pass
assert setting() == before and loaded() == ["balia"] and not users(), (setting(), loaded())
cc.unload("balia")
""")
        environment = {**os.environ, "PLAIT": PLAIT}
        command = net.client.command(PYTHON, tmp_path / "program.py")
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr


def test_documentation_example_works(net, tmp_path):
    install(tmp_path)
    (example,) = examples("from plait import cc\n")
    (tmp_path / "example.py").write_text(example)
    environment = {**os.environ, "PLAIT": PLAIT}
    command = net.client.command(PYTHON, tmp_path / "example.py")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)
    assert (done.stdout, done.stderr) == ("", "")
    assert setting(net.client) != "plait_lia"
