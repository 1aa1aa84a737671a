"""Expired policies: what dead or hung controllers leave, and how it is reverted."""

import contextlib
import json
import os
import pathlib
import signal
import time

import pytest
from controllers import RATE, backup_flags_received, distant, joined, names, run, start, work  # noqa: F401
from disturbance import measuring
from hosts import PLAIT, wait_for
from package import PYTHON
from transfers import Download, counters

from policies import listed, plait

BACKUPS = """
from plait.policy import Backup, run
class Back:
    interval = 0.1
    expiry = 2.0
    def tick(self, view):
        return [Backup(subflow) for subflow in view.subflows if subflow.joined]
run(Back(), "back")
"""
KILLED_ONCE_IT_SET_BACKUPS = """
import os
import signal
from plait.policy import Backup, run
class Back:
    interval = 0.01
    expiry = 2.0
    done = False
    def tick(self, view):
        if self.done:
            os.kill(os.getpid(), signal.SIGKILL)
        actions = [Backup(subflow) for subflow in view.subflows if subflow.joined]
        self.done = bool(actions)
        return actions
run(Back(), "back")
"""
NOTHING = """
from plait.policy import run
class Nothing:
    interval = 0.1
    expiry = 0.2
    def tick(self, view):
        return []
run(Nothing(), "{name}")
"""


def priorities_received(pair) -> list[int]:
    """The number of MP_PRIO options each end has received."""
    return [counters(host)["MPTcpExtMPPrioRx"] for host in (pair.client, pair.server)]


def guards(pair) -> list[str]:
    """The guard processes on the client."""
    commands = []
    for pid in pair.client.run("ip", "netns", "pids", pair.client.name, text=True).stdout.split():
        with contextlib.suppress(FileNotFoundError):
            commands.append(pathlib.Path("/proc", pid, "cmdline").read_text())
    return [command for command in commands if "guard_policy" in command]


def start_backup_controller(work, pair):
    """A download over two paths and a controller that makes one of them a backup."""
    download = Download(pair, pair.ETH)
    wait_for("second subflow", lambda: joined(pair.client))
    (work / "back.py").write_text(BACKUPS)
    controller = start(work, pair.client, "back.py")
    wait_for("backups", lambda: backup_flags_received(pair) == [True, True])
    # Data that is already queued on the backup may take a while.
    wait_for("one path", lambda: download.mbps(0.5) < 1.2 * RATE)
    assert len(guards(pair)) == 1
    return download, controller


@pytest.mark.alone
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_backups_of_a_dead_controller_are_reverted_after_the_expiry(work, distant, end):
    download, controller = start_backup_controller(work, distant)
    before = priorities_received(distant)
    with measuring(0.1):
        controller.send_signal(end)
        since = time.monotonic()
        wait_for("end of the backups", lambda: backup_flags_received(distant) == [False, False])
        took = time.monotonic() - since
        # The expiry is 2 s; reverting takes a wake-up of the guard, and of this test.
        assert took < 3
    assert all(now > then for now, then in zip(priorities_received(distant), before, strict=True))
    wait_for("end of the policy", lambda: run(work, "print(policies())", distant.client).stdout == "[]\n")
    wait_for("end of the guard", lambda: not guards(distant))
    wait_for("both paths", lambda: download.mbps(1) > 1.2 * RATE)
    download.close()


def test_backups_of_a_controller_that_dies_at_once_are_reverted(work, distant):
    download = Download(distant, distant.ETH)
    wait_for("second subflow", lambda: joined(distant.client))
    (work / "back.py").write_text(KILLED_ONCE_IT_SET_BACKUPS)
    environment = os.environ | {"PYTHONPATH": str(work)}
    controller = distant.client.start(PYTHON, "back.py", log="back.log", cwd=work, env=environment)
    assert controller.wait(60) == -signal.SIGKILL
    wait_for("end of the guard", lambda: not guards(distant))
    wait_for("end of the backups", lambda: backup_flags_received(distant) == [False, False])
    assert names(work, distant.client) == []
    wait_for("both paths", lambda: download.mbps(1) > 1.2 * RATE)
    download.close()


@pytest.mark.alone
def test_a_resumed_controller_sets_and_reverts_its_backups_again(work, distant):
    download, controller = start_backup_controller(work, distant)
    controller.send_signal(signal.SIGSTOP)
    wait_for("end of the backups", lambda: backup_flags_received(distant) == [False, False])
    wait_for("end of the guard", lambda: not guards(distant))
    controller.send_signal(signal.SIGCONT)
    wait_for("backups", lambda: backup_flags_received(distant) == [True, True])
    controller.terminate()
    controller.wait(60)
    wait_for("end of the backups", lambda: backup_flags_received(distant) == [False, False])
    assert not guards(distant)
    download.close()


def test_replacing_a_controller_reverts_its_backups(work, distant):
    download, controller = start_backup_controller(work, distant)
    (work / "nothing.py").write_text(NOTHING.format(name="back"))
    start(work, distant.client, "nothing.py")
    assert controller.wait(60) == 1
    wait_for("end of the backups", lambda: backup_flags_received(distant) == [False, False])
    wait_for("end of the guard", lambda: not guards(distant))
    # With its expiry of 0.2 s it expires for a moment on a busy machine.
    wait_for("policy", lambda: names(work, distant.client) == ["back"])
    download.close()


@pytest.mark.parametrize("as_json", [False, True])
def test_unload_reports_an_expired_policy(work, pair, as_json):
    (work / "nothing.py").write_text(NOTHING.format(name="nothing"))
    controller = start(work, pair.client, "nothing.py")
    controller.kill()
    wait_for("expiry", lambda: not names(work, pair.client))
    (policy,) = listed(pair.client)["policies"]
    assert policy["name"] == "nothing" and policy["remaining_s"] == 0
    output = plait(pair.client, "unload", "nothing", *(["--json"] if as_json else []))
    if as_json:
        assert json.loads(output) == {"schema_version": 1, "unloaded": [], "expired": ["nothing"]}
    else:
        assert output == "expired and removed: nothing\n"
    assert listed(pair.client)["policies"] == []
    assert "no policy named 'nothing'" in plait(pair.client, "unload", "nothing", code=1)


def test_missing_interfaces_and_cgroups_are_reported(pair):
    text = """
        [[chains]]
        name = "waiting"
        hook = "egress"
        interfaces = ["eth", "nowhere0"]
        select = "not path(nowhere1) and not cgroup(/nowhere)"
        actors = [{ redirect = "nowhere2" }]
    """
    file = pair.directory / "waiting.toml"
    file.write_text(text)
    done = pair.client.run(PLAIT, "policy", "load", file, "--json", text=True)
    absent = ["/nowhere", "nowhere0", "nowhere1", "nowhere2"]
    assert done.returncode == 0 and json.loads(done.stdout)["absent"] == absent
    assert f"{', '.join(absent)} not found" in done.stderr
    assert listed(pair.client)["policies"][0]["absent"] == absent
    assert f"MISSING: {', '.join(absent)}" in plait(pair.client, "list")
