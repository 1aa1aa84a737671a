"""Somebody floods `plait serve` from one address with connections that never complete a handshake: nobody else is refused."""

import contextlib
import pathlib
import statistics
import subprocess
import sys
import time

import pytest

pytest.importorskip("cryptography", reason="not installed: python3-cryptography")

from gateways import cgroup_of, report_of
from hosts import wait_for
from streams import connect_by_socks, plain_server, receive_exactly
from syn_flood import cookies, shorten_queues, syn_flood

FLOOD = pathlib.Path(__file__).parents[1] / "helpers" / "flood.py"
# An address of the client that no honest connection uses.
ATTACKER = "10.77.1.66"
HONEST = "10.77.1.1"


@pytest.fixture
def gateways(pair, kind):
    """A service, its gateway with room for 1,000 connections, a quarter of them for each peer, and a proxy."""
    pair.add_route_by_wlan()
    pair.client.ip(f"addr add {ATTACKER}/24 dev eth")
    pair.client.ip(f"route replace 10.77.1.0/24 dev eth src {HONEST}")
    plain_server(pair, 9000, b"hello")
    if kind == "syn":
        shorten_queues(pair.server)
    pair.serve("--mode", "sealed", "--max-connections", "1000", to=f"{pair.ETH}:9000")
    proxy = pair.proxy("--mode", "sealed", "--require=all-paths", "--trusted", "eth", "--untrusted", "wlan")
    return pair, proxy


@contextlib.contextmanager
def flooding(pair, proxy, kind: str, source: str, rate: int):
    """Within this context, the client's host floods the server's gateway."""
    enter = ["nsenter", f"--net=/run/netns/{pair.client.name}", sys.executable, str(FLOOD)]
    arguments = [kind, str(rate), "eth", source, pair.ETH, "8443", cgroup_of(proxy)]
    flood = subprocess.Popen([*enter, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield flood
    finally:
        flood.terminate()
        flood.wait()
        flood.stdout.close()


def wait_for_connections(flood: subprocess.Popen, number: int):
    assert any(int(line) >= number for line in iter(flood.stdout.readline, "")), "the flood ended"


def ask(pair) -> float:
    """Seconds that an honest connection took until the service's answer."""
    began = time.monotonic()
    with connect_by_socks(pair) as client:
        client.sendall(b"?")
        assert receive_exactly(client, 5) == b"hello"
    return time.monotonic() - began


FLOODS = [("idle", ATTACKER), ("hello", ATTACKER), ("witness", ATTACKER), ("witness", HONEST)]


@pytest.mark.parametrize(("kind", "source"), FLOODS)
def test_flood_from_one_address_refuses_nobody_else(gateways, kind, source):
    pair, proxy = gateways
    with flooding(pair, proxy, kind, source, 500) as flood:
        wait_for_connections(flood, 1100)
        for _ in range(20):
            ask(pair)
        report = report_of(pair, "serve")
        warnings = [
            line for line in (pair.directory / "serve.log").read_text().splitlines() if "WARN" in line
        ]
    assert report["counts"]["protected"] == report["handshakes"]["complete"] == 20
    if kind == "witness":
        # As many as make it crowded, and an honest one.
        assert report["handshakes"]["displaced"] > 100 and report["handshakes"]["waiting"] <= 257
        assert not warnings
    else:
        assert report["handshake_failures"]["limit"] > 100
        assert 1 <= len(warnings) <= 10
        assert f"{ATTACKER} has 250 connections already" in warnings[0]
        assert "somebody may be flooding this gateway" in warnings[0]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "source"), [*FLOODS, ("syn", "nowhere")])
def test_a_thousand_connections_during_a_flood(gateways, kind, source):
    pair, proxy = gateways
    before = [ask(pair) for _ in range(1000)]
    with contextlib.ExitStack() as stack:
        if kind == "syn":
            stack.enter_context(syn_flood(pair, pause=0.02))
        else:
            wait_for_connections(stack.enter_context(flooding(pair, proxy, kind, source, 100)), 400)
        returned = cookies(pair)[1]
        during = [ask(pair) for _ in range(1000)]
        returned = cookies(pair)[1] - returned
    assert report_of(pair, "serve")["counts"]["protected"] == 2000
    assert kind != "syn" or returned > 1000, "each connection and its witness come by a cookie"
    for name, seconds in (("before", before), ("during", during)):
        quantiles = statistics.quantiles(seconds, n=100)
        print(
            f"{kind} from {source}, {name}: p50 {quantiles[49] * 1e3:.1f} ms, p99 {quantiles[98] * 1e3:.1f} ms"
        )
