"""Python controllers that run, fail, hang, or are replaced or killed."""

import signal
import statistics
import time

import pytest
from controllers import POLICIES, RATE, alone, distant, joined, names, run, start, work  # noqa: F401
from disturbance import measuring
from hosts import wait_for
from package import examples
from transfers import Download

(DOCUMENTED,) = examples("policy.run(")


def test_the_documented_controller_limits_is_replaced_and_expires_when_killed(work, distant):
    pair = distant
    assert len(DOCUMENTED.splitlines()) <= 40
    (work / "controller.py").write_text(DOCUMENTED)
    alone(pair)
    load = Download(pair, pair.ETH)
    assert load.mbps() > 0.7 * RATE
    first = start(work, pair.client, "controller.py", "eth", "4e6")
    time.sleep(1)
    assert load.mbps(3) == pytest.approx(4, rel=0.1)
    second = start(work, pair.client, "controller.py", "eth", "12e6")
    assert first.wait(60) == 1
    time.sleep(1)
    assert load.mbps(3) == pytest.approx(12, rel=0.1)
    second.send_signal(signal.SIGKILL)
    # It expires 2 s after the controller's last renewal.
    with measuring(0.1):
        wait_for("the expiry", lambda: names(work, pair.client) == [], timeout=4)
    wait_for("end of the limit", lambda: load.mbps(1) > 0.7 * RATE)
    # Its expired policy is removed by the next change.
    run(work, "load(Policy('other', []))\nunload('other')\nassert not policies()", pair.client)
    load.close()


HELD = """
import time
class Held:
    interval = 0.1
    expiry = 1.5
    def tick(self, view):
        for subflow in view.subflows:
            yield Limit(subflow, "4mbit")
        if view.connections and {when}:
            {then}
run(Held(), "held")
"""


def test_a_failed_controller_reverts_its_actions(work, distant):
    pair = distant
    alone(pair)
    load = Download(pair, pair.ETH)
    then = "raise LookupError('something is not there')"
    done = run(work, HELD.format(when="0 < view.connections[0].subflows[0].receive_rate < 0.6e6", then=then),
               pair.client, check=False)  # fmt: skip
    assert done.returncode == 1 and "something is not there" in done.stderr
    assert names(work, pair.client) == []
    wait_for("the full rate", lambda: load.mbps(0.5) > 0.7 * RATE)
    load.close()


def test_actions_of_a_hung_controller_expire(work, distant):
    pair = distant
    alone(pair)
    load = Download(pair, pair.ETH)
    (work / "hang.py").write_text(
        "from plait.policy import *\n" + HELD.format(when="time.monotonic() > begun + 2", then="time.sleep(60)")
        .replace("class Held", "begun = time.monotonic()\nclass Held")
    )  # fmt: skip
    program = start(work, pair.client, "hang.py")
    wait_for("a limit", lambda: load.mbps(0.5) < 6)
    with measuring(0.1):
        wait_for("its end", lambda: load.mbps(0.5) > 0.7 * RATE, timeout=8)
    assert program.poll() is None
    load.close()


def test_sigterm_removes_the_policy(work, pair):
    program = start(work, pair.client, POLICIES / "small-flows.py")
    assert names(work, pair.client) == ["small-flows"]
    program.terminate()
    assert program.wait(60) == 128 + signal.SIGTERM
    assert names(work, pair.client) == []


BACKUPS = """
import time
class Turn:
    interval = 0.2
    begun = None
    def tick(self, view):
        # Not in the first tick, which loads the programs.
        if view.elapsed and not self.begun:
            self.begun = time.monotonic()
        past = time.monotonic() - self.begun if self.begun else 0
        for subflow in view.subflows:
            if subflow.joined:
                print(past, subflow.backup_local, subflow.backup_remote, subflow.receive_rate, flush=True)
                # The last backup is still set when the controller ends.
                if past < 3 or 6 < past:
                    yield Backup(subflow)
run(Turn(), "turn", ticks=45)
"""


@pytest.mark.alone
def test_backups_are_set_and_cleared_on_idle_subflows(work, distant):
    load = Download(distant, distant.ETH)
    wait_for("second subflow", lambda: joined(distant.client))
    ticks = [line.split() for line in run(work, BACKUPS, distant.client).stdout.splitlines()]

    def rate(first: float, last: float) -> float:
        rates = [float(rate) for past, _, _, rate in ticks if first < float(past) < last]
        return statistics.mean(rates) * 8e-6

    assert rate(2, 3) < 1 and rate(5, 6) > 0.2 * RATE and rate(7.5, 9) < 1
    assert "True" in {remote for past, _, remote, _ in ticks if 2 < float(past) < 3}
    time.sleep(1)
    # The controller has ended and reverted it.
    assert load.mbps(2) > 1.2 * RATE
    load.close()
