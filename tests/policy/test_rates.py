"""rate_limit and pace enforce their rate, with a round-trip time of 20 ms and between local namespaces."""

import contextlib
import json
import socket
import threading
import time

import pytest
from disturbance import measuring
from hosts import Host, linux_release, tool, wait_for
from labs import needs_labs, two_hosts, up  # noqa: F401
from streams import MPTCP, listen, receive_exactly
from transfers import assert_no_checksum_errors, counters, disable_offloads

from policies import chain, counted, load, plait, policy

pytestmark = needs_labs

FASTER = 60e6
# A sender that waits this long for a processor misses its rate.
STALL = 0.02


@pytest.fixture
def wire(up, tmp_path):  # noqa: F811
    """A client and a server with a link of 100 Mb/s and a round-trip time of 20 ms, and their addresses."""
    lab = up(two_hosts('each_way = { rate = "100mbit", delay = "10ms" }\n'))
    addresses = [address.split("/")[0] for address in lab["links"][0]["b"]["addresses"]]
    yield *(Host(f"plait-{lab['id']}-{name}", tmp_path) for name in ("client", "server")), addresses


@contextlib.contextmanager
def loaded(host, hook, actor, select="any"):
    """Loads a policy of one chain while the block runs."""
    load(host, policy(chain("limit", hook, select, f"[{actor}]")))
    try:
        yield
    finally:
        (limit,) = counted(host)
        plait(host, "unload", "test")
    assert any(each["hits"] for each in limit["actors"]), limit
    assert not any(each["errors"] for each in limit["actors"]), limit


@contextlib.contextmanager
def connected(client, server, address, sends, any_family=False, port=0):
    """A connection on which one side sends as fast as it can; yields the receiving socket."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = listen(server, 9000, "::" if any_family else address, MPTCP)
    with listener, client.socket(family, MPTCP) as near:
        near.bind(("", port))
        near.settimeout(10)
        near.connect((address, 9000))
        # MPTCP considers a connection established with its first data.
        near.sendall(b"x")
        far, _ = listener.accept()
        with far:
            far.settimeout(10)
            receive_exactly(far, 1)
            source, sink = (near, far) if sends == "client" else (far, near)
            source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            stopping = threading.Event()
            # A sender whose own buffer is full drops acknowledgments (counted in TcpExtBeyondWindow).
            threads = [
                threading.Thread(target=run, args=(source.dup(), stopping))
                for run in (send_until, receive_until)
            ]
            for thread in threads:
                thread.start()
            try:
                yield sink
            finally:
                stopping.set()
                sink.shutdown(socket.SHUT_RDWR)
                for thread in threads:
                    thread.join(30)


def send_until(connection, stopping):
    connection.settimeout(1)
    data = bytes(1 << 16)
    with contextlib.suppress(OSError), connection:
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                connection.send(data)


def receive_until(connection, stopping):
    """Receives what the other side sends."""
    connection.settimeout(1)
    with contextlib.suppress(OSError), connection:
        while not stopping.is_set():
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1 << 20):
                    return


def rate(sink, seconds=2.0, skipped=1.0) -> float:
    """The received bits per second, after a warm-up."""
    begun = time.monotonic()
    while time.monotonic() - begun < skipped:
        sink.recv(1 << 20)
    begun, received = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        received += len(sink.recv(1 << 20))
    return received * 8 / (time.monotonic() - begun)


# Rate and family do not depend on each other.
@pytest.mark.parametrize(
    ("asked", "family"), [("4mbit", 1), ("30mbit", 0)], ids=["4mbit-ipv6", "30mbit-ipv4"]
)
@pytest.mark.parametrize(
    ("hook", "actor", "sends"),
    [("egress", "rate_limit", "server"), ("ingress", "rate_limit", "client"), ("egress", "pace", "client")],
    ids=["what the peer sends", "what this host sends", "pace"],
)
def test_a_rate_is_enforced(wire, hook, actor, sends, asked, family):
    client, server, addresses = wire
    value = f'{{ {actor} = "{asked}" }}' if actor == "pace" else f'{{ {actor} = {{ rate = "{asked}" }} }}'
    with measuring(STALL):
        with loaded(client, hook, value), connected(client, server, addresses[family], sends) as sink:
            found = rate(sink)
        assert found == pytest.approx(float(asked.removesuffix("mbit")) * 1e6, rel=0.1)
    for host in (client, server):
        assert counters(host)["TcpInCsumErrors"] == 0
        assert counters(host)["MPTcpExtMPCapableFallbackACK"] == 0


@pytest.mark.parametrize("order", [("4mbit", "30mbit"), ("30mbit", "4mbit")], ids=" ".join)
def test_the_lowest_of_several_rates_is_enforced(wire, order):
    client, server, addresses = wire
    actors = ", ".join(f'{{ rate_limit = {{ rate = "{each}" }} }}' for each in order)
    with loaded(client, "egress", actors), connected(client, server, addresses[0], "server") as sink:
        assert rate(sink) == pytest.approx(4e6, rel=0.1)


def test_a_window_limits_the_rate_by_the_round_trip_time(wire):
    """30 kB per 20 ms."""
    client, server, addresses = wire
    actor = '{ rate_limit = { window = "30kB" } }'
    with loaded(client, "egress", actor), connected(client, server, addresses[0], "server") as sink:
        found = rate(sink)
    assert 0.75 * 12e6 < found < 1.05 * 12e6


def test_pacing_starts_and_stops_with_its_policy(wire):
    client, server, addresses = wire
    if linux_release() < (6, 12):
        pytest.skip("connections that were there before are paced from Linux 6.12 on")
    with connected(client, server, addresses[0], "client") as sink:
        assert rate(sink, 1.5) > FASTER
        with loaded(client, "egress", '{ pace = "8mbit" }'):
            # Skip data sent before.
            assert rate(sink, 2, 2) == pytest.approx(8e6, rel=0.1)
        assert rate(sink, 1.5) > FASTER


def test_pacing_stops_when_packets_no_longer_match(wire):
    """The policy stays, but packets no longer match, as when the chains of a controller expire."""
    client, server, addresses = wire
    select = "size(0-4MB)"
    with loaded(client, "egress", '{ pace = "8mbit" }', select):
        with connected(client, server, addresses[0], "client") as sink:
            assert rate(sink, 2, 1) == pytest.approx(8e6, rel=0.1)
            wait_for("an end of the pace", lambda: rate(sink, 0.5, 0) > FASTER, timeout=15)


def test_pacing_covers_mapped_addresses_but_not_other_namespaces(make_pair):
    """IPv6 sockets with mapped addresses are paced; the same addresses in another namespace are not."""
    paced, other = make_pair(), make_pair()
    with loaded(paced.server, "egress", '{ pace = "20mbit" }'):
        more = {"sends": "server", "any_family": True, "port": 41000}
        with connected(paced.client, paced.server, paced.ETH, **more) as sink:
            remove_other_subflows(paced)
            with connected(other.client, other.server, other.ETH, **more) as free:
                assert rate(free, 1) > FASTER
            assert rate(sink) == pytest.approx(20e6, rel=0.1)


@pytest.mark.parametrize("segmented", [True, False], ids=["GSO", "no GSO"])
def test_pacing_holds_with_segmentation_offload(pair, segmented):
    if not segmented:
        disable_offloads(pair, "eth")
    with (
        loaded(pair.client, "egress", '{ pace = "80mbit" }', "path(eth)"),
        connected(pair.client, pair.server, pair.ETH, "client") as sink,
    ):
        # Subflows of the other link do not match.
        remove_other_subflows(pair)
        assert rate(sink) == pytest.approx(80e6, rel=0.1)
    assert_no_checksum_errors(pair)


def remove_other_subflows(pair):
    for address in (pair.WLAN, pair.WLAN6):
        listed = json.loads(tool("ip", "-j", "-n", pair.server.name, "mptcp", "endpoint", "show"))
        for endpoint in listed:
            if endpoint["address"] == address:
                pair.server.ip(f"mptcp endpoint delete id {endpoint['id']}")
    pair.client.ip("link set wlan down")
    wait_for("one subflow", lambda: subflows(pair.client) == 1)


def subflows(host) -> int:
    return len(host.run("ss", "-Htn", "state", "established", text=True).stdout.splitlines())


@pytest.mark.parametrize("segmented", [True, False], ids=["GSO", "no GSO"])
def test_windows_of_offloaded_packets_are_limited_with_valid_checksums(pair, segmented):
    """Both sides send at once, so that acknowledgments are piggybacked on data."""
    if not segmented:
        disable_offloads(pair, "eth", "wlan")
    with (
        loaded(pair.client, "egress", '{ rate_limit = { window = "20kB" } }', "packet(data)"),
        connected(pair.client, pair.server, pair.ETH, "server") as near,
    ):
        stopping = threading.Event()
        back = threading.Thread(target=send_until, args=(near.dup(), stopping))
        back.start()
        assert rate(near, 2) > 1e6
        stopping.set()
        back.join(30)
    assert_no_checksum_errors(pair)
