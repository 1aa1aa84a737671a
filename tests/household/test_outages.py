"""What a household notices of cuts, new addresses, and ends of the programs at both ends: connections go on or are reset, and new ones
work soon."""

import os
import signal
import time

import pytest
from gateways import cgroups_of
from hosts import wait_for
from households import FAR, NAME, UPLINKS
from machines import state_of_machine
from streams import random_file

SIZE = 10_000_000
# How soon new connections must work.
SOON = 2.0
# Longer than any timeout of a handshake.
SUSPENDED = 20.0


class Download:
    """A download of a host of the LAN, and how it ended."""

    def __init__(self, household, file, name="downloaded"):
        self.file, self.target = file, household.directory / name
        options = ("-sS", "-m", "50", "-o", self.target)
        self.program = household.one.start("curl", *options, f"http://{FAR}/{file.name}")

    def wait_until_running(self):
        wait_for("data", lambda: self.target.exists() and self.target.stat().st_size > SIZE / 20)

    def end(self, seconds: float = 55) -> int:
        return self.program.wait(seconds)

    def assert_complete(self):
        assert self.end() == 0
        assert self.target.read_bytes() == self.file.read_bytes()

    def assert_complete_or_reset(self):
        """Never other bytes, and never an end in order before all has arrived."""
        status, got = self.end(), self.target.read_bytes()
        # curl(1): 56, failure in receiving network data, such as a reset.
        assert status in (0, 56), status
        assert got == self.file.read_bytes()[: len(got)]
        assert status or len(got) == SIZE


def works(household, host=None, timeout=SOON) -> float:
    """How long a new connection and a small download take; fails if that is not soon."""
    begin = time.monotonic()
    done = (host or household.two).run("curl", "-sS", "-m", str(timeout), f"http://{NAME}/small.bin")
    assert done.returncode == 0 and len(done.stdout) == 1000, done.stderr.decode() + household.router_log()
    return time.monotonic() - begin


@pytest.fixture
def running(household, documents):
    """A household that is up, and what it downloads."""
    file = random_file(documents, SIZE)
    random_file(documents, 1000, "small.bin")
    household.start_web(documents)
    household.set_up_exit()
    done = household.up()
    assert done.returncode == 0, done.stderr
    works(household)
    return household, file


@pytest.mark.parametrize("uplink", UPLINKS)
@pytest.mark.parametrize("kind", ["silent", "interface down", "address changed"])
def test_an_uplink_is_cut_and_restored(running, uplink, kind):
    """A download completes, and new connections work meanwhile."""
    household, file = running
    download = Download(household, file)
    download.wait_until_running()
    restore = household.cut(uplink, kind)
    took = [works(household, timeout=20) for _ in range(3)]
    restore()
    after = works(household)
    download.assert_complete()
    print(f"{kind} {uplink}: {[f'{each:.2f}' for each in took]} s during the cut, {after:.2f} s after")
    Download(household, file, "again").assert_complete()
    wait_for("both paths", lambda: sealed_by_both(household))


@pytest.mark.parametrize("moved", [False, True], ids=["", "elsewhere"])
def test_router_is_suspended_and_resumed(running, moved):
    """With the addresses of before or, on one uplink, another one: new connections work soon, and a download goes on or is reset."""
    household, file = running
    download = Download(household, file)
    download.wait_until_running()
    with household.suspended():
        time.sleep(SUSPENDED)
    if moved:
        household.cut("eth", "address changed")
    took = works(household)
    began = time.monotonic()
    download.assert_complete_or_reset()
    print(f"{took:.2f} s after it was resumed; the download had ended {time.monotonic() - began:.1f} s later")
    Download(household, file, "again").assert_complete()
    wait_for("both paths", lambda: sealed_by_both(household))


def sealed_by_both(household) -> bool:
    works(household, timeout=20)
    return any(each["level"] == "2/2" for each in household.report()["connections"])


def test_the_server_is_rebooted(running):
    """A download is complete or reset, soon after the server is back; new connections work as soon as the exit runs."""
    household, file = running
    download = Download(household, file)
    download.wait_until_running()
    household.server.power_off()
    for interface in ("lo", "outside"):
        household.server.ip(f"link set {interface} down")
    done = household.two.run("curl", "-sS", "-m", "1", f"http://{FAR}/small.bin")
    assert done.returncode != 0
    household.server.ip("link set lo up")
    household.server.ip("link set outside up")
    household.server.ip("route replace default via 11.0.3.1")
    household.server.ip("-6 addr replace 2a00:77:3::2/64 dev outside nodad")
    household.server.ip("-6 route replace default via 2a00:77:3::1")
    household.server.boot()
    household.start_exit()
    took = works(household)
    began = time.monotonic()
    download.assert_complete_or_reset()
    print(
        f"{took:.2f} s after the exit was back; the download had ended {time.monotonic() - began:.1f} s later"
    )
    Download(household, file, "again").assert_complete()


@pytest.mark.parametrize("options", [(), ("--killswitch",)], ids=["", "kill switch"])
def test_the_daemon_is_killed_and_started_again(running, options):
    """Connections of hosts of the LAN are reset, and new ones work as soon as `plait up` has returned."""
    household, file = running
    if options:
        household.down()
        assert household.up(*options).returncode == 0
    download = Download(household, file)
    download.wait_until_running()
    os.kill(household.client_pid(), signal.SIGKILL)
    # At once, not only when the daemon is back.
    download.assert_complete_or_reset()
    done = household.up(*options)
    assert done.returncode == 0 and "already" not in done.stdout, done.stdout + done.stderr
    took = works(household)
    print(f"{took:.2f} s after plait was up again")
    Download(household, file, "again").assert_complete()


@pytest.mark.alone
@pytest.mark.parametrize(
    ("options", "end"),
    [((), "down"), (("--killswitch",), "killed, then down")],
    ids=["down", "kill switch, killed"],
)
def test_nothing_is_left_on_the_router(household, documents, text, options, end):
    """After a cut, a new address and transfers, too."""
    household.start_web(documents)
    household.set_up_exit()
    # What the router knows of its exit and its key pair remain.
    before = state_of_machine(household.router)
    assert household.up(*options).returncode == 0
    changed = state_of_machine(household.router)
    assert changed["programs at the root"] != before["programs at the root"]
    assert changed["links"] != before["links"]
    household.cut("wlan", "silent")()
    for host in (household.one, household.two):
        done = host.run("curl", "-sS", "-m", "20", f"http://{NAME}/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode()
    pid = household.client_pid()
    if end != "down":
        os.kill(pid, signal.SIGKILL)
        wait_for("its end", lambda: pid not in household.router.processes())
    done = household.down()
    assert done.returncode == 0, done.stderr
    after = state_of_machine(household.router)
    for kind in before:
        assert after[kind] == before[kind], kind
    assert not cgroups_of(pid)
    # As before plait was installed.
    done = household.one.run("curl", "-sS", "-m", "20", f"http://{FAR}/text.txt")
    assert done.stdout == text.read_bytes(), done.stderr.decode()
