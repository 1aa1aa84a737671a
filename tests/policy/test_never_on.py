"""Policies that keep MPTCP off a path."""

import time

import pytest
from controllers import POLICIES
from hosts import wait_for
from transfers import Download, assert_no_checksum_errors, counters, exchange

from policies import both_hooks, chain, hits, load, policy

NEVER_ON = (POLICIES / "never-on.toml").read_text().replace("wwan0", "wlan")


def deny(hook: str) -> str:
    return policy(chain("deny", hook, actors='[{ deny_join = "reset" }]', interfaces=["wlan"]))


REFUSED_AT = {
    "where it begins": ("client", "egress"),
    "where it arrives": ("server", "ingress"),
}


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_the_included_policy_keeps_mptcp_off_a_path(pair, family):
    """Both ends announce addresses on the path, and addresses are added and removed."""
    trusted, forbidden = (pair.ETH, pair.WLAN) if family == "ipv4" else (pair.ETH6, pair.WLAN6)
    load(pair.client, NEVER_ON)
    own = forbidden.removesuffix("2") + "1"
    prefix = "24" if family == "ipv4" else "64"
    second = forbidden.removesuffix("2") + "7"

    def change_addresses():
        refused = hits(pair.client)[2]
        assert refused > 0
        # IPv6 has no route from there to the server's other address.
        if family == "ipv4":
            pair.client.ip(f"mptcp endpoint add {own} dev wlan subflow")
            wait_for("another refused join", lambda: hits(pair.client)[2] > refused)
        nodad = "" if family == "ipv4" else "nodad"
        pair.client.ip(f"addr add {second}/{prefix} dev wlan {nodad}")
        pair.client.ip(f"mptcp endpoint add {second} dev wlan signal")
        wait_for("join from the server", lambda: hits(pair.client)[3] > 0)
        pair.client.ip(f"addr del {second}/{prefix} dev wlan")

    with pair.capture("wlan") as capture:
        exchange(pair, trusted, change_addresses)
        # A connection on that path alone is plain TCP.
        before = counters(pair.client)
        exchange(pair, forbidden)
    plain, _, *joins, _ = hits(pair.client)
    assert plain and all(joins)
    # The server tried to join; no packet sent or delivered by the client had MPTCP options.
    asked = capture.fields(
        "ip.src", "ipv6.src", "tcp.flags", where="tcp.options.mptcp.subtype || tcp.option_kind == 30"
    )
    mine = (own, second)
    assert not [packet for packet in asked if packet[0] in mine or packet[1] in mine], asked
    assert sum(int(length) for (length,) in capture.fields("tcp.len", where="tcp.len > 0")) >= 800_000
    after = counters(pair.client)
    assert after["MPTcpExtMPCapableSYNTX"] > before["MPTcpExtMPCapableSYNTX"]
    assert after["MPTcpExtMPCapableFallbackSYNACK"] > before["MPTcpExtMPCapableFallbackSYNACK"]
    assert counters(pair.server)["MPTcpExtMPJoinSynRx"] == 0
    assert counters(pair.client)["MPTcpExtMPJoinSynRx"] == 0
    assert_no_checksum_errors(pair)


def test_no_connection_moves_to_the_path_with_its_route(pair):
    load(pair.client, NEVER_ON)
    route = "10.77.1.2/32 dev wlan"
    with pair.capture("wlan") as capture:
        download = Download(pair, pair.ETH)
        pair.client.ip(f"route add {route}")
        wait_for("dropped packets", lambda: hits(pair.client)[4] > 0)
        pair.client.ip(f"route del {route}")
        wait_for("the rest of the transfer", lambda: download.mbps(0.3) > 10, timeout=15)
        download.close()
    assert capture.fields("frame.number", where="tcp.option_kind == 30") == []


# Family and place do not depend on each other.
@pytest.mark.parametrize(("where", "family"), zip(REFUSED_AT, ("ipv4", "ipv6")))
def test_a_reset_join_is_not_retried(pair, where, family):
    name, hook = REFUSED_AT[where]
    host = getattr(pair, name)
    load(host, deny(hook))

    def refused():
        # The data of the first connection triggered the announcement and the join.
        wait_for("refused join", lambda: hits(host) > [0])
        # An unanswered SYN is retransmitted after a second.
        time.sleep(2)
        # An announcement is repeated if its echo is late, and each one is followed by a join.
        assert hits(host)[0] <= counters(pair.client)["MPTcpExtAddAddr"]
        sockets = pair.client.run("ss", "-Htn", "state", "syn-sent", text=True).stdout
        assert sockets == ""

    exchange(pair, pair.ETH if family == "ipv4" else pair.ETH6, refused)
    server = counters(pair.server)
    assert server["MPTcpExtMPJoinAckRx"] == 0
    assert (server["MPTcpExtMPJoinNoTokenFound"] > 0) == (name == "server")
    assert_no_checksum_errors(pair)


def test_a_join_in_progress_ends_with_its_answer(pair):
    """A policy that only matches the SYN-ACK resets the subflow at its receiver."""
    load(pair.client, deny("ingress"))
    exchange(pair, pair.ETH, lambda: wait_for("refused join", lambda: hits(pair.client)[0] >= 1))
    assert counters(pair.server)["MPTcpExtMPJoinAckRx"] == 0
    assert_no_checksum_errors(pair)


@pytest.mark.parametrize("flagged", ["both", "client", "neither"])
def test_capable_flag_is_invisible_to_both_kernels_on_a_path(pair, flagged):
    """With the actor at both ends the connection is MPTCP; a peer without it ignores the option."""
    hosts = {"both": (pair.client, pair.server), "client": (pair.client,), "neither": ()}[flagged]
    for host in hosts:
        load(host, both_hooks(actors='["capable_flag"]'))
    with pair.capture("eth") as capture:
        exchange(pair, pair.ETH)
    server = counters(pair.server)
    assert (server["MPTcpExtMPCapableACKRX"] > 0) == (flagged != "client")
    flags = [line[0] for line in capture.fields("tcp.options.mptcp.flags", where="tcp.flags.syn == 1")]
    assert any(int(value, 16) & 0x10 for value in flags if value) == (flagged != "neither"), flags
    assert_no_checksum_errors(pair)
