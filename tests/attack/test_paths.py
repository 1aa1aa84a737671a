"""Required paths: an interface goes away, and a man in the middle is on the only path that is left."""

import random
import re
import socket
import threading

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import attacker
from attack_matrix import Network, Outcome, port
from hosts import PLAIT, reason_to_skip, unique_id, wait_for
from streams import connect_by_socks

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


def failures(network: Network, gateway: str) -> dict[str, int]:
    """The failed handshakes that the client's gateway counted, by reason."""
    counted = network.status(gateway)["proxy"]["handshake_failures"]
    return {reason: count for reason, count in counted.items() if count}


def warnings(network: Network, gateway: str, command: str = "proxy") -> list[str]:
    log = (network.directory / f"{command} {gateway}.log").read_text()
    return [line for line in log.splitlines() if " WARN " in line]


def test_detected_man_in_the_middle_is_a_warning_that_names_his_path(network):
    """He is absent from the other path, which tells the ends."""
    outcome = ask_through_a_man_in_the_middle(network, "sealed")
    assert (outcome.verdict, outcome.detected_by) == ("detected", "REPLY not authentic")
    [warning] = [line for line in warnings(network, "sealed") if "refused" in line]
    assert "REPLY failed authentication" in warning
    assert "somebody on the path through eth may be intercepting" in warning
    assert failures(network, "sealed") == {"authentication": 1}
    status = network.client.run(PLAIT, "status", text=True).stdout
    assert "failed handshakes: 1 authentication" in status


def test_late_witness_reveals_the_man_in_the_middle(network):
    """The other path is silent at first: he reads the first bytes. Its witness comes with the next SYN, a second later."""
    gateway, other = "sealed at any level", network.routers[1]
    question, request = b"what is said at first", network.service.expect()
    with attacker.attack("intercept", network.routers[0]):
        network.attacker.prepare(port(gateway), ("intercept", ""))
        with other.packet_rules(forward="drop"):
            client = ask_by_socks(network, gateway, question)
        with client, pytest.raises(ConnectionResetError):
            while client.recv(65536):
                pass
        read, _ = network.attacker.result()
    assert question in read and request.received == question, "the attack is real"
    [warning] = [line for line in warnings(network, gateway) if "refused" in line]
    assert "the confirmation on path 1 is wrong: an attacker on another path is in the middle" in warning
    assert "somebody on the path through eth may be intercepting" in warning
    assert failures(network, gateway) == {"authentication": 1}
    # From now on connections wait for every witness.
    other.add_packet_rules(forward="drop")
    timer = threading.Timer(0.3, other.remove_packet_rules)
    timer.start()
    with ask_by_socks(network, gateway, question):
        assert network.status(gateway)["proxy"]["connections"][-1]["level"] == "2/2"
    timer.join()


def ask_by_socks(network: Network, gateway: str, question: bytes) -> socket.socket:
    """A connection that has had the first bytes of the answer."""
    proxy = "127.0.0.1", 1080 + port(gateway) - port("off")
    client = connect_by_socks(network, attacker.SERVER, port(gateway), proxy=proxy)
    client.sendall(question)
    assert len(client.recv(64)) == 64
    return client


def exported(network: Network) -> dict[str, float]:
    """`plait_handshake_failures_total` of `plait metrics`, by reason."""
    text = network.client.tool("curl", "-sS", "http://127.0.0.1:9464/metrics")
    found = re.findall(r'^plait_handshake_failures_total{reason="(\w+)"} (\S+)$', text, re.MULTILINE)
    return {reason: float(count) for reason, count in found}


def test_warnings_of_failed_handshakes_are_limited_and_each_failure_is_counted(network):
    gateway, attempts = "sealed by two paths", 8
    network.client.start(PLAIT, "metrics", "--interval", "200ms", log="metrics.log")
    wait_for("metrics", lambda: network.client.listens(9464))
    before = exported(network)["too_few_paths"]
    lose_second_interface(network)
    for _ in range(attempts):
        assert network.ask(gateway, on_every_path=False).ended == "refused"
    assert failures(network, gateway) == {"too_few_paths": attempts}
    refused = [line for line in warnings(network, gateway) if "refused" in line]
    assert len(refused) == 5
    assert all("blocks the others to intercept the path through eth" in line for line in refused)
    wait_for("count", lambda: exported(network)["too_few_paths"] >= before + attempts)
