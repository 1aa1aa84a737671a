"""An attacker on the path redirects connections to another service of the same host, which has the same key."""

import contextlib
import os
import subprocess

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

from gateways import report_of, start_peer
from hosts import PLAIT, tool, wait_for
from streams import connect_by_socks, plain_server, receive_exactly

SEALED = ("--mode", "sealed", "--require")
SERVER = "10.77.1.2:8443"
ASKED_FOR, OTHER = 8443, 9443


@pytest.fixture
def identity(pair) -> tuple[str, str]:
    """The server's option for its key, and the client's that pins it."""
    file, pins = pair.directory / "identity.key", pair.directory / "pins.toml"
    key = tool(PLAIT, "identity", "--file", str(file)).strip()
    pins.write_text(f'[peers]\n"{SERVER}" = "{key}"\n')
    return ("--identity", str(file)), ("--config", str(pins))


def serve(pair, port: int, answer: bytes, *options):
    """A service, and a gateway in front of it, which logs to a file named after the port."""
    plain_server(pair, port + 10, answer)
    command = ("-v", "serve", "--listen", f"[::]:{port}", "--to", f"{pair.ETH}:{port + 10}", *SEALED)
    gateway = pair.server.start(PLAIT, *command, *options, log=f"{port}.log")
    wait_for("serve", lambda: gateway.poll() is not None or pair.server.listens(port))
    assert gateway.poll() is None, logged(pair, port)


def logged(pair, port: int) -> str:
    return (pair.directory / f"{port}.log").read_text()


def redirecting(pair) -> contextlib.AbstractContextManager:
    """Within this context, who connects to the one port reaches the other."""
    return pair.server.packet_rules(
        prerouting=f"tcp dport {ASKED_FOR} tcp dport set {OTHER}",
        output=f"tcp sport {OTHER} tcp sport set {ASKED_FOR}",
    )


def answer(pair) -> bytes:
    with connect_by_socks(pair) as client:
        client.sendall(b"?")
        return receive_exactly(client, 5)


def test_redirected_connection_is_refused_though_the_key_is_right(pair, identity):
    key, pinned = identity
    serve(pair, ASKED_FOR, b"asked", *key)
    serve(pair, OTHER, b"other", *key)
    pair.proxy(*SEALED, "--trusted", "eth", *pinned)
    assert answer(pair) == b"asked"
    with redirecting(pair):
        with pytest.raises(AssertionError, match="SOCKS reply 0x01"):
            connect_by_socks(pair)
    [warning] = [line for line in logged(pair, OTHER).splitlines() if " refused: " in line]
    assert "WARN" in warning and "asks for another service, on port 8443" in warning
    assert "redirecting connections, or a port forwarding needs `--service`" in warning
    failures = [gateway["handshake_failures"] for gateway in pair.status() if gateway["command"] == "serve"]
    assert sum(each["other_service"] for each in failures) == 1
    assert answer(pair) == b"asked"


@pytest.mark.parametrize(
    ("service", "accepted"),
    [("8443", True), ("10.77.1.2:8443", True), ("server.example:8443", False), ("80", False)],
)
def test_port_forwarding_works_once_the_service_is_named(pair, identity, service, accepted):
    """Also proves that the redirection of the attack reaches the other service."""
    key, pinned = identity
    serve(pair, OTHER, b"other", *key, "--service", service)
    pair.proxy(*SEALED, "--trusted", "eth", *pinned)
    with redirecting(pair):
        if accepted:
            assert answer(pair) == b"other"
        else:
            with pytest.raises(AssertionError, match="SOCKS reply 0x01"):
                connect_by_socks(pair)


@pytest.mark.parametrize("version", [1, 2, 4])
def test_peer_of_another_version_is_refused_and_named(pair, version):
    plain_server(pair, 9000, b"hello")
    pair.serve(*SEALED, to=f"{pair.ETH}:9000")
    gateway = pair.proxy(*SEALED, "--trusted", "eth")
    tool("ip", "-n", pair.client.name, "mptcp", "limits", "set", "add_addr_accepted", "0")
    client = start_peer(pair.client, gateway, "connect", "sealed", "eth", pair.ETH, 8443,
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                        env=os.environ | {"PEER_VERSION": str(version)})  # fmt: skip
    _, errors = client.communicate(timeout=60)
    assert client.returncode != 0, errors.decode()
    age = "an older" if version < 3 else "a newer"
    wait_for("the refusal", lambda: " refused: " in pair.logged("serve"))
    assert f"expected version 3 of `sealed`, got {version}: the peer runs {age} plait" in pair.logged("serve")
    assert report_of(pair, "serve")["handshake_failures"]["other_version"] == 1
