"""The command beside a second implementation of `stream` and `sealed`, which knows only docs/internals/protocol.md."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import peer
from gateways import start_peer
from hosts import PLAIT, tool, wait_for
from peer import Keystream
from streams import REQUIRE, connect_by_socks, echo_server, receive_exactly
from test_protocol import SEALED_MODES, STREAM_MODES, counted, records

QUESTION = bytes(range(256)) * 1000


# Modes, and the interfaces by which a peer's main connection and its witnesses go.
WAYS = {"stream": ("stream", "eth"), "sealed:1/1": ("sealed", "eth"), "sealed:2/2": ("sealed", "eth,wlan")}


@pytest.mark.parametrize("way", WAYS)
def test_a_client_of_the_specification_speaks_with_serve(pair, way):
    mode, interfaces = WAYS[way]
    echo_server(pair.server)
    pair.serve("--mode", mode, "--require", to="127.0.0.1:9000")
    gateway = pair.proxy("--mode", mode, *REQUIRE)
    # Its kernel must not join at once, as it would where it is told of an address.
    tool("ip", "-n", pair.client.name, "mptcp", "limits", "set", "add_addr_accepted", "0")
    client = start_peer(pair.client, gateway, "connect", mode, interfaces, pair.ETH, 8443,
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    answer, errors = client.communicate(QUESTION, timeout=60)
    assert client.returncode == 0 and answer == QUESTION, errors.decode()


@pytest.mark.parametrize("way", WAYS)
def test_proxy_speaks_with_a_server_of_the_specification(pair, way):
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
    client.sendall(QUESTION)
    assert receive_exactly(client, len(QUESTION)) == QUESTION
    client.close()
    assert server.wait(20) == 0, server.stderr.read().decode()


CIPHERS = {
    peer.STREAM_CHACHA20: "chacha20",
    peer.STREAM_AES256: "aes-256-ctr",
    peer.SEALED_CHACHAPOLY: "chacha20-poly1305",
    peer.SEALED_AESGCM: "aes-256-gcm",
}


def codec(kind: str, mode: int, *arguments, data: bytes) -> subprocess.CompletedProcess:
    command = [PLAIT, "codec", kind, "--cipher", CIPHERS[mode], *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, timeout=120)


@pytest.mark.parametrize("direction", [peer.INITIATOR, peer.RESPONDER], ids=["forth", "back"])
@pytest.mark.parametrize("mode", STREAM_MODES.values(), ids=STREAM_MODES)
def test_codec_stream_has_the_keystream_of_the_specification(mode, direction, tmp_path):
    keys = counted(1, 8), counted(0x11, 8), counted(0x20, 32)
    secrets = tmp_path / "secrets"
    secrets.write_text(b"".join(keys).hex())
    plain = os.urandom(10_000_000)
    end = ("initiator", "responder")[direction]
    done = codec("stream", mode, "--secrets", secrets, "--from", end, data=plain)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == Keystream(mode, peer.stream_secret(*keys), direction).apply(plain)


@pytest.fixture
def key(tmp_path) -> pathlib.Path:
    """A file with the key of a direction, which is all zeros."""
    file = tmp_path / "key"
    file.write_text(bytes(32).hex())
    return file


@pytest.mark.parametrize("mode", SEALED_MODES.values(), ids=SEALED_MODES)
def test_codec_sealed_understands_the_specification_and_is_understood(mode, key):
    plain = os.urandom(1_000_000)
    sealer, opener = records(mode)
    sealed = codec("sealed", mode, "--encode", "--key", key, data=plain)
    assert sealed.returncode == 0, sealed.stderr.decode()
    assert opener.feed(sealed.stdout) == plain
    opener.close()
    opened = codec("sealed", mode, "--decode", "--key", key, data=sealer.seal(plain) + sealer.end())
    assert opened.returncode == 0, opened.stderr.decode()
    assert opened.stdout == plain


def test_codec_sealed_changes_the_key_when_the_specification_does(key):
    """A million records of one byte each, and then some."""
    sealer, _ = records(peer.SEALED_AESGCM)
    plain = counted(0, 256) * ((peer.REKEY_AFTER >> 8) + 1)
    wire = b"".join(sealer.seal(plain[at : at + 1]) for at in range(len(plain))) + sealer.end()
    done = codec("sealed", peer.SEALED_AESGCM, "--decode", "--key", key, data=wire)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == plain


def test_codec_sealed_fails_on_what_is_wrong_and_passes_none_of_it_on(key):
    sealer, _ = records()
    one, two, end = sealer.seal(b"one"), sealer.seal(b"two"), sealer.end()
    changed = two[:-1] + bytes([two[-1] ^ 1])
    for wire, right in ((one + two, b"onetwo"), (one + changed + end, b"one"), (two + one + end, b""),
                        (one + one + end, b"one"), (one + end + two, b"one"), (one + b"\0\x0f", b"one"),
                        (one + b"\x40\x11", b"one"), (one + two[:-1], b"one"), (b"", b"")):  # fmt: skip
        done = codec("sealed", peer.SEALED_AESGCM, "--decode", "--key", key, data=wire)
        assert done.returncode == 1 and done.stderr, wire
        assert right.startswith(done.stdout), wire
