"""Middleboxes that strip TCP options or a flag: the two ends never disagree about protection. Others that translate addresses."""

import pytest
from gateways import skip_without_programs_at_interfaces
from hosts import wait_for
from streams import NAMED, XOR64, assert_echo, connect_by_socks, start_gateways

PLAIT_OPTION, MPTCP_OPTION = 254, 30


def strip(host, option, flags):
    """Overwrites an option with NOPs in every packet that leaves a host with exactly these of SYN and ACK."""
    try:
        host.add_packet_rules(output=f"tcp flags & (syn|ack) == {flags} reset tcp option {option}")
    except RuntimeError as error:
        pytest.skip(f"nft cannot strip TCP options here: {error}")


def attempt(pair):
    """Whether an echo through both gateways works; otherwise the connection failed or was reset."""
    try:
        client = connect_by_socks(pair)
    except AssertionError as refused:
        assert "SOCKS reply" in str(refused)
        return False
    try:
        assert_echo(client)
        return True
    except ConnectionResetError:
        return False


def counts(pair):
    return {gateway["command"]: gateway["counts"] for gateway in pair.status()}


NONE = {
    "protected": 0,
    "invalid_records": 0,
    "key_updates": 0,
    "plain": 0,
    "refused": 0,
    "rejected_identity": 0,
}
PLAIN = NONE | {"plain": 1}
REFUSED = NONE | {"refused": 1}


@pytest.mark.parametrize(
    ("who", "option", "flags"),
    [("client", PLAIT_OPTION, "syn"), ("client", MPTCP_OPTION, "syn"), ("server", MPTCP_OPTION, "syn|ack")],
    ids=["offer", "MP_CAPABLE", "fallback"],
)
def test_stripped_offer_or_mptcp_is_plain_at_both_ends(pair, who, option, flags):
    start_gateways(pair, "--require=false")
    strip(getattr(pair, who), option, flags)
    assert attempt(pair)
    assert counts(pair) == {"serve": PLAIN, "proxy": PLAIN}


@pytest.mark.parametrize(
    ("who", "flags"), [("server", "syn|ack"), ("client", "ack")], ids=["choice", "confirmation"]
)
def test_stripped_choice_or_confirmation_is_a_reset(pair, who, flags):
    """The server chose and the client does not know, or the other way round."""
    start_gateways(pair, "--require=false")
    strip(getattr(pair, who), PLAIT_OPTION, flags)
    assert not attempt(pair)
    assert counts(pair)["serve"] == REFUSED


@pytest.mark.parametrize("option", [PLAIT_OPTION, MPTCP_OPTION])
@pytest.mark.parametrize("who, flags", [("client", "syn"), ("server", "syn|ack")])
def test_require_refuses_any_stripped_option(pair, option, who, flags):
    start_gateways(pair, "--require")
    strip(getattr(pair, who), option, flags)
    with pytest.raises(AssertionError, match="SOCKS reply 0x0[12]"):
        connect_by_socks(pair)
    assert sum(count["protected"] for count in counts(pair).values()) == 0


@pytest.mark.parametrize(
    ("who", "option", "flags", "expected"),
    [
        ("client", PLAIT_OPTION, "syn", {"serve": PLAIN, "proxy": PLAIN}),
        ("client", MPTCP_OPTION, "syn", {"serve": PLAIN, "proxy": PLAIN}),
        ("server", PLAIT_OPTION, "syn|ack", {"serve": REFUSED}),
        ("server", MPTCP_OPTION, "syn|ack", {"serve": REFUSED}),
        ("client", PLAIT_OPTION, "ack", {"serve": REFUSED}),
    ],
    ids=["offer", "MP_CAPABLE", "choice", "fallback", "confirmation"],
)
def test_stripped_flag_is_plain_at_both_ends_or_a_reset(pair, who, option, flags, expected):
    """The option is stripped before it becomes the flag, which is then not set."""
    skip_without_programs_at_interfaces()
    start_gateways(pair, *XOR64, "--negotiate", "flag", "--require=false")
    strip(getattr(pair, who), option, flags)
    assert attempt(pair) == (expected["serve"] == PLAIN)
    assert expected.items() <= counts(pair).items()


def test_sealed_connections_cross_address_translation_on_every_path(two_ways):
    """No address is in the transcript."""
    translated = {"eth": "10.77.1.77", "wlan": "10.77.2.77"}
    for link, address in translated.items():
        two_ways.client.ip(f"addr add {address}/24 dev {link}")
    rules = " ".join(f"oifname {link} snat to {address};" for link, address in translated.items())
    try:
        chain = f"chain translate {{ type nat hook postrouting priority 100; {rules} }};"
        two_ways.client.tool("nft", f"table ip translation {{ {chain} }}")
    except RuntimeError as error:
        pytest.skip(f"nft cannot translate addresses here: {error}")
    start_gateways(two_ways, "--require=all-paths", outbound=NAMED)
    with connect_by_socks(two_ways) as client:
        assert_echo(client)

        def peers() -> set:
            lines = two_ways.server.tool("ss", "-Htn", "state", "established", "sport = :8443").splitlines()
            return {
                line.split()[3].removeprefix("[::ffff:").split("]")[0].rsplit(":", 1)[0] for line in lines
            }

        wait_for("both subflows", lambda: peers() == set(translated.values()))
        assert [end["connections"][0]["level"] for end in two_ways.status()] == ["2/2", "2/2"]
