"""Mode `sealed` with a second path whose witness comes late or never: connections do not wait for it, unless it is required."""

import time

import pytest
from controllers import DelayedPair, built
from gateways import report_of
from hosts import unique_id, wait_for
from streams import NAMED, assert_echo, connect_by_socks, echo_server

RULES = {
    "silent": "iifname wlan drop",
    # As a middlebox may that forwards a connection's first packets only.
    "data is lost": "iifname wlan tcp flags & psh == psh drop",
}


class SlowerPair(DelayedPair):
    """A second path that is slower than the first, but not so much that no connection waits for it."""

    LINKS = {"eth": ("20mbit", "10ms"), "wlan": ("20mbit", "45ms")}


def connect(pair) -> tuple[float, str]:
    """The seconds until a connection carries bytes, and its level."""
    began = time.monotonic()
    with connect_by_socks(pair) as client:
        assert_echo(client)
        took = time.monotonic() - began
        [connection] = report_of(pair, "proxy")["connections"]
    wait_for("its end", lambda: not report_of(pair, "proxy")["connections"])
    return took, connection["level"]


def levels(pair) -> dict[str, tuple[str, int]]:
    """The level of the only connection, and its key updates, at both ends."""
    connections = {command: report_of(pair, command)["connections"][0] for command in ("proxy", "serve")}
    return {command: (each["level"], each["key_updates"]) for command, each in connections.items()}


def test_late_witness_raises_the_level_of_a_running_connection(two_ways):
    echo_server(two_ways.server)
    two_ways.serve("--mode", "sealed", to="127.0.0.1:9000")
    two_ways.proxy("--mode", "sealed", "--require", *NAMED)
    with two_ways.server.packet_rules(prerouting=RULES["silent"]):
        began = time.monotonic()
        client = connect_by_socks(two_ways)
        assert_echo(client)
        assert time.monotonic() - began < 1
        assert levels(two_ways) == {"proxy": ("1/2", 0), "serve": ("1/2", 0)}
    # The next SYN comes a second after the first.
    wait_for("witness", lambda: levels(two_ways) == {"proxy": ("2/2", 1), "serve": ("2/2", 1)}, timeout=10)
    assert_echo(client)
    client.close()
    for command in ("proxy", "serve"):
        log = two_ways.logged(command)
        assert "refused" not in log, log


@pytest.mark.parametrize("path", RULES)
def test_path_without_witnesses_delays_the_first_connection_only(two_ways, path):
    echo_server(two_ways.server)
    two_ways.serve(to="127.0.0.1:9000")
    two_ways.proxy("--require", *NAMED)
    wait_for("prompt witness", lambda: connect(two_ways)[1] == "2/2")
    with two_ways.server.packet_rules(prerouting=RULES[path]):
        first, *later = (connect(two_ways) for _ in range(6))
        assert {level for _, level in (first, *later)} == {"1/2"}
        # Messages that do not arrive are waited for for a second, once.
        assert first[0] < 2
        assert max(took for took, _ in later) < 0.8, later

        def warnings() -> list[str]:
            return [
                line
                for line in two_ways.logged("proxy").splitlines()
                if "WARN" in line and "through wlan" in line
            ]

        wait_for("warning", warnings)
        assert len(warnings()) == 1, warnings()


def test_slower_path_is_waited_for_by_the_first_connections_only(tmp_path):
    with built(SlowerPair(unique_id(), tmp_path)) as pair:
        pair.add_route_by_wlan()
        echo_server(pair.server)
        pair.serve(to="127.0.0.1:9000")
        pair.proxy("--require", *NAMED)
        wait_for("connection that does not wait", lambda: connect(pair)[1] == "1/2", timeout=20)
        # Several are needed until it counts as fast again.
        assert connect(pair)[1] == "1/2"
        with connect_by_socks(pair) as client:
            assert_echo(client)
            wait_for("witness", lambda: levels(pair)["proxy"][0] == "2/2", timeout=10)


def test_path_that_works_again_has_a_witness_again(two_ways):
    echo_server(two_ways.server)
    two_ways.serve(to="127.0.0.1:9000")
    two_ways.proxy("--require", *NAMED)
    with two_ways.server.packet_rules(prerouting=RULES["silent"]):
        assert [connect(two_ways)[1] for _ in range(3)] == 3 * ["1/2"]
    # Several that come in time make it one that is waited for.
    wait_for("witness", lambda: connect(two_ways)[1] == "2/2", timeout=20)


@pytest.mark.parametrize("path", RULES)
def test_required_witness_is_waited_for_every_time(two_ways, path):
    echo_server(two_ways.server)
    two_ways.serve(to="127.0.0.1:9000")
    two_ways.proxy("--require=all-paths", *NAMED)
    with two_ways.server.packet_rules(prerouting=RULES[path]):
        for _ in range(3 if path == "silent" else 1):
            with pytest.raises(AssertionError, match="SOCKS reply"):
                connect_by_socks(two_ways)
    assert connect(two_ways)[1] == "2/2"
