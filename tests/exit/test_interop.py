"""The command and the reference implementation (peer.py), which knows only docs/internals/protocol.md, as client and exit."""

import base64
import os
import subprocess

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from exits import FAR, NAME, exit_behind
from gateways import start_peer
from hosts import wait_for
from peer_crypto import public_key
from streams import assert_echo, connect_by_socks, echo_server

QUESTION = bytes(range(256)) * 1000


def text_of(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


@pytest.mark.parametrize("host", [FAR, NAME])
@pytest.mark.parametrize("interfaces", ["eth", "eth,wlan"])
def test_reference_client_uses_an_exit(exit, host, interfaces):
    echo_server(exit.far, address=FAR)
    exit.serve(clients='"any"')
    gateway = exit.proxy()
    exit.client.ip("mptcp limits set add_addr_accepted 0")
    static = os.urandom(32).hex()
    client = start_peer(exit.client, gateway, "connect", "sealed", interfaces, exit.pair.ETH, 8443,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                        env={**os.environ, "PEER_EXIT": f"{host}:9000", "PEER_STATIC": static})  # fmt: skip
    answer, errors = client.communicate(QUESTION, timeout=60)
    assert client.returncode == 0 and answer == QUESTION, errors.decode()


@pytest.mark.parametrize("host", [FAR, NAME])
def test_proxy_uses_a_reference_exit(exit, host):
    private = X25519PrivateKey.generate()
    gateway = exit.serve(clients='"any"')
    static = private.private_bytes_raw().hex()
    server = start_peer(exit.server, gateway, "accept", "sealed", "eth,wlan", "0.0.0.0", 9443,
                        env={**os.environ, "PEER_EXIT": f"{host}:80", "PEER_STATIC": static})  # fmt: skip
    wait_for("peer", lambda: server.poll() is not None or exit.server.listens(9443))
    exit.url = f"plait://{exit.pair.ETH}:9443#{text_of(public_key(private))}"
    exit.proxy()
    client = connect_by_socks(exit.pair, host, 80)
    assert_echo(client, QUESTION)
    client.close()
    assert server.wait(60) == 0, server.stderr.read().decode()


def test_exit_resets_a_client_that_names_no_destination(exit):
    """An application's bytes are never taken for a destination."""
    exit.serve(clients='"any"')
    gateway = exit.proxy()
    exit.client.ip("mptcp limits set add_addr_accepted 0")
    variables = {"PEER_STATIC": os.urandom(32).hex(), "PEER_EXIT": f"{FAR}:80", "PEER_VIOLATION": "response"}
    client = start_peer(exit.client, gateway, "connect", "sealed", "eth", exit.pair.ETH, 8443,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **variables})  # fmt: skip
    _, errors = client.communicate(b"", timeout=60)
    assert b"ConnectionResetError" in errors, errors.decode()
    assert "the first record to or from an exit, got another" in exit.pair.logged("serve")
