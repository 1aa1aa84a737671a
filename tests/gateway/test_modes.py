"""Modes `stream` and `sealed`: what eavesdroppers see, what modifications cause, and the level of protection."""

import random
import re

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

import peer
from gateways import report_of
from hosts import PLAIT, tool, wait_for
from streams import (
    NAMED,
    accept,
    assert_echo,
    connect_by_socks,
    deliver,
    echo_server,
    fetch,
    listen,
    random_file,
    start_gateways,
)

STREAM = ("--mode", "stream", "--require")
MODES = {"stream": STREAM, "sealed": ("--mode", "sealed", "--require")}
ALL_PATHS = ("--mode", "sealed", "--require=all-paths")
RANDOM_LEN = 32


def stream_payloads(file) -> tuple[bytes, bytes]:
    """The bytes of the first TCP connection of a capture in both directions."""
    lines = tool("tshark", "-n", "-r", str(file), "-q", "-z", "follow,tcp,raw,0").splitlines()
    data = lines[next(at for at, line in enumerate(lines) if line.startswith("Node 1")) + 1 : -1]
    sent = (line for line in data if not line.startswith("\t"))
    received = (line.strip() for line in data if line.startswith("\t"))
    return bytes.fromhex("".join(sent)), bytes.fromhex("".join(received))


@pytest.mark.parametrize("address", ["ETH", "ETH6"])
def test_captured_stream_is_decrypted_by_the_reference_implementation(pair, address):
    """The complete capture of a connection with one path, with the keys that it contains."""
    listener = listen(pair.server)
    pair.serve(*STREAM, to="127.0.0.1:9000")
    # Only one of the two links has a role: the other is not used.
    pair.proxy(*STREAM, "--trusted", "eth", "--untrusted", "lo")
    # Too short for MPTCP to send any of it twice, which would be more bytes of the TCP stream.
    question, answer = (random.Random(seed).randbytes(10_000) for seed in (1, 2))
    with pair.capture("eth", pair.client) as eth:
        client = connect_by_socks(pair, getattr(pair, address))
        service = accept(listener)
        deliver(client, service, question)
        deliver(service, client, answer)
        client.close()
        assert service.recv(1) == b""
        service.close()
        wait_for("end", lambda: not pair.status()[0]["connections"])
    [keys, *_] = eth.fields("tcp.options.mptcp.sendkey", "tcp.options.mptcp.recvkey",
                            where="tcp.options.mptcp.recvkey")  # fmt: skip
    [[options]] = eth.fields("tcp.options", where="tcp.flags.syn == 1 and tcp.flags.ack == 1")
    chosen = bytes.fromhex(options.replace(":", "")).split(bytes.fromhex("fe08504c414901"))[1][0]
    sent, received = stream_payloads(eth.file)
    random_part, sent = sent[:RANDOM_LEN], sent[RANDOM_LEN:]
    assert len(sent) == len(question) and len(received) == len(answer), "only R is added to the stream"
    secret = peer.stream_secret(*(int(key).to_bytes(8, "big") for key in keys), random_part)
    assert peer.Keystream(chosen, secret, peer.INITIATOR).apply(sent) == question
    assert peer.Keystream(chosen, secret, peer.RESPONDER).apply(received) == answer


def carried(pair, mode, *options):
    """A connection through gateways in this mode: the client's end, the service's, and the gateways."""
    listener = listen(pair.server)
    gateways = {
        "serve": pair.serve(*MODES[mode], to="127.0.0.1:9000"),
        "proxy": pair.proxy(*MODES[mode], "--trusted", "eth", *options),
    }
    client = connect_by_socks(pair)
    return client, accept(listener), gateways


def connections(pair, command="proxy") -> list[dict]:
    return report_of(pair, command)["connections"]


@pytest.mark.parametrize("mode", MODES)
def test_untrusted_path_carries_no_plaintext(make_pair, documents, mode):
    pair = make_pair(rate="50mbit")
    pair.add_route_by_wlan()
    document = random_file(documents, 8_000_000)
    text = document.read_bytes()
    pair.serve(*MODES[mode], to=pair.nginx(documents))
    with pair.capture("wlan", pair.client) as wlan:
        assert fetch(pair, document, options=(*MODES[mode], "--trusted", "eth")) == text
    captured = wlan.file.read_bytes()
    assert len(captured) > 1_000_000, "the untrusted path was not used"
    assert not any(text[at : at + 32] in captured for at in range(0, len(text) - 32, 4000))


@pytest.mark.parametrize("mode", MODES)
def test_further_subflows_do_not_wait_for_an_answer(two_ways, mode):
    """The first flight alone establishes protection in both directions."""
    client, service, _ = carried(two_ways, mode)
    wait_for("second subflow", lambda: len(connections(two_ways)[0]["subflows"]) == 2)
    service.close()
    client.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("killed", ["serve", "proxy"])
def test_killed_gateway_is_a_reset(two_ways, mode, killed):
    client, service, gateways = carried(two_ways, mode)
    deliver(client, service)
    gateways[killed].kill()
    for end in (service, client):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_gateways_with_different_modes_are_plain_or_refused(pair):
    echo_server(pair.server)
    pair.serve("--mode", "xor64", "--require=false", to="127.0.0.1:9000")
    pair.proxy("--mode", "stream", "--trusted", "eth")
    assert_echo(connect_by_socks(pair))
    for command, of_peer, own in (("proxy", "xor64", "stream"), ("serve", "stream", "xor64")):
        differ = f"the peer's mode is '{of_peer}' and that of this gateway '{own}'"
        assert f"PLAIN: {differ}" in pair.logged(command)
    pair.proxy("--mode", "stream", "--trusted", "eth", "--require", listen="127.0.0.1:1081")
    with pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect_by_socks(pair, proxy=("127.0.0.1", 1081))


def test_level_is_the_number_of_witnessed_paths(two_ways):
    start_gateways(two_ways, *ALL_PATHS, outbound=NAMED)
    client = connect_by_socks(two_ways)
    assert_echo(client)
    for command in ("proxy", "serve"):
        assert [connection["level"] for connection in connections(two_ways, command)] == ["2/2"]
    wait_for("further subflow", lambda: "sealed 2/2 via eth, wlan\n" in two_ways.client.tool(PLAIT, "status"))
    server = report_of(two_ways, "serve")
    assert server["handshakes"] == {
        "waiting": 0, "complete": 1, "dropped": 0, "displaced": 0, "refused": 0,
    }  # fmt: skip
    client.close()


def test_require_all_paths_refuses_a_connection_without_a_witness_on_every_path(pair):
    """Without a route, the server's address on eth is unreachable through wlan."""
    start_gateways(pair, *ALL_PATHS, outbound=NAMED)
    with pytest.raises(AssertionError, match="SOCKS reply 0x01"):
        connect_by_socks(pair)
    assert "expected a witness on every configured path, got 1/2" in pair.logged("proxy")


def test_bridge_of_containers_is_no_path(two_ways):
    """As Docker's: it is up, has an address, and no route leads through it to the peer."""
    two_ways.client.ip("link add docker0 type bridge")
    two_ways.client.ip("address add 172.17.0.1/16 dev docker0")
    two_ways.client.ip("link set docker0 up")
    start_gateways(two_ways, *MODES["sealed"])
    client = connect_by_socks(two_ways)
    assert_echo(client)
    assert [connection["level"] for connection in connections(two_ways)] == ["2/2"]
    assert "docker0" not in two_ways.logged("proxy")
    client.close()


def test_path_without_a_route_is_missing_from_the_level_until_it_returns(pair):
    start_gateways(pair, *MODES["sealed"])
    clients = [connect_by_socks(pair) for _ in range(2)]
    for client in clients:
        assert_echo(client)
    assert [connection["level"] for connection in connections(pair)] == ["1/2", "1/2"]
    log = pair.logged("proxy")
    assert log.count("sealed by 1/2 paths") == 1
    assert log.count(f"no witness connection to {pair.ETH} through wlan") == 1
    assert "no route to the peer" in log
    pair.add_route_by_wlan()
    clients.append(connect_by_socks(pair))
    assert_echo(clients[2])
    wait_for("witness, which may be late", lambda: connections(pair)[2]["level"] == "2/2")
    assert f"witness connections to {pair.ETH} through wlan work again" in pair.logged("proxy")
    for client in clients:
        client.close()


def test_single_path_is_not_shown_as_a_full_level(pair):
    pair.client.ip("link del wlan")
    start_gateways(pair, *MODES["sealed"])
    with connect_by_socks(pair) as client:
        assert_echo(client)
        assert [connection["level"] for connection in connections(pair)] == ["1/1"]
        shown = pair.client.run(PLAIT, "status", text=True).stdout
    assert "sealed (single path) via eth\n" in shown and "1/1" not in shown
    for command in ("proxy", "serve"):
        assert "are sealed (single path)" in pair.logged(command)


def test_level_is_limited_to_the_paths_of_a_session(two_ways):
    client = two_ways.client.name
    for number in range(10):
        ends = f"more{number}", f"less{number}"
        tool("ip", "-n", client, "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for end in ends:
            tool("ip", "-n", client, "link", "set", end, "up")
    start_gateways(two_ways, *MODES["sealed"])
    for _ in range(2):
        with connect_by_socks(two_ways) as connection:
            assert_echo(connection)
            wait_for("witness, which may be late", lambda: connections(two_ways)[-1]["level"] == "2/16")
    log = two_ways.logged("proxy")
    assert log.count("22 paths are configured, but a session has at most 16") == 1


def test_modified_packet_is_a_reset_and_never_delivered(two_ways):
    """An attacker on the trusted path changes a byte of one packet with data, and fixes its checksum."""
    client, service, _ = carried(two_ways, "sealed", "--untrusted", "lo")
    deliver(client, service)
    change = 'iifname "eth" tcp dport 8443 meta length > 600 @ih,800,8 set 0x42'
    two_ways.server.add_packet_rules(prerouting=change)
    client.sendall(random.Random(3).randbytes(600))
    for end in (service, client):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    assert report_of(two_ways, "serve")["counts"]["invalid_records"] == 1
    assert re.search(
        r"WARN .*: reset: .* failed authentication.*; somebody on a path may be modifying the traffic",
        two_ways.logged("serve"),
    )
