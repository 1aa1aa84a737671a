"""The command and the reference implementation (peer.py), which knows only docs/internals/protocol.md, as peers."""

import os
import subprocess

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

from gateways import start_peer
from hosts import tool, wait_for
from streams import REQUIRE, assert_echo, connect_by_socks, echo_server

QUESTION = bytes(range(256)) * 1000


# Modes, and the interfaces that the main connection and its witnesses use.
WAYS = {"stream": ("stream", "eth"), "sealed:1/1": ("sealed", "eth"), "sealed:2/2": ("sealed", "eth,wlan")}


@pytest.mark.parametrize("way", WAYS)
def test_reference_client_connects_to_serve(pair, way):
    mode, interfaces = WAYS[way]
    echo_server(pair.server)
    pair.serve("--mode", mode, "--require", to="127.0.0.1:9000")
    gateway = pair.proxy("--mode", mode, *REQUIRE)
    # The client's kernel would join an announced address at once.
    tool("ip", "-n", pair.client.name, "mptcp", "limits", "set", "add_addr_accepted", "0")
    client = start_peer(pair.client, gateway, "connect", mode, interfaces, pair.ETH, 8443,
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    answer, errors = client.communicate(QUESTION, timeout=60)
    assert client.returncode == 0 and answer == QUESTION, errors.decode()


def test_record_end_is_the_end_without_data_fin(pair):
    """Of the client's direction: the service answers and closes. The kernel may ignore DATA_FIN."""
    echo_server(pair.server)
    pair.serve("--mode", "sealed", "--require", to="127.0.0.1:9000")
    gateway = pair.proxy("--mode", "sealed", *REQUIRE)
    tool("ip", "-n", pair.client.name, "mptcp", "limits", "set", "add_addr_accepted", "0")
    client = start_peer(pair.client, gateway, "connect", "sealed", "eth", pair.ETH, 8443, stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, env={**os.environ, "PEER_NO_FIN": "1"})  # fmt: skip
    answer, errors = client.communicate(QUESTION, timeout=20)
    assert client.returncode == 0 and answer == QUESTION, errors.decode()
    wait_for("end", lambda: not any(each["connections"] for each in pair.status()))


@pytest.mark.parametrize("way", WAYS)
def test_proxy_connects_to_a_reference_server(pair, way):
    mode, interfaces = WAYS[way]
    gateway = pair.serve("--mode", mode, "--require", to="127.0.0.1:9000")
    server = start_peer(pair.server, gateway, "accept", mode, interfaces, "0.0.0.0", 9443)
    wait_for("peer", lambda: server.poll() is not None or pair.server.listens(9443))
    # The other link leads to the same address, too.
    tool("ip", "-n", pair.client.name, "route", "add", pair.ETH, "dev", "wlan", "metric", "1000")
    # Every interface that is up has a role, unless others are named.
    others = () if "wlan" in interfaces else ("--untrusted", "lo")
    pair.proxy("--mode", mode, *REQUIRE, *others)
    client = connect_by_socks(pair, pair.ETH, 9443)
    assert_echo(client, QUESTION)
    client.close()
    assert server.wait(60) == 0, server.stderr.read().decode()
