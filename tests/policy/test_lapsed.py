"""What controllers leave that cannot end as they should, and who takes it back."""

import contextlib
import json
import pathlib
import re
import signal
import time

import pytest
from controllers import distant, joined, names, run, start, work  # noqa: F401
from hosts import PLAIT, wait_for
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
NOTHING = """
from plait.policy import run
class Nothing:
    interval = 0.1
    expiry = 0.2
    def tick(self, view):
        return []
run(Nothing(), "{name}")
"""


def are_backups(pair) -> list[bool]:
    """Whether each end's socket has heard that the other wants a subflow as a backup, by ss."""

    def flags(host) -> str:
        said = host.run("ss", "-HtinO", "state", "established", text=True).stdout
        return "".join(re.findall(r"tcp-ulp-mptcp flags:(\w+)", said))

    return ["B" in flags(host) for host in (pair.client, pair.server)]


def told(pair) -> list[int]:
    """How often each end was told by MP_PRIO."""
    return [counters(host)["MPTcpExtMPPrioRx"] for host in (pair.client, pair.server)]


def guards(pair) -> list[str]:
    """The processes that wait for the end of a controller on the client."""
    commands = []
    for pid in pair.client.run("ip", "netns", "pids", pair.client.name, text=True).stdout.split():
        with contextlib.suppress(FileNotFoundError):
            commands.append(pathlib.Path("/proc", pid, "cmdline").read_text())
    return [command for command in commands if "guard_policy" in command]


def hold_back(work, pair):
    """A download over two paths, of which a controller has made one a backup."""
    download = Download(pair, pair.ETH)
    wait_for("second subflow", lambda: joined(pair.client))
    (work / "back.py").write_text(BACKUPS)
    controller = start(work, pair.client, "back.py")
    wait_for("backups", lambda: are_backups(pair) == [True, True])
    time.sleep(1)
    assert download.mbps() < 60
    assert len(guards(pair)) == 1
    return download, controller


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_backups_are_taken_back_within_the_expiry(work, distant, end):
    download, controller = hold_back(work, distant)
    before = told(distant)
    controller.send_signal(end)
    since = time.monotonic()
    wait_for("their end", lambda: are_backups(distant) == [False, False])
    assert time.monotonic() - since < 3, "the expiry is 2 s"
    assert all(now > then for now, then in zip(told(distant), before, strict=True))
    wait_for("end of the policy", lambda: run(work, "print(loaded())", distant.client).stdout == "[]\n")
    wait_for("end of the guard", lambda: not guards(distant))
    # Both paths carry again.
    assert download.mbps(2) > 60
    download.close()


def test_backups_said_again_after_a_hang_are_taken_back(work, distant):
    download, controller = hold_back(work, distant)
    controller.send_signal(signal.SIGSTOP)
    wait_for("their end", lambda: are_backups(distant) == [False, False])
    wait_for("end of the guard", lambda: not guards(distant))
    # It goes on where it was.
    controller.send_signal(signal.SIGCONT)
    wait_for("backups", lambda: are_backups(distant) == [True, True])
    controller.terminate()
    controller.wait(5)
    wait_for("their end", lambda: are_backups(distant) == [False, False])
    assert not guards(distant)
    download.close()


def test_who_replaces_a_controller_takes_its_backups_back(work, distant):
    download, controller = hold_back(work, distant)
    (work / "nothing.py").write_text(NOTHING.format(name="back"))
    start(work, distant.client, "nothing.py")
    assert controller.wait(5) == 1
    wait_for("their end", lambda: are_backups(distant) == [False, False])
    wait_for("end of the guard", lambda: not guards(distant))
    assert names(work, distant.client) == ["back"]
    download.close()


@pytest.mark.parametrize("json_asked", [False, True])
def test_a_policy_that_has_lapsed_is_unloaded_as_such(work, pair, json_asked):
    (work / "nothing.py").write_text(NOTHING.format(name="nothing"))
    controller = start(work, pair.client, "nothing.py")
    controller.kill()
    wait_for("its end", lambda: not names(work, pair.client))
    (policy,) = listed(pair.client)["policies"]
    assert policy["name"] == "nothing" and policy["remaining_s"] == 0
    said = plait(pair.client, "unload", "nothing", *(["--json"] if json_asked else []))
    if json_asked:
        assert json.loads(said) == {"unloaded": [], "expired": ["nothing"]}
    else:
        assert said == "expired and removed: nothing\n"
    assert listed(pair.client)["policies"] == []
    assert "no policy named 'nothing'" in plait(pair.client, "unload", "nothing", code=1)


def test_what_is_not_there_is_told(pair):
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
    assert f"there is no {', '.join(absent)} here" in done.stderr
    assert listed(pair.client)["policies"][0]["absent"] == absent
    assert f"NOT THERE: {', '.join(absent)}" in plait(pair.client, "list")
