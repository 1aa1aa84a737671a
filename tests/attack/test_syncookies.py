"""A server that is flooded with forged SYNs answers with SYN cookies and stores no offer: connections stay protected."""

import contextlib
import random

import pytest
from gateways import report_of
from hosts import wait_for
from streams import NAMED, assert_echo, connect_by_socks, start_gateways
from syn_flood import cookies, shorten_queues, syn_flood

MODES = ("xor64", "stream", "sealed")
REQUIREMENTS = ("--require", "--require=false")
PLAIT_OPTION, MPTCP_OPTION = 254, 30


@pytest.fixture
def always(two_ways):
    """A pair whose server answers every SYN with a cookie; the setting is that of both address families."""
    two_ways.server.tool("sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
    two_ways.client.ip(f"route replace fd77:1::/64 via {two_ways.WLAN6} dev wlan metric 2000")
    return two_ways


def ends(pair) -> list[dict]:
    return [report_of(pair, command) for command in ("serve", "proxy")]


def assert_protected(pair, mode: str, connections: int = 1):
    """Both ends say of the newest connection that it is protected, and of none that it is not."""
    for end in ends(pair):
        connection = end["connections"][-1]
        assert (connection["mode"], connection["protocol"], connection["negotiated"]) == (mode, "mptcp", True)
        counts = end["counts"]
        assert (counts["plain"], counts["refused"], counts["protected"]) == (0, 0, connections)
    assert "PLAIN" not in pair.logged("serve") + pair.logged("proxy")


@pytest.mark.parametrize("address", ["ETH", "ETH6"], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("require", REQUIREMENTS, ids=["required", "preferred"])
@pytest.mark.parametrize("mode", MODES)
def test_connection_by_cookie_is_protected(always, mode, require, address):
    start_gateways(always, "--mode", mode, require, outbound=NAMED)
    with connect_by_socks(always, getattr(always, address)) as client:
        assert_echo(client, random.Random(1).randbytes(300_000))
        assert_protected(always, mode)
        if mode == "sealed":
            levels = lambda: [end["connections"][0]["level"] for end in ends(always)]  # noqa: E731
            wait_for("witness, which may be late", lambda: levels() == ["2/2", "2/2"])
        # Joins have cookies, too.
        wait_for("both subflows", lambda: len(ends(always)[0]["connections"][0]["subflows"]) == 2)
    sent, returned = cookies(always)
    assert sent >= returned >= (3 if mode == "sealed" else 2), "also the further subflow, and the witness"


def test_confirmation_repeats_the_offer(always):
    """The bytes on the wire: FE 04 50 and the modes, until the server's first packet."""
    start_gateways(always, "--mode", "sealed", "--require")
    with always.capture("eth") as eth, connect_by_socks(always) as client:
        assert_echo(client)
    options = [
        bytes.fromhex(found.replace(":", ""))
        for [found] in eth.fields("tcp.options", where="tcp.dstport == 8443 && tcp.options.experimental")
    ]
    [offer, *confirmations] = options
    offered = offer[offer.index(b"\xfe\x08PLAI\x01") + 7]
    assert offered & 0x30 == offered
    assert confirmations
    assert all(bytes([0xFE, 4, 0x50, offered]) in each for each in confirmations)


@pytest.mark.parametrize("mode", MODES)
def test_lost_third_packet_is_replaced_by_the_first_data(always, mode):
    """The first packet with data has MP_CAPABLE and the confirmation, too, and completes the handshake."""
    start_gateways(always, "--mode", mode, "--require")
    lost = "tcp dport 8443 tcp flags & (syn|ack|psh) == ack tcp option mptcp subtype 0 counter drop"
    with always.client.packet_rules(output=lost), connect_by_socks(always) as client:
        assert_echo(client)
        assert_protected(always, mode)
        assert "counter packets 0 " not in always.client.tool("nft", "list", "table", "inet", "test")
    assert cookies(always)[1] > 0


@pytest.mark.parametrize("require", REQUIREMENTS, ids=["required", "preferred"])
@pytest.mark.parametrize("syncookies", [2, 0], ids=["cookie", "stored"])
@pytest.mark.parametrize("who, flags", [("client", "syn"), ("server", "syn|ack")], ids=["offer", "choice"])
def test_changed_offer_or_choice_is_refused(always, who, flags, syncookies, require):
    """A path that leaves one of two variants in the offer, or changes the choice: the confirmation shows it."""
    always.server.tool("sysctl", "-qw", f"net.ipv4.tcp_syncookies={syncookies}")
    start_gateways(always, "--mode", "xor64", require)
    # Version 1, and only seed `key`.
    change = f"tcp flags & (syn|ack) == {flags} tcp option @254,48,16 set 0x0101"
    try:
        getattr(always, who).add_packet_rules(output=change)
    except RuntimeError as error:
        pytest.skip(f"nft cannot change TCP options here: {error}")
    with pytest.raises((AssertionError, ConnectionResetError)):
        assert_echo(connect_by_socks(always))
    server, client = ends(always)
    assert (server["counts"]["protected"], server["counts"]["plain"], client["counts"]["plain"]) == (0, 0, 0)
    assert server["handshake_failures"]["unconfirmed"] > 0


def strip(host, option: int, flags: str):
    return host.packet_rules(output=f"tcp flags & (syn|ack) == {flags} reset tcp option {option}")


@pytest.mark.parametrize(
    ("who", "option", "flags"),
    [("client", PLAIT_OPTION, "syn"), ("server", PLAIT_OPTION, "syn|ack"), ("client", MPTCP_OPTION, "syn")],
    ids=["offer", "choice", "MP_CAPABLE"],
)
def test_stripped_options_are_plain_at_both_ends_and_counted(always, who, option, flags):
    """The server stored nothing, so that both ends agree also if its choice is lost."""
    start_gateways(always, "--mode", "stream", "--require=false")
    with strip(getattr(always, who), option, flags), connect_by_socks(always) as client:
        assert_echo(client)
        for end in ends(always):
            assert end["counts"]["plain"] == 1 and end["counts"]["protected"] == 0
        assert "PLAIN" in always.logged("serve") and "PLAIN" in always.logged("proxy")


@pytest.mark.parametrize("require", REQUIREMENTS, ids=["required", "preferred"])
def test_stripped_confirmation_ends_a_sealed_connection(always, require):
    """The server cannot tell this from a client without plait. The client can: nobody answers its HELLO."""
    start_gateways(always, "--mode", "sealed", require)
    with strip(always.client, PLAIT_OPTION, "ack"), pytest.raises((AssertionError, ConnectionResetError)):
        assert_echo(connect_by_socks(always))
    assert [end["counts"]["protected"] for end in ends(always)] == [0, 0]


@pytest.mark.parametrize("require", REQUIREMENTS, ids=["required", "preferred"])
@pytest.mark.parametrize("mode", MODES)
def test_connections_stay_protected_under_a_flood(two_ways, mode, require):
    """Of either family, because the queue is the listening socket's."""
    connections = 10
    shorten_queues(two_ways.server)
    start_gateways(two_ways, "--mode", mode, require)
    with syn_flood(two_ways):
        before = cookies(two_ways)[1]
        for number in range(connections):
            address = two_ways.ETH6 if number % 2 else two_ways.ETH
            with connect_by_socks(two_ways, address) as client:
                assert_echo(client, random.Random(number).randbytes(10_000))
                assert_protected(two_ways, mode, number + 1)
        returned = cookies(two_ways)[1] - before
    assert returned >= connections / 2, f"{returned} of {connections} connections needed a cookie"
