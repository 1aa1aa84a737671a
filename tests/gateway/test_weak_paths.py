"""Mode `sealed` with a second path that carries no witness: connections do without it, unless it is required."""

import time

import pytest
from gateways import report_of
from hosts import wait_for
from streams import NAMED, assert_echo, connect_by_socks, echo_server

RULES = {
    "silent": "iifname wlan drop",
    # As a middlebox may that forwards a connection's first packets only.
    "data is lost": "iifname wlan tcp flags & psh == psh drop",
}


def connect(pair) -> tuple[float, str]:
    """The seconds until a connection carries bytes, and its level."""
    began = time.monotonic()
    with connect_by_socks(pair) as client:
        assert_echo(client)
        took = time.monotonic() - began
        [connection] = report_of(pair, "proxy")["connections"]
    wait_for("its end", lambda: not report_of(pair, "proxy")["connections"])
    return took, connection["level"]


@pytest.mark.parametrize("path", RULES)
def test_path_without_witnesses_delays_the_first_connections_only(two_ways, path):
    echo_server(two_ways.server)
    two_ways.serve(to="127.0.0.1:9000")
    two_ways.proxy("--require", *NAMED)
    assert connect(two_ways)[1] == "2/2"
    with two_ways.server.packet_rules(prerouting=RULES[path]):
        first, second, *later = (connect(two_ways) for _ in range(5))
    assert {level for _, level in (first, second, *later)} == {"1/2"}
    assert first[0] < 4.5 and second[0] < 4.5
    # Waiting for a witness takes three.
    assert max(took for took, _ in later) < 2, later
    warnings = [line for line in two_ways.logged("proxy").splitlines() if line.startswith(" WARN")]
    assert sum("through wlan" in line for line in warnings) == 1, warnings


def test_path_that_works_again_has_a_witness_again(two_ways):
    echo_server(two_ways.server)
    two_ways.serve(to="127.0.0.1:9000")
    two_ways.proxy("--require", *NAMED)
    with two_ways.server.packet_rules(prerouting=RULES["silent"]):
        assert [connect(two_ways)[1] for _ in range(3)] == 3 * ["1/2"]
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
