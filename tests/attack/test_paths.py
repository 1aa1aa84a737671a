"""Required paths: an interface goes away, and a man in the middle is on the only path that is left."""

import random

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import attacker
from attack_matrix import Network, Outcome, port
from hosts import PLAIT, reason_to_skip, unique_id

TEXT = random.Random(1).randbytes(100_000)


@pytest.fixture
def network(tmp_path):
    """Two paths. The gateways of `sealed` name both interfaces, the others only the trusted one."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    network = Network(unique_id(), tmp_path, 2)
    try:
        network.build()
        network.start(TEXT)
        yield network
    finally:
        network.remove()


def lose_second_interface(network: Network):
    """As when a VPN ends: the interface no longer exists."""
    network.client.ip("link del wlan")


def ask_through_a_man_in_the_middle(network: Network, gateway: str) -> Outcome:
    """One connection, while he is active on the main path and absent from the other."""
    actions = ("intercept", "")
    with attacker.attack("intercept", network.routers[0]):
        network.attacker.prepare(port(gateway), actions)
        outcome = network.ask(gateway, on_every_path=False)
        outcome.attacker_read, outcome.attacker_end = network.attacker.result()
    return outcome


@pytest.mark.parametrize("gateway", ["sealed by two paths", "sealed"])
def test_connection_by_the_only_path_left_is_refused(network, gateway):
    complete = network.ask(gateway, on_every_path=True)
    assert (complete.verdict, complete.level) == ("secret", "2/2")
    lose_second_interface(network)
    outcome = ask_through_a_man_in_the_middle(network, gateway)
    assert (outcome.verdict, outcome.ended, outcome.attacker_read) == ("detected", "refused", b""), outcome
    assert outcome.detected_by == "too few witnesses"
    # Nor is it carried without an attacker: nothing tells the two apart.
    assert network.ask(gateway, on_every_path=False).ended == "refused"


def test_without_a_required_number_he_reads_the_connection_and_plait_says_that_one_path_is_left(network):
    """Proves that the attack is real."""
    gateway = "sealed at any level"
    lose_second_interface(network)
    outcome = ask_through_a_man_in_the_middle(network, gateway)
    assert (outcome.verdict, outcome.level) == ("broken", "1/1"), outcome
    for command in ("proxy", "serve"):
        log = (network.directory / f"{command} {gateway}.log").read_text()
        assert "are sealed (single path)" in log and "--require=paths:2" in log


@pytest.mark.parametrize("named", [(), ("--trusted", "eth")], ids=["none", "one"])
def test_all_paths_are_refused_at_start_unless_two_interfaces_are_named(pair, named):
    """An unnamed interface would be missed by nobody once it is gone."""
    options = ("--mode", "sealed", "--require=all-paths", *named)
    for command in (("proxy", *options), ("run", *options, "--", "true")):
        done = pair.client.run(PLAIT, *command, text=True, timeout=20)
        assert done.returncode == 1, done.stderr
        assert "expected 2 to 16 interfaces" in done.stderr and "--require=paths:2" in done.stderr
