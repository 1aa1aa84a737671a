"""Redundancy in mode `sealed`: copies of small writes on side connections over every path."""

import os
import random
import subprocess
import threading
import time

import pytest
from controllers import DelayedPair, built
from gateways import report_of, start_peer
from hosts import PLAIT, tool, unique_id, wait_for
from outages import forgotten_flows, silence
from streams import (
    NAMED,
    REQUIRE,
    assert_echo,
    connect_by_socks,
    echo_server,
    receive_exactly,
    start_gateways,
)

REDUNDANT = ("--mode", "sealed", "--redundant", "1000")


def copies(pair, command: str) -> dict | None:
    """What the only connection of a gateway reports of its copies."""
    [connection] = report_of(pair, command)["connections"]
    return connection["redundancy"]


def open_sides(pair) -> int:
    return min(copies(pair, command)["side_connections"] for command in ("proxy", "serve"))


def connect(pair):
    """A connection whose side connections, one on each path, are open at both ends."""
    client = connect_by_socks(pair)
    assert_echo(client)
    wait_for("side connection", lambda: open_sides(pair) == 2)
    return client


def sent_bytes(pair, link: str) -> int:
    """Bytes that the client has sent on a link."""
    return int(pair.client.tool("cat", f"/sys/class/net/{link}/statistics/tx_bytes"))


def test_small_writes_are_copied_in_both_directions(two_ways):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    client = connect(two_ways)
    before = {command: copies(two_ways, command) for command in ("proxy", "serve")}
    for number in range(100):
        assert_echo(client, bytes([number]) * 100)
    for command in ("proxy", "serve"):
        now = copies(two_ways, command)
        assert now["copied"] == 1000
        # One or two of each.
        assert 100 <= now["sent"] - before[command]["sent"] <= 200
        assert now["dropped"] == now["invalid"] == 0
    client.close()
    wait_for("end", lambda: not report_of(two_ways, "serve")["connections"])


def test_writes_above_the_limit_are_not_copied(two_ways):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    client = connect(two_ways)
    assert_echo(client, bytes(1000))
    sent = copies(two_ways, "proxy")["sent"]
    assert_echo(client, bytes(1001))
    assert_echo(client, bytes(1_000_000))
    assert copies(two_ways, "proxy")["sent"] == sent
    assert_echo(client, bytes(1000))
    assert copies(two_ways, "proxy")["sent"] in (sent + 1, sent + 2)

    def carried(size: int) -> int:
        before = sum(sent_bytes(two_ways, link) for link in ("eth", "wlan"))
        for _ in range(100):
            assert_echo(client, bytes(size))
        return sum(sent_bytes(two_ways, link) for link in ("eth", "wlan")) - before

    small, large = carried(1000), carried(1001)
    assert small > 2 * 100 * 1000 and large < 1.5 * 100 * 1001, (small, large)


def test_small_writes_take_each_path_once_while_nothing_is_late(tmp_path):
    with built(DelayedPair(unique_id(), tmp_path)) as pair:
        pair.add_route_by_wlan()
        start_gateways(pair, *REDUNDANT, outbound=NAMED)
        client = connect(pair)
        before = {command: copies(pair, command)["sent"] for command in ("proxy", "serve")}
        for number in range(100):
            assert_echo(client, bytes([number]) * 100)
        sent = {command: copies(pair, command)["sent"] - before[command] for command in before}
        client.close()
    # A busy machine delays some acknowledgments, after which copies take all paths for once.
    assert all(100 <= number < 150 for number in sent.values()), sent


@pytest.mark.parametrize("size", (100, 100_000))
def test_all_copies_every_record(two_ways, size):
    start_gateways(two_ways, "--mode", "sealed", "--redundant", "all", outbound=NAMED)
    client = connect(two_ways)
    data = random.Random(size).randbytes(size)
    for _ in range(20):
        assert_echo(client, data)
    for command in ("proxy", "serve"):
        report = copies(two_ways, command)
        assert report["copied"] == "all" and report["sent"] >= 20 and report["invalid"] == 0


@pytest.mark.parametrize("path", ("eth", "wlan"))
def test_exchanges_go_on_while_a_path_is_silent(two_ways, path):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    client = connect(two_ways)
    first = copies(two_ways, "serve")["first"]
    with silence(two_ways, path):
        began = time.monotonic()
        exchanges = 0
        while time.monotonic() - began < 2:
            assert_echo(client, random.Random(exchanges).randbytes(100))
            exchanges += 1
    # Each would take a retransmission otherwise.
    assert exchanges > 100, exchanges
    assert copies(two_ways, "serve")["first"] > first
    # What the connection itself carries is left out once it arrives, and the rest is delivered.
    assert_echo(client, random.Random(0).randbytes(300_000))
    assert_echo(client, b"small")
    client.close()
    for command in ("proxy", "serve"):
        wait_for("end", lambda command=command: not report_of(two_ways, command)["connections"])
        assert report_of(two_ways, command)["counts"]["invalid_records"] == 0


def test_streams_of_small_and_large_writes_are_unchanged(two_ways):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    client = connect(two_ways)
    client.settimeout(60)
    draw = random.Random(5)
    writes = [draw.randbytes(draw.choice((1, 50, 999, 1000, 1001, 5000, 50_000))) for _ in range(400)]
    received = []
    reading = threading.Thread(
        target=lambda: received.append(receive_exactly(client, sum(map(len, writes)))), daemon=True
    )
    reading.start()
    for write in writes:
        client.sendall(write)
        if draw.random() < 0.1:
            time.sleep(0.005)
    reading.join(60)
    assert received == [b"".join(writes)]


def test_side_connection_is_opened_again(two_ways):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    client = connect(two_ways)
    # The kernel closes the subflows on this link, and the side connection.
    two_ways.client.tool("ss", "-K", "src", "10.77.2.1")
    assert_echo(client)
    wait_for("side connection", lambda: open_sides(two_ways) == 2)
    sent = copies(two_ways, "serve")["sent"]
    assert_echo(client, b"copied")
    assert copies(two_ways, "serve")["sent"] > sent


def test_side_connection_that_became_silent_is_opened_again(two_ways):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    client = connect(two_ways)
    with forgotten_flows(two_ways, "wlan"):

        def works() -> bool:
            before = copies(two_ways, "serve")
            assert_echo(client)
            after = copies(two_ways, "serve")
            return after["first"] + after["late"] > before["first"] + before["late"]

        wait_for("copies", works)
    assert report_of(two_ways, "serve")["counts"]["invalid_records"] == 0


@pytest.mark.parametrize("at", ("proxy", "serve"))
def test_gateway_without_the_option_gets_no_copies(two_ways, at):
    echo_server(two_ways.server)
    options = {
        command: ("--mode", "sealed") if command == at else REDUNDANT for command in ("proxy", "serve")
    }
    two_ways.serve(*options["serve"], to="127.0.0.1:9000")
    two_ways.proxy(*options["proxy"], *NAMED)
    client = connect_by_socks(two_ways)
    for _ in range(50):
        assert_echo(client, bytes(100))
    assert copies(two_ways, at) is None
    other = copies(two_ways, "serve" if at == "proxy" else "proxy")
    assert (other["side_connections"], other["sent"]) == (0, 0)
    for command in ("proxy", "serve"):
        assert report_of(two_ways, command)["counts"]["refused"] == 0


def test_peer_that_knows_no_side_connections_gets_no_copies(pair):
    pytest.importorskip("cryptography", reason="not installed: python3-cryptography")
    echo_server(pair.server)
    gateway = pair.serve("--mode", "sealed", to="127.0.0.1:9000")
    server = start_peer(pair.server, gateway, "accept", "sealed", "eth,wlan", "0.0.0.0", 9443)
    wait_for("peer", lambda: server.poll() is not None or pair.server.listens(9443))
    tool("ip", "-n", pair.client.name, "route", "add", pair.ETH, "dev", "wlan", "metric", "1000")
    pair.proxy(*REDUNDANT, *REQUIRE)
    client = connect_by_socks(pair, pair.ETH, 9443)
    assert_echo(client, bytes(range(256)) * 100)
    assert copies(pair, "proxy")["sent"] == 0
    client.close()
    assert server.wait(60) == 0, server.stderr.read().decode()


def test_serve_exchanges_copies_with_the_reference(two_ways):
    pytest.importorskip("cryptography", reason="not installed: python3-cryptography")
    echo_server(two_ways.server)
    two_ways.serve(*REDUNDANT, to="127.0.0.1:9000")
    gateway = two_ways.proxy("--mode", "sealed", *REQUIRE)
    # The client's kernel would join an announced address at once.
    two_ways.client.ip("mptcp limits set add_addr_accepted 0")
    client = start_peer(two_ways.client, gateway, "connect", "sealed", "eth,wlan", two_ways.ETH, 8443,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PEER_SIDE": "1"})  # fmt: skip
    answer, errors = client.communicate(b"copied", timeout=60)
    assert client.returncode == 0 and answer == b"copied", errors.decode()


def test_half_closed_connections_end_in_order(two_ways):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    for _ in range(10):
        client = connect(two_ways)
        client.sendall(b"last")
        client.shutdown(1)
        assert receive_exactly(client, 4) == b"last"
        assert client.recv(1) == b""
        client.close()
        wait_for("end", lambda: not report_of(two_ways, "serve")["connections"])
        wait_for("end", lambda: not report_of(two_ways, "proxy")["connections"])


def test_keys_are_updated_beside_copies(two_ways):
    echo_server(two_ways.server)
    two_ways.serve(*REDUNDANT, to="127.0.0.1:9000")
    two_ways.proxy(*REDUNDANT, "--rekey-after", "1s", *NAMED)
    client = connect(two_ways)

    def updated() -> bool:
        assert_echo(client, bytes(100))
        return report_of(two_ways, "serve")["connections"][0]["key_updates"] >= 3

    wait_for("key updates", updated)
    before = copies(two_ways, "serve")
    assert_echo(client, bytes(100))
    after = copies(two_ways, "serve")
    assert before["invalid"] == after["invalid"] == 0


def test_status_shows_copies(two_ways):
    start_gateways(two_ways, *REDUNDANT, outbound=NAMED)
    client = connect(two_ways)
    shown = two_ways.client.tool(PLAIT, "status")
    client.close()
    assert "redundant 1000: 2 side connections, " in shown, shown


def test_modes_without_records_take_no_copies(pair):
    done = pair.run("true", options=("--mode", "stream", "--redundant", "1000"))
    assert done.returncode != 0 and b"--redundant" in done.stderr
