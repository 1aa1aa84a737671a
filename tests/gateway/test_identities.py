"""Authentication of gateways by keys (mode `sealed`): created, pinned, trusted on first use, rejected."""

import base64
import json
import os
import re
import subprocess
import textwrap
import threading
import time

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import peer
import peer_crypto
from controllers import work  # noqa: F401
from gateways import report_of, start_peer
from hosts import PLAIT, tool, wait_for
from package import PYTHON
from streams import NAMED, assert_echo, connect_by_socks, echo_server

SEALED = ("--mode", "sealed", "--require")
OUTBOUND = (*SEALED, "--trusted", "eth")
ALL_PATHS = ("--mode", "sealed", "--require=all-paths", *NAMED)
SERVER = "10.77.1.2:8443"
# The private keys of the reference implementation as initiator and as responder.
STATICS = bytes(range(0x60, 0x80)), bytes(range(0xE0, 0x100))
QUESTION = bytes(range(256)) * 1000
# The counts after one connection whose peer's key was rejected.
REJECTED = {"protected": 0, "invalid_records": 0, "key_updates": 0, "plain": 0, "refused": 1,
            "rejected_identity": 1}  # fmt: skip


@pytest.fixture
def two_ways(two_ways):
    echo_server(two_ways.server)
    return two_ways


def identity(directory, name: str) -> tuple[str, str]:
    """A new key pair: its file and its public key."""
    file = directory / name / "identity.key"
    return str(file), tool(PLAIT, "identity", "--file", str(file)).strip()


def serve(pair, *options):
    return pair.serve(*SEALED, *options, to="127.0.0.1:9000")


def config(pair, name: str, text: str) -> tuple[str, str]:
    file = pair.directory / name
    file.write_text(text)
    return "--config", str(file)


def pin(pair, key: str, server: str = SERVER) -> tuple[str, str]:
    """The options that pin the key of a server."""
    return config(pair, f"pins-{key[-8:]}.toml", f'[peers]\n"{server}" = "{key}"\n')


def stop(gateway):
    gateway.terminate()
    assert gateway.wait(15) == 0


def carried_connection(pair) -> dict:
    """The report of a connection, after it was used."""
    client = connect_by_socks(pair)
    assert_echo(client)
    found = report_of(pair, "proxy")["connections"][-1]
    shown = rf"sealed {found['level']} via eth(, wlan)?, identity {found['identity']}\n"
    assert re.search(shown, tool(PLAIT, "status"))
    client.close()
    return found


def refused(pair, reply="0x02"):
    with pytest.raises(AssertionError, match=f"SOCKS reply {reply}"):
        connect_by_socks(pair)


def counts(pair, command: str) -> dict:
    return report_of(pair, command)["counts"]


def test_identity_creates_a_key_pair_once_and_shows_it(tmp_path):
    file = tmp_path / "state" / "identity.key"
    command = [PLAIT, "identity", "--file", str(file)]
    made, shown = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2))
    key = made.stdout.strip()
    assert made.stdout == shown.stdout == f"{key}\n" and str(file) in made.stderr and not shown.stderr
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    private = file.read_text().strip().removeprefix("plait-private-key:")
    assert key == peer_crypto.key_text(peer_crypto.public_of(base64.urlsafe_b64decode(private + "=")))
    document = json.loads(tool(*command, "--json"))
    assert document == {"schema_version": 1, "key": key, "file": str(file), "created": False}
    file.chmod(0o644)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "other users can read" in done.stderr and private not in done.stderr


def test_only_the_pinned_key_is_accepted(two_ways, tmp_path):
    file, key = identity(tmp_path, "server")
    _, other = identity(tmp_path, "other")
    serve(two_ways, "--identity", file)
    proxy = two_ways.proxy(*ALL_PATHS, *pin(two_ways, key))
    found = carried_connection(two_ways)
    assert (found["level"], found["identity"]) == ("2/2", "pinned")
    stop(proxy)
    two_ways.proxy(*OUTBOUND, *pin(two_ways, other))
    refused(two_ways)
    reason = f"{SERVER} failed authentication: expected the pinned {other}, got {key}"
    assert reason in two_ways.logged("proxy")
    assert counts(two_ways, "proxy") == REJECTED
    assert "1 refused (1 with a rejected identity)" in tool(PLAIT, "status")
    # Programs that plait runs are treated alike.
    ask = ("socat", "-t", "10", "-", f"TCP:{SERVER}")
    for pinned, answer in ((key, b"hello"), (other, b"")):
        done = two_ways.run(*ask, options=(*OUTBOUND, *pin(two_ways, pinned)), input=b"hello")
        assert done.stdout == answer
    assert reason in done.stderr.decode()


def test_peer_without_a_pin_is_rejected_if_there_are_pins(two_ways, tmp_path):
    file, key = identity(tmp_path, "server")
    serve(two_ways, "--identity", file)
    two_ways.proxy(*OUTBOUND, *pin(two_ways, key, "server.example:8443"))
    refused(two_ways)
    assert f"expected a key of {SERVER} in [peers], got none" in two_ways.logged("proxy")
    assert counts(two_ways, "proxy")["rejected_identity"] == 1


def test_first_key_is_stored_and_another_rejected(two_ways, tmp_path):
    file, key = identity(tmp_path, "server")
    server = serve(two_ways, "--identity", file)
    own, _ = identity(tmp_path, "client")
    known = tmp_path / "client" / "known_peers"
    two_ways.proxy(*OUTBOUND, "--peers", "first-use", "--identity", own)
    assert [carried_connection(two_ways)["identity"] for _ in range(2)] == ["first-use"] * 2
    assert known.read_text() == f"{SERVER} {key}\n"
    assert known.stat().st_mode & 0o777 == 0o600
    log = two_ways.logged("proxy")
    assert log.count("first connection to") == 1 and key in log
    stop(server)
    another, _ = identity(tmp_path, "another")
    serve(two_ways, "--identity", another)
    refused(two_ways)
    log = two_ways.logged("proxy")
    assert f"expected {key} from {known}, line 1" in log and "remove that line" in log
    # A damaged line is not an unknown peer.
    damaged = f"{SERVER} {key[:-1]}\n"
    known.write_text(damaged)
    refused(two_ways)
    assert f"{known}, line 1: expected HOST:PORT and a key" in two_ways.logged("proxy")
    assert known.read_text() == damaged
    known.write_text("")
    assert carried_connection(two_ways)["identity"] == "first-use"


@pytest.mark.parametrize("path", ["slow", "data is lost"])
def test_first_use_of_a_key_waits_for_witnesses(two_ways, tmp_path, path):
    file, _ = identity(tmp_path, "server")
    serve(two_ways, "--identity", file)
    own, _ = identity(tmp_path, "client")
    two_ways.proxy(*NAMED, *SEALED, "--peers", "first-use", "--identity", own)
    if path == "data is lost":
        # There is a limit to it.
        with two_ways.server.packet_rules(prerouting="iifname wlan tcp flags & psh == psh drop"):
            assert carried_connection(two_ways)["level"] == "1/2"
        return
    began = time.monotonic()
    two_ways.server.add_packet_rules(prerouting="iifname wlan drop")
    remover = threading.Timer(0.3, two_ways.server.remove_packet_rules)
    remover.start()
    assert carried_connection(two_ways)["level"] == "2/2"
    remover.join()
    # The second SYN comes a second after the first.
    assert time.monotonic() - began > 0.9


def test_only_listed_clients_are_served(two_ways, tmp_path):
    file, key = identity(tmp_path, "server")
    own, client_key = identity(tmp_path, "client")
    text = f'[identity]\nfile = "{file}"\nclients = ["{client_key}"]\n'
    serve(two_ways, *config(two_ways, "serve.toml", text))
    pins = pin(two_ways, key)
    known = two_ways.proxy(*OUTBOUND, *pins, "--identity", own)
    assert carried_connection(two_ways)["identity"] == "pinned"
    assert counts(two_ways, "serve")["rejected_identity"] == 0
    stop(known)
    # An anonymous client, and one with another key.
    two_ways.proxy(*OUTBOUND, listen="127.0.0.1:1081")
    with pytest.raises(AssertionError, match="SOCKS reply"):
        connect_by_socks(two_ways, proxy=("127.0.0.1", 1081))
    wait_for("refusal", lambda: "only known clients may connect" in two_ways.logged("serve"))
    other, other_key = identity(tmp_path, "other")
    two_ways.proxy(*OUTBOUND, *pins, "--identity", other)
    client = connect_by_socks(two_ways)
    # The client has completed the handshake; the server resets.
    with pytest.raises(ConnectionResetError):
        client.sendall(b"hello")
        client.recv(5)
    wait_for("refusal", lambda: f"`clients` of [identity], got {other_key}" in two_ways.logged("serve"))
    wait_for("reason", lambda: "it does not accept this end's key" in two_ways.logged("proxy"))
    assert counts(two_ways, "serve")["rejected_identity"] == 2


def test_server_without_an_identity_is_rejected(two_ways, tmp_path):
    serve(two_ways)
    own, _ = identity(tmp_path, "client")
    two_ways.proxy(*OUTBOUND, "--peers", "first-use", "--identity", own)
    with pytest.raises(AssertionError, match="SOCKS reply"):
        connect_by_socks(two_ways)
    reason = "asks for an identity, and this end has none"
    wait_for("reason", lambda: reason in two_ways.logged("serve"))
    assert not (tmp_path / "client" / "known_peers").exists()


def test_pinned_peer_is_never_carried_plain(two_ways, tmp_path):
    """Even under a preferred mode."""
    _, key = identity(tmp_path, "server")
    two_ways.serve("--mode", "stream", "--require=false", to="127.0.0.1:9000")
    two_ways.proxy("--mode", "sealed", "--trusted", "eth", *pin(two_ways, key))
    refused(two_ways)
    assert counts(two_ways, "proxy") == REJECTED


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mode", "stream", "--peers", "first-use"), "expected mode 'sealed'"),
        (("--mode", "sealed", "--identity", "/nowhere/identity.key"), "cannot read the identity"),
        (("--mode", "sealed", "--peers", "some"), "expected any, first-use or pinned"),
    ],
)
def test_invalid_options_are_reported_at_start(pair, options, words):
    done = pair.client.run(PLAIT, "proxy", *options, text=True, timeout=20)
    assert done.returncode in (1, 2) and words in done.stderr, done.stderr


def hexadecimal(static: bytes) -> dict:
    return {**os.environ, "PEER_STATIC": static.hex()}


def test_reference_client_authenticates(two_ways, tmp_path):
    file, key = identity(tmp_path, "server")
    client_key = peer_crypto.key_text(peer_crypto.public_of(STATICS[0]))
    text = f'[identity]\nclients = ["{client_key}"]\n'
    serve(two_ways, "--identity", file, *config(two_ways, "serve.toml", text))
    gateway = two_ways.proxy(*OUTBOUND)
    tool("ip", "-n", two_ways.client.name, "mptcp", "limits", "set", "add_addr_accepted", "0")
    public = base64.urlsafe_b64decode(key.removeprefix("plait-key:") + "=").hex()
    environment = {**hexadecimal(STATICS[0]), "PEER_EXPECTED": public}
    client = start_peer(two_ways.client, gateway, "connect", "sealed", "eth,wlan", two_ways.ETH, 8443,
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # fmt: skip
    answer, errors = client.communicate(QUESTION, timeout=60)
    assert client.returncode == 0 and answer == QUESTION, errors.decode()


def test_reference_server_authenticates(two_ways, tmp_path):
    gateway = serve(two_ways)
    server = start_peer(two_ways.server, gateway, "accept", "sealed", "eth,wlan", "0.0.0.0", 9443,
                     env=hexadecimal(STATICS[1]))  # fmt: skip
    wait_for("peer", lambda: server.poll() is not None or two_ways.server.listens(9443))
    server_key = peer_crypto.key_text(peer_crypto.public_of(STATICS[1]))
    two_ways.proxy(*OUTBOUND, *pin(two_ways, server_key, f"{two_ways.ETH}:9443"))
    with connect_by_socks(two_ways, port=9443) as client:
        assert_echo(client, QUESTION)
    assert server.wait(60) == 0, server.stderr.read().decode()


def test_python_programs_authenticate_their_peers(work, two_ways, tmp_path):  # noqa: F811
    file, key = identity(tmp_path, "server")
    serve(two_ways, "--identity", file)
    _, other = identity(tmp_path, "other")
    text = f"""
        import plait
        where, right, wrong = ("{two_ways.ETH}", 8443), "{key}", "{other}"
        paths = dict(trusted=["eth"], untrusted=["wlan"], require="all-paths")
        connection = plait.connect(where, **paths, peers={{"{SERVER}": right}})
        print(connection.level, connection.identity)
        connection.close()
        plait.stop()
        try:
            plait.connect(where, trusted=["eth"], peers={{"{SERVER}": wrong}})
        except plait.ProtectionError as error:
            print(error)
    """
    program = work / "client.py"
    program.write_text(textwrap.dedent(text))
    done = two_ways.client.run(PYTHON, program, text=True, cwd=work)
    assert done.returncode == 0, done.stderr
    known, refusal = done.stdout.splitlines()
    assert known == "2/2 pinned" and "failed authentication" in refusal
