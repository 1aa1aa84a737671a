"""A policy that keeps every MPTCP packet off a path."""

import time

import pytest
from hosts import tool, wait_for
from transfers import assert_no_checksum_errors, counters, exchange

from policies import hits, load

# What goes out is refused here, so that not even the wish is seen; what comes in vanishes.
NEVER_ON = """
name = "never-on"
interfaces = ["wlan"]
[[chains]]
name = "out"
hook = "egress"
actors = [{ deny_join = "reset" }, "fall_back"]
[[chains]]
name = "in"
hook = "ingress"
actors = ["deny_join", "fall_back"]
"""
REFUSED_AT = {
    "where it begins": ("client", "egress"),
    "where it arrives": ("server", "ingress"),
}


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_never_on_keeps_mptcp_off_a_path(pair, family):
    """Both ends announce addresses on the path, and addresses are added and removed."""
    trusted, forbidden = (pair.ETH, pair.WLAN) if family == "ipv4" else (pair.ETH6, pair.WLAN6)
    load(pair.client, NEVER_ON)
    own = forbidden.removesuffix("2") + "1"
    prefix = "24" if family == "ipv4" else "64"
    second = forbidden.removesuffix("2") + "7"

    def change_addresses():
        refused = hits(pair.client)[0]
        assert refused > 0
        # IPv6 has no route from there to the server's other address.
        if family == "ipv4":
            tool("ip", "-n", pair.client.name, "mptcp", "endpoint", "add", own, "dev", "wlan", "subflow")
            wait_for("another refused join", lambda: hits(pair.client)[0] > refused)
        nodad = [] if family == "ipv4" else ["nodad"]
        tool("ip", "-n", pair.client.name, "addr", "add", f"{second}/{prefix}", "dev", "wlan", *nodad)
        tool("ip", "-n", pair.client.name, "mptcp", "endpoint", "add", second, "dev", "wlan", "signal")
        wait_for("join from the server", lambda: hits(pair.client)[1] > 0)
        tool("ip", "-n", pair.client.name, "addr", "del", f"{second}/{prefix}", "dev", "wlan")

    with pair.capture("wlan") as capture:
        exchange(pair, trusted, change_addresses)
        # A connection on that path alone is plain TCP.
        before = counters(pair.client)
        exchange(pair, forbidden)
    out, into = hits(pair.client)
    assert out > 0 and into > 0
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


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize("where", REFUSED_AT)
def test_a_reset_join_is_not_retried(pair, where, family):
    name, hook = REFUSED_AT[where]
    host = getattr(pair, name)
    load(
        host,
        f'interfaces = ["wlan"]\n[[chains]]\nname = "deny"\nhook = "{hook}"\nactors = [{{ deny_join = "reset" }}]\n',
    )

    def refused():
        # The data of the first connection triggered the announcement and the join.
        wait_for("refused join", lambda: hits(host) > [0])
        # An unanswered SYN is retransmitted after a second.
        time.sleep(0.5)
        asked = hits(host)
        time.sleep(1.5)
        assert hits(host) == asked
        sockets = pair.client.run("ss", "-Htn", "state", "syn-sent", text=True).stdout
        assert sockets == ""

    exchange(pair, pair.ETH if family == "ipv4" else pair.ETH6, refused)
    server = counters(pair.server)
    assert server["MPTcpExtMPJoinAckRx"] == 0
    assert (server["MPTcpExtMPJoinNoTokenFound"] > 0) == (name == "server")
    assert_no_checksum_errors(pair)


def test_a_join_in_progress_ends_with_its_answer(pair):
    """A policy that only matches the SYN-ACK resets the subflow at its receiver."""
    load(
        pair.client,
        'interfaces = ["wlan"]\n[[chains]]\nname = "deny"\nhook = "ingress"\nactors = [{ deny_join = "reset" }]\n',
    )
    exchange(pair, pair.ETH, lambda: wait_for("refused join", lambda: hits(pair.client)[0] >= 1))
    assert counters(pair.server)["MPTcpExtMPJoinAckRx"] == 0
    assert_no_checksum_errors(pair)


@pytest.mark.parametrize("flagged", ["both", "client", "neither"])
def test_capable_flag_is_invisible_to_both_kernels_on_a_path(pair, flagged):
    """With the actor at both ends the connection is MPTCP; a peer without it ignores the option."""
    text = 'interfaces = ["*"]\n' + "".join(
        f'[[chains]]\nname = "{hook}"\nhook = "{hook}"\nactors = ["capable_flag"]\n'
        for hook in ("egress", "ingress")
    )
    hosts = {"both": (pair.client, pair.server), "client": (pair.client,), "neither": ()}[flagged]
    for host in hosts:
        load(host, text)
    with pair.capture("eth") as capture:
        exchange(pair, pair.ETH)
    server = counters(pair.server)
    assert (server["MPTcpExtMPCapableACKRX"] > 0) == (flagged != "client")
    flags = [line[0] for line in capture.fields("tcp.options.mptcp.flags", where="tcp.flags.syn == 1")]
    assert any(int(value, 16) & 0x10 for value in flags if value) == (flagged != "neither"), flags
    assert_no_checksum_errors(pair)
