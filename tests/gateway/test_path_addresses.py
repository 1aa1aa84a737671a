"""Paths that are named by an address of their interface."""

import json

import pytest
from gateways import report_of
from hosts import PLAIT, wait_for
from streams import XOR64, assert_echo, connect_by_socks, echo_server, start_gateways

CLIENT = {"eth": "10.77.1.1", "wlan": "10.77.2.1", "eth6": "fd77:1::1", "wlan6": "fd77:2::1"}


def connection(pair) -> dict:
    return report_of(pair, "proxy")["connections"][0]


def assert_starts_from(pair, address: str, to: str):
    """A connection has one subflow, from this address, until its first flight is acknowledged, and then one more."""
    for announced in (pair.ETH, pair.ETH6):
        pair.server.ip(f"mptcp endpoint add {announced} dev eth signal")
    with connect_by_socks(pair, to) as client:
        (first,) = connection(pair)["subflows"]
        assert first["local"].rpartition(":")[0].strip("[]") == address
        assert_echo(client)
        wait_for("second subflow", lambda: len(connection(pair)["subflows"]) == 2)
    wait_for("the end of the connection", lambda: not report_of(pair, "proxy")["connections"])


@pytest.mark.parametrize(
    ("name", "trusted", "to"),
    [
        ("eth", "10.77.1.1", "10.77.1.2"),
        ("wlan", "10.77.2.1", "10.77.2.2"),
        ("eth6", "fd77:1::1", "fd77:1::2"),
        ("wlan6", "fd77:2:0:0::1", "fd77:2::2"),
    ],
)
def test_connections_start_from_the_trusted_address(pair, name, trusted, to):
    start_gateways(pair, *XOR64, "--require", outbound=("--trusted", trusted))
    assert_starts_from(pair, CLIENT[name], to)


def test_connections_start_from_the_named_one_of_several_addresses(pair):
    pair.client.ip("addr add 10.77.1.9/24 dev eth")
    start_gateways(pair, *XOR64, "--require", outbound=("--trusted", "10.77.1.9"))
    assert_starts_from(pair, "10.77.1.9", pair.ETH)


def test_an_address_of_one_family_trusts_the_interface_for_the_other(pair):
    start_gateways(pair, *XOR64, "--require", outbound=("--trusted", CLIENT["wlan"]))
    assert_starts_from(pair, CLIENT["wlan6"], pair.WLAN6)


def test_configuration_file_names_addresses(pair, tmp_path):
    configuration = tmp_path / "plait.toml"
    configuration.write_text('[paths]\n"10.77.2.1" = "trusted"\n"fd77:1::1" = "untrusted"\n')
    echo_server(pair.server)
    pair.serve(*XOR64, "--require", to="127.0.0.1:9000")
    pair.proxy(*XOR64, "--require", "--config", configuration)
    assert_starts_from(pair, CLIENT["wlan"], pair.WLAN)
    done = pair.client.run(PLAIT, "paths", "--json", "--config", configuration, text=True)
    roles = {path["interface"]: path["role"] for path in json.loads(done.stdout)["paths"]}
    assert (roles["wlan"], roles["eth"]) == ("trusted", "untrusted")


def test_sealed_counts_paths_named_by_addresses(pair):
    """Each name is a path, whichever interface it is of."""
    pair.add_route_by_wlan()
    echo_server(pair.server)
    pair.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    pair.proxy("--require=all-paths", "--trusted", CLIENT["eth"], "--untrusted", CLIENT["wlan6"])
    with connect_by_socks(pair) as client:
        assert_echo(client)
        wait_for("both paths", lambda: connection(pair)["level"] == "2/2")


def test_two_names_of_one_interface_do_not_make_two_paths(pair):
    echo_server(pair.server)
    pair.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    pair.proxy("--require=all-paths", "--trusted", "eth", "--trusted", CLIENT["eth"])
    with pytest.raises(AssertionError, match="SOCKS reply 0x0[1-6]"):
        connect_by_socks(pair)


def test_connections_fail_while_no_interface_has_the_address(pair):
    pair.client.ip(f"addr del {CLIENT['eth']}/24 dev eth")
    start_gateways(pair, *XOR64, "--require", outbound=("--trusted", CLIENT["eth"]))
    warning = f"no interface has the address {CLIENT['eth']}"
    wait_for("the warning", lambda: warning in pair.logged("proxy"))
    with pytest.raises(AssertionError, match="SOCKS reply 0x0[1-6]"):
        connect_by_socks(pair, pair.WLAN)
    pair.client.ip(f"addr add {CLIENT['eth']}/24 dev eth")
    with connect_by_socks(pair) as client:
        assert_echo(client)
        assert connection(pair)["subflows"][0]["local"].startswith(CLIENT["eth"])


def test_plait_paths_warns_of_an_unknown_address(pair):
    done = pair.client.run(PLAIT, "paths", "--trusted", "192.0.2.99", text=True)
    assert done.returncode == 0 and "no interface has the address 192.0.2.99" in done.stderr
