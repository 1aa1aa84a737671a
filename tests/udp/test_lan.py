"""UDP of hosts behind `plait router`, through an exit: they know nothing of it."""

import socket
import threading
import time

import pytest
from datagrams import Datagrams, call_during_cuts, echo_datagrams
from disturbance import measuring
from exits import FAR, FAR6, NAME, PRIVATE, exit_behind, resolver_of
from hosts import Pair, wait_for
from routers import forward, lan_behind

ECHO = 7


def family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@pytest.mark.parametrize("address", [FAR, FAR6], ids=["v4", "v6"])
@pytest.mark.parametrize("connected", [False, True], ids=["unconnected", "connected"])
def test_datagrams_reach_what_the_exit_reaches(lan, exit, address, connected):
    senders = echo_datagrams(exit.far, address, ECHO)
    exit.serve()
    lan.start_with(exit)
    destination = (address, ECHO)
    with Datagrams(lan.host, family(address), destination if connected else None) as host:
        # Both directions, also in fragments of IP, and an empty one.
        for payload in (b"hello", b"", bytes(1200), bytes(1472), bytes(8000), bytes(60000)):
            sender, data = host.exchange(destination, payload)
            assert (sender, len(data)) == (destination, len(payload)), lan.log()
    assert len({port for _, port in senders}) == 1, "one socket at the exit for one of the host"


def test_one_socket_has_many_destinations(lan, exit):
    senders = [echo_datagrams(exit.far, FAR, port) for port in range(7000, 7020)]
    exit.serve()
    lan.start_with(exit)
    with Datagrams(lan.host) as host:
        for port in range(7000, 7020):
            assert host.exchange((FAR, port), b"hello")[0] == (FAR, port)
    assert len({port for each in senders for _, port in each}) == 1


def test_many_sockets_are_told_apart(lan, exit):
    """As QUIC has them: one for each connection, with datagrams of 1200 bytes."""
    senders = echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    lan.start_with(exit)
    sockets = [Datagrams(lan.host, connected=(FAR, ECHO)) for _ in range(100)]
    for number, each in enumerate(sockets):
        payload = number.to_bytes(2, "big") * 600
        assert each.exchange((FAR, ECHO), payload)[1] == payload
    assert len({port for _, port in senders}) == 100
    [gateway] = [each for each in lan.pair.status() if each["command"] == "router"]
    assert gateway["datagrams"]["associations"] == 100


def test_a_tunnel_carries_in_both_directions(lan, exit):
    """As WireGuard: a fixed port, and a peer that sends by itself once it knows the address."""
    exit.serve()
    lan.start_with(exit)
    with exit.far.inside():
        peer = socket.socket(type=socket.SOCK_DGRAM)
    peer.bind((FAR, 51820))
    peer.settimeout(10)
    with Datagrams(lan.host) as host:
        host.socket.bind(("0.0.0.0", 51820))
        host.send((FAR, 51820), b"initiation")
        initiation, address = peer.recvfrom(2000)
        assert initiation == b"initiation"
        for number in range(500):
            peer.sendto(number.to_bytes(4, "big") + bytes(1400), address)
            assert host.receive()[1][:4] == number.to_bytes(4, "big")


def test_dns_is_answered_by_the_exits_resolver_as_before(lan, exit):
    exit.serve()
    lan.start_with(exit)
    with resolver_of(lan.host, "8.8.8.8"):
        assert FAR in lan.host.run("getent", "ahosts", NAME, text=True).stdout
    assert {protocol for protocol, _, _ in exit.nameserver.asked} == {"tcp"}


def test_call_survives_cuts_of_the_uplinks(lan, exit):
    """50 datagrams per second for 12 s, while each uplink is cut once: at most 15 are lost, within less than 300 ms."""
    echo_datagrams(exit.far, FAR, ECHO)
    exit.serve()
    lan.start_with(exit)
    with Datagrams(lan.host, connected=(FAR, ECHO)) as host:
        host.exchange((FAR, ECHO), b"ready")
        time.sleep(3)
        with measuring(0.02):
            echoes = call_during_cuts(exit.pair, host, (FAR, ECHO), 12, before=3, cut_for=2.5)
            assert echoes.sent == 600
            assert echoes.lost <= 15 and echoes.gap < 0.3, echoes


def test_nothing_readable_leaves_by_the_uplinks(lan, exit):
    """Also while the exit is not there, and though the kernel forwards."""
    forward(lan.router, True)
    lan.router.ip(f"route add {FAR} via {Pair.ETH}")
    echo_datagrams(exit.far, FAR, ECHO)
    program = exit.serve()
    lan.start_with(exit)
    secret = b"a secret of sixteen bytes and more"
    captures = [lan.pair.capture(link, host=lan.router, filter="ip or ip6") for link in ("eth", "wlan")]
    with captures[0], captures[1], Datagrams(lan.host) as host:
        host.exchange((FAR, ECHO), secret)
        program.kill()
        program.wait()
        for _ in range(20):
            host.send((FAR, ECHO), secret)
            time.sleep(0.02)
        exit.serve()
        assert host.exchange((FAR, ECHO), secret, attempts=60)[1] == secret, "it goes on"
    for capture in captures:
        assert secret[:8] not in capture.file.read_bytes(), capture.link


def test_services_of_the_router_and_private_destinations_get_nothing(lan, exit):
    echo_datagrams(exit.far, PRIVATE, ECHO)
    echo_datagrams(exit.far, FAR, ECHO)
    own = echo_datagrams(lan.router, "0.0.0.0", 9)
    exit.serve()
    lan.start_with(exit)
    with Datagrams(lan.host) as host:
        host.exchange((FAR, ECHO), b"ready")
        host.send((FAR, 9), b"for another one")
        host.send((PRIVATE, ECHO), b"forbidden")
        assert not host.receives(b"forbidden") and not own
        # The router's own address is its own.
        assert host.exchange(("10.50.0.1", 9), b"for the router")[1] == b"for the router"
    wait_for("a refusal", lambda: "the exit sends no datagrams to" in lan.log())
