"""The included policies and controllers on real MPTCP connections."""

import json
import os
import re
import subprocess
import threading
import time

import pytest
from controllers import POLICIES, RATE, backup_flags_received, distant, joined, run, start, uneven, work  # noqa: F401
from disturbance import measuring
from hosts import Host, tool, wait_for
from streams import accept, receive_exactly
from transfers import MPTCP, Download, counters, fetch, listen_on_all

from policies import listed


@pytest.mark.parametrize("file", sorted(POLICIES.glob("*.toml")), ids=lambda file: file.name)
def test_included_policies_are_valid(work, file):
    run(work, f"check({str(file)!r})")


@pytest.mark.alone
def test_small_flows_delays_joins_until_the_size_is_reached(work, distant):
    pair = distant
    controller = start(work, pair.client, POLICIES / "small-flows.py", "500000")
    for size in (20_000, 100_000, 220_000):
        fetch(pair, size, pair.ETH)
    assert counters(pair.server)["MPTcpExtMPJoinAckRx"] == 0
    with measuring(0.1):
        load = Download(pair, pair.ETH)
        # Before a SYN would be retransmitted.
        wait_for("second subflow", lambda: counters(pair.server)["MPTcpExtMPJoinAckRx"], timeout=0.9)
        time.sleep(1)
        assert load.mbps(2) > 1.6 * RATE
    assert controller.poll() is None
    load.close()


def received(client: Host, interface: str) -> int:
    """Bytes that the subflows of an interface have received, according to ss."""
    local = {"eth": "10.77.1.1", "wlan": "10.77.2.1"}[interface]
    sockets = client.run("ss", "-HtinO", "src", local, text=True).stdout
    return sum(int(bytes) for bytes in re.findall(r"bytes_received:(\d+)", sockets))


@pytest.mark.alone
def test_tiers_enforces_caps_and_quotas(work, distant):
    pair = distant
    size = 7_000_000
    tiers = ("eth=primary,cap=10mbit", f"wlan=primary,cap=5mbit,quota={size}")
    start(work, pair.client, POLICIES / "tiers.py", *tiers)
    load = Download(pair, pair.ETH)
    wait_for("second subflow", lambda: joined(pair.client))
    # Data sent before the limits were in force.
    time.sleep(3)

    def carried(interface: str) -> int:
        return received(pair.client, interface)

    def rates(seconds: float) -> dict[str, float]:
        """Mbit/s of each subflow: what the program reads may have waited for data of the other."""
        before, since = {name: carried(name) for name in ("eth", "wlan")}, time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - since
        return {name: (carried(name) - before[name]) * 8e-6 / took for name in before}

    with measuring(0.1):
        capped = rates(5)
        assert 4.5 < capped["wlan"] < 5.25
        # The faster path is sometimes blocked by data on the slower one.
        assert 7.5 < capped["eth"] < 10.5
    wait_for("the end of the quota", lambda: carried("wlan") >= size)
    with measuring(0.1):
        time.sleep(2)
        exhausted = carried("wlan")
        # In 1.5 s at the cap, the controller sees it, and what the server had assigned to the subflow arrives.
        assert size <= exhausted < size + 1.5 * 5e6 / 8
        since = rates(2)
        assert 8.5 < since["eth"] < 10.5
    assert carried("wlan") == exhausted, "nothing more passes"
    load.close()


@pytest.fixture
def guest(pair, work):
    """A host behind the client, which routes the guest's packets to both addresses of the server by `eth`."""
    guest = Host(f"plait-test-{os.getpid()}-guest", work)
    tool("ip", "netns", "add", guest.name)
    try:
        tap = ("link", "add", "tap", "netns", pair.client.name, "type", "veth")
        tool("ip", *tap, "peer", "name", "eth", "netns", guest.name)
        for host, command in (
            (guest, "address add 10.9.0.2/24 dev eth"),
            (guest, "link set eth up"),
            (guest, "route add default via 10.9.0.1"),
            (guest, "mptcp limits set subflows 8 add_addr_accepted 8"),
            (pair.client, "address add 10.9.0.1/24 dev tap"),
            (pair.client, "link set tap up"),
            (pair.client, "route add 10.99.0.0/24 via 10.77.1.2 metric 10"),
            (pair.client, "route add 10.99.0.0/24 via 10.77.2.2 metric 20"),
            (pair.server, "address add 10.99.0.1/32 dev lo"),
            (pair.server, "address add 10.99.0.2/32 dev lo"),
            (pair.server, "route add 10.9.0.0/24 via 10.77.1.1"),
            (pair.server, "mptcp endpoint flush"),
            (pair.server, "mptcp endpoint add 10.99.0.2 dev lo signal"),
        ):
            host.ip(command)
        pair.client.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        yield guest
    finally:
        subprocess.run(["ip", "netns", "del", guest.name], check=True)


def selector(host: Host, chain: str) -> str:
    """The selector of a chain of the only loaded policy."""
    (policy,) = listed(host)["policies"]
    return next((each["select"] for each in policy["chains"] if each["name"] == chain), "")


def sent(host: Host, interface: str) -> int:
    """Bytes sent on an interface."""
    links = json.loads(host.ip(f"-j -s link show {interface}"))
    return links[0]["stats64"]["tx"]["bytes"]


def test_tenant_spreads_subflows_of_a_guest_over_interfaces(work, pair, guest):
    listener = listen_on_all(pair.server, "10.99.0.1", 9300)
    data = bytes(range(256)) * 400_000
    with guest.socket(protocol=MPTCP) as client:
        # Before the connection, so that it tracks the second subflow from its handshake on.
        start(work, pair.client, POLICIES / "tenant.py", "10.9.0.0/24", "eth", "wlan")
        client.connect(("10.99.0.1", 9300))
        sink = accept(listener)
        sender = threading.Thread(target=client.sendall, args=(data,), daemon=True)
        client.sendall(b"begin")
        receive_exactly(sink, 5)
        wait_for("second subflow", lambda: joined(guest))
        wait_for("placement on wlan", lambda: "subflow(" in selector(pair.client, "by-wlan"))
        before = sent(pair.client, "wlan")
        sender.start()
        assert receive_exactly(sink, len(data)) == data
    share = (sent(pair.client, "wlan") - before) / len(data)
    assert 0.2 < share < 0.9, share


def test_ecf_keeps_bursts_off_the_slower_path(work, uneven):
    def share_of_slower_path() -> float:
        """What it carries of a connection's responses, of 100 kB each."""
        listener = listen_on_all(uneven.server, uneven.ETH, 9400)
        data = bytes(100_000)
        before = joined(uneven.client)
        with uneven.client.socket(protocol=MPTCP) as client, listener:
            client.connect((uneven.ETH, 9400))
            sender = accept(listener)

            def respond(times: int):
                for _ in range(times):
                    time.sleep(0.1)
                    client.sendall(b"?")
                    sender.recv(1)
                    threading.Thread(target=sender.sendall, args=(data,)).start()
                    receive_exactly(client, len(data))

            wait_for("second subflow", lambda: joined(uneven.client) > before)
            respond(4)

            def controller_has_decided() -> bool:
                """By the bursts that the controller has seen. The flag that the sender has received decides what it sends."""
                respond(1)
                return backup_flags_received(uneven)[1] == controlled

            wait_for("backup", controller_has_decided)
            wait_for("empty queue", lambda: is_idle("wlan"))
            begin = received(uneven.client, "wlan")
            respond(10)
            return (received(uneven.client, "wlan") - begin) / (10 * len(data))

    def is_idle(interface: str) -> bool:
        """Whether nothing arrives within twice the delay of the slower path."""
        before = received(uneven.client, interface)
        time.sleep(0.2)
        return received(uneven.client, interface) == before

    controlled = False
    assert share_of_slower_path() > 0.1
    start(work, uneven.server, POLICIES / "ecf.py")
    controlled = True
    assert share_of_slower_path() < 0.02
