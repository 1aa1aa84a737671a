"""Key updates and padding of mode `sealed`: between gateways, and between a gateway and the reference implementation (peer.py)."""

import hashlib
import os
import random
import socket
import subprocess
import threading
import time

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")
pytest.importorskip("kyber_py", reason="not installed: kyber-py, see tests/requirements.txt")

from gateways import report_of, start_peer
from hosts import PLAIT, start_listening, wait_for
from peer_sockets import VIOLATIONS
from streams import (
    NAMED,
    REQUIRE,
    accept,
    assert_echo,
    connect_by_socks,
    deliver,
    echo_server,
    listen,
    random_file,
)

SEALED = ("--mode", "sealed", "--require")
OFTEN = ("--rekey-after", "1s")
QUESTION = bytes(range(256)) * 1000


def key_updates(pair, command: str) -> int:
    """The key updates of the only connection of the gateway that a command runs, if there is one yet."""
    connections = report_of(pair, command)["connections"]
    return connections[0]["key_updates"] if connections else 0


class Sender(threading.Thread):
    """Sends random bytes until it is stopped, and then the end."""

    def __init__(self, connection, seed: int):
        super().__init__(daemon=True)
        self.connection, self.source = connection, random.Random(seed)
        self.stop, self.digest = threading.Event(), hashlib.sha256()
        self.start()

    def run(self):
        while not self.stop.is_set():
            piece = self.source.randbytes(self.source.randrange(1, 300_000))
            self.connection.sendall(piece)
            self.digest.update(piece)
        self.connection.shutdown(socket.SHUT_WR)


class Receiver(threading.Thread):
    """Receives to the end."""

    def __init__(self, connection):
        super().__init__(daemon=True)
        self.connection, self.digest, self.ended = connection, hashlib.sha256(), False
        self.start()

    def run(self):
        while data := self.connection.recv(1 << 16):
            self.digest.update(data)
        self.ended = True


@pytest.mark.parametrize("padding", [(), ("--pad", "1000")], ids=["", "padded"])
def test_keys_are_renewed_while_both_directions_carry_bytes(two_ways, padding):
    listener = listen(two_ways.server)
    two_ways.serve(*SEALED, *padding, to="127.0.0.1:9000")
    two_ways.proxy(*SEALED, *padding, "--trusted", "eth", *OFTEN)
    client = connect_by_socks(two_ways)
    service = accept(listener)
    senders = [Sender(end, seed) for seed, end in enumerate((client, service))]
    receivers = [Receiver(end) for end in (service, client)]
    both = ("proxy", "serve")
    wait_for("key updates", lambda: min(key_updates(two_ways, command) for command in both) >= 3)
    assert "key updates" in two_ways.client.run(PLAIT, "status", text=True).stdout
    for sender in senders:
        sender.stop.set()
    for thread in (*senders, *receivers):
        thread.join(60)
    for sender, receiver in zip(senders, receivers):
        assert receiver.ended and receiver.digest.digest() == sender.digest.digest()
    assert "key update 3" in two_ways.logged("proxy")


def test_run_renews_the_keys_of_a_program_that_only_receives(make_pair, documents):
    # Slow enough for several seconds, however much the buffers on the way hold.
    pair = make_pair(rate="20mbit")
    pair.add_route_by_wlan()
    document = random_file(documents, 24_000_000)
    pair.serve(*SEALED, to=pair.nginx(documents))
    target, url = pair.directory / "fetched", f"http://{pair.ETH}:8443/{document.name}"
    run = (PLAIT, "run", *SEALED, "--trusted", "eth", *OFTEN, "--")
    curl = pair.client.start(*run, "curl", "-sS", "-o", target, url)
    wait_for("key updates", lambda: key_updates(pair, "serve") >= 2)
    assert curl.wait(60) == 0
    assert target.read_bytes() == document.read_bytes()


def test_idle_connection_exchanges_no_keys(pair):
    echo_server(pair.server)
    pair.serve(*SEALED, to="127.0.0.1:9000")
    pair.proxy(*SEALED, "--trusted", "eth", *OFTEN)
    client = connect_by_socks(pair)
    assert_echo(client)
    # On a slow machine there may have been one by now.
    time.sleep(1.5)
    before = key_updates(pair, "proxy")
    time.sleep(2.5)
    assert key_updates(pair, "proxy") == key_updates(pair, "serve") == before
    assert_echo(client)
    # Due since long, the update begins with these bytes.
    wait_for("key update", lambda: min(key_updates(pair, command) for command in ("proxy", "serve")) > before)
    assert_echo(client)
    client.close()


def stream_of(capture, condition: str) -> bytes:
    """The bytes of one direction of a connection with one path. MPTCP and TCP may send some of them again: ciphertext occurs
    once, so what occurred before is a copy."""
    stream = b""
    for [payload] in capture.fields("tcp.payload", where=f"tcp.len > 0 and {condition}"):
        piece = bytes.fromhex(payload.replace(":", ""))
        at = stream.find(piece[:32])
        stream += piece if at < 0 else piece[len(stream) - at :]
    return stream


def record_lengths(stream: bytes) -> list[int]:
    """The length fields of the records after the handshake message at the start of a direction."""
    at, lengths = 3 + int.from_bytes(stream[1:3], "big"), []
    while at < len(stream):
        lengths.append(int.from_bytes(stream[at : at + 2], "big"))
        at += 2 + lengths[-1]
    assert at == len(stream), lengths
    return lengths


def test_captured_records_are_as_long_as_their_sender_pads_them(pair):
    """Those of data, of key updates and of the end."""
    listener = listen(pair.server)
    pair.serve(*SEALED, "--pad", "700", to="127.0.0.1:9000")
    pair.proxy(*SEALED, "--pad", "3000", "--trusted", "eth", "--untrusted", "lo", *OFTEN)
    with pair.capture("eth", pair.client) as eth:
        client = connect_by_socks(pair)
        service = accept(listener)
        time.sleep(1.1)
        for size in (1, 699, 700, 701, 3001, 20_000):
            deliver(client, service, random.Random(size).randbytes(size))
            deliver(service, client, random.Random(size).randbytes(size))
        wait_for("key update", lambda: key_updates(pair, "serve") >= 1)
        deliver(client, service)
        for end in (client, service):
            end.shutdown(socket.SHUT_WR)
        wait_for("end", lambda: not pair.status()[0]["connections"])
    for condition, unit in (("tcp.dstport == 8443", 3000), ("tcp.srcport == 8443", 700)):
        contents = [length - 17 for length in record_lengths(stream_of(eth, condition))]
        assert len(contents) >= 9
        assert all(content > 0 and content % unit == 0 for content in contents), contents


def test_a_file_sets_padding_and_renewal_for_both_ends(pair, tmp_path):
    file = tmp_path / "plait.toml"
    file.write_text('mode = "sealed"\nrequire = true\npad = 500\nrekey = "1s"\n')
    echo_server(pair.server)
    pair.serve("--config", file, to="127.0.0.1:9000")
    pair.proxy("--config", file, "--trusted", "eth")
    client = connect_by_socks(pair)
    time.sleep(1.1)
    assert_echo(client)
    wait_for("key update", lambda: key_updates(pair, "serve") >= 1)
    client.close()
    other = "--mode", "stream", "--listen", "127.0.0.1:1081"
    done = pair.client.run(PLAIT, "proxy", "--config", file, *other, text=True)
    assert done.returncode == 1 and "expected mode 'sealed'" in done.stderr


def test_padding_and_renewal_take_mode_sealed(pair):
    for options in (("--pad", "100"), OFTEN):
        done = pair.client.run(PLAIT, "proxy", "--mode", "stream", "--trusted", "eth", *options, text=True)
        assert done.returncode == 1
        assert "expected mode 'sealed'" in done.stderr and "got 'stream'" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--pad", "0", "from 1, which is no padding, to 16384, got 0"),
        ("--pad", "16385", "from 1, which is no padding, to 16384, got 16385"),
        ("--pad", "x", "expected a number of bytes, got 'x'"),
        ("--rekey-after", "0.5s", "from 1s to 1h"),
        ("--rekey-after", "2h", "from 1s to 1h"),
    ],
)
def test_values_out_of_range_are_usage_errors(option, value, reason):
    done = subprocess.run([PLAIT, "proxy", option, value], capture_output=True, text=True)
    assert done.returncode == 2
    assert reason in done.stderr


# The reference implementation, which also checks the lengths of the records that it receives


def environment(**variables) -> dict:
    return os.environ | {name: str(value) for name, value in variables.items()}


def start_client(pair, interfaces: str = "eth", **variables) -> subprocess.Popen:
    """The reference implementation as the client of `plait serve`, in the cgroup of a gateway beside it."""
    gateway = pair.proxy(*SEALED, "--trusted", "eth")
    # The client's kernel would join an announced address at once.
    pair.client.ip("mptcp limits set add_addr_accepted 0")
    return start_peer(pair.client, gateway, "connect", "sealed", interfaces, pair.ETH, 8443, stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, env=environment(**variables))  # fmt: skip


def start_server(pair, interfaces: str = "eth", **variables) -> subprocess.Popen:
    """The reference implementation as a server, in the cgroup of a gateway beside it."""
    gateway = pair.serve(*SEALED, to="127.0.0.1:9000")
    server = start_peer(pair.server, gateway, "accept", "sealed", interfaces, "0.0.0.0", 9443,
                        env=environment(**variables))  # fmt: skip
    wait_for("peer", lambda: server.poll() is not None or pair.server.listens(9443))
    return server


def test_serve_answers_the_key_updates_of_the_reference(pair):
    echo_server(pair.server)
    pair.serve(*SEALED, "--pad", "300", to="127.0.0.1:9000")
    client = start_client(pair, PEER_UPDATES=3, PEER_PAD=700, PEER_UNIT=300)
    answer, errors = client.communicate(QUESTION, timeout=60)
    assert client.returncode == 0 and answer == QUESTION, errors.decode()


def test_serve_takes_late_witnesses_of_the_reference(two_ways):
    echo_server(two_ways.server)
    start_listening(two_ways.server, ("-vv", "serve", "--to", "127.0.0.1:9000", *SEALED), "[::]:8443")
    client = start_client(two_ways, interfaces="eth,wlan", PEER_LATE=1)
    answer, errors = client.communicate(QUESTION, timeout=60)
    assert client.returncode == 0 and answer == QUESTION, errors.decode()
    log = two_ways.logged("serve")
    assert "a late witness raised a connection to 2/2 paths" in log and "key update 1 of a connection" in log


def test_proxy_renews_keys_with_the_reference(pair):
    server = start_server(pair, PEER_PAD=900, PEER_UNIT=16384)
    pair.proxy(*REQUIRE, "--untrusted", "lo", *OFTEN, "--pad", "16384")
    client = connect_by_socks(pair, pair.ETH, 9443)
    for number in range(1, 4):
        time.sleep(1.1)
        assert_echo(client, QUESTION)
        wait_for("key update", lambda number=number: key_updates(pair, "proxy") >= number)
        assert_echo(client, QUESTION)
    client.close()
    assert server.wait(20) == 0, server.stderr.read().decode()


def connection_of(pair, command: str) -> tuple[str, int] | None:
    """The level and the key updates of the only connection of a gateway, once there is one."""
    reports = (gateway for gateway in pair.status() if gateway["command"] == command)
    connections = [connection for report in reports for connection in report["connections"]]
    return (connections[0]["level"], connections[0]["key_updates"]) if connections else None


@pytest.mark.parametrize("command", ["proxy", "run"])
def test_reference_takes_late_witnesses(two_ways, command):
    """The witness comes when a silent path works again: the next SYN comes a second after the first."""
    server = start_server(two_ways, interfaces="eth,wlan", PEER_LATE=1)
    options = *SEALED, *NAMED
    with two_ways.server.packet_rules(prerouting="iifname wlan drop"):
        if command == "proxy":
            two_ways.proxy(*options)
            client = connect_by_socks(two_ways, two_ways.ETH, 9443)
        else:
            program = ("socat", "-t", "20", "-", f"TCP:{two_ways.ETH}:9443")
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            client = two_ways.client.start(PLAIT, "run", *options, "--", *program, log="run.log", **pipes)
        wait_for("connection", lambda: connection_of(two_ways, command) == ("1/2", 0))
    wait_for("witness", lambda: connection_of(two_ways, command) == ("2/2", 1))
    if command == "proxy":
        assert_echo(client, QUESTION)
        client.close()
    else:
        answer, _ = client.communicate(QUESTION, timeout=60)
        assert (client.returncode, answer) == (0, QUESTION)
    assert server.wait(20) == 0, server.stderr.read().decode()


RECORDS = {
    "no type": "expected a type, got padding alone",
    "unknown type": "expected a type from 1 to 6, got another",
    "empty data": "expected data, got none",
    "content of the end": "expected no content in the record that ends the direction",
}
OF_INITIATORS = RECORDS | {
    "request": "expected an X25519 public key in UPDATE_REQUEST, got one of low order",
    "short request": "expected 1216 bytes in UPDATE_REQUEST, got 31",
    "second request": "unexpected UPDATE_REQUEST",
    "response": "unexpected UPDATE_RESPONSE",
    "new key": "unexpected NEW_KEY",
}
OF_RESPONDERS = RECORDS | {
    "request": "unexpected UPDATE_REQUEST",
    "response": "unexpected UPDATE_RESPONSE",
    "new key": "unexpected NEW_KEY",
}
assert set(OF_INITIATORS) == set(VIOLATIONS)


@pytest.mark.parametrize("violation", OF_INITIATORS)
def test_serve_resets_an_initiator_that_violates_the_protocol(pair, violation):
    echo_server(pair.server)
    start_listening(pair.server, ("-vv", "serve", "--to", "127.0.0.1:9000", *SEALED), "[::]:8443")
    client = start_client(pair, PEER_VIOLATION=violation)
    answer, errors = client.communicate(b"", timeout=60)
    assert client.returncode != 0 and answer == b"" and b"reset" in errors.lower(), errors.decode()
    wait_for("reason", lambda: OF_INITIATORS[violation] in pair.logged("serve"))


@pytest.mark.parametrize("violation", OF_RESPONDERS)
def test_proxy_resets_a_responder_that_violates_the_protocol(pair, violation):
    start_server(pair, PEER_VIOLATION=violation)
    pair.proxy(*REQUIRE, "--untrusted", "lo")
    client = connect_by_socks(pair, pair.ETH, 9443)
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    wait_for("reason", lambda: OF_RESPONDERS[violation] in pair.logged("proxy"))
