"""Middleboxes that strip TCP options: the two ends never disagree about protection."""

import pytest
from streams import assert_echo, connect_by_socks, start_gateways

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


PLAIN = {"protected": 0, "plain": 1, "refused": 0, "rejected_identity": 0}
REFUSED = {"protected": 0, "plain": 0, "refused": 1, "rejected_identity": 0}


@pytest.mark.parametrize(
    ("who", "option", "flags"),
    [("client", PLAIT_OPTION, "syn"), ("client", MPTCP_OPTION, "syn"), ("server", MPTCP_OPTION, "syn|ack")],
    ids=["offer", "MP_CAPABLE", "fallback"],
)
def test_stripped_offer_or_mptcp_is_plain_at_both_ends(pair, who, option, flags):
    start_gateways(pair)
    strip(getattr(pair, who), option, flags)
    assert attempt(pair)
    assert counts(pair) == {"serve": PLAIN, "proxy": PLAIN}


@pytest.mark.parametrize(
    ("who", "flags"), [("server", "syn|ack"), ("client", "ack")], ids=["choice", "confirmation"]
)
def test_stripped_choice_or_confirmation_is_a_reset(pair, who, flags):
    """The server chose and the client does not know, or the other way round."""
    start_gateways(pair)
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
