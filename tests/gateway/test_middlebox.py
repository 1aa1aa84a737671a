"""Middleboxes that strip TCP options: the two ends never disagree about protection."""

import pytest
from hosts import tool
from streams import REQUIRE, connect_by_socks, echo_server, receive_exactly

PLAIT_OPTION, MPTCP_OPTION = 254, 30


def strip(host, option, flags):
    """Overwrites an option with NOPs in every packet that leaves a host with exactly these of SYN and ACK."""
    rules = f"""
        add table inet middlebox
        add chain inet middlebox out {{ type filter hook output priority 0; }}
        add rule inet middlebox out tcp flags & (syn|ack) == {flags} reset tcp option {option}
    """
    (host.directory / "rules").write_text(rules)
    try:
        tool("ip", "netns", "exec", host.name, "nft", "-f", str(host.directory / "rules"))
    except RuntimeError as error:
        pytest.skip(f"nft cannot strip TCP options here: {error}")


def attempt(pair):
    """Whether an echo through both gateways works; the other answers are a failed connection and a reset."""
    try:
        client = connect_by_socks(pair, pair.ETH, 8443)
    except AssertionError as refused:
        assert "SOCKS reply" in str(refused)
        return False
    try:
        client.sendall(b"hello")
        return receive_exactly(client, 5) == b"hello"
    except ConnectionResetError:
        return False


def counts(pair):
    return {gateway["command"]: gateway["counts"] for gateway in pair.status()}


@pytest.fixture
def preferring(pair):
    echo_server(pair.server)
    pair.serve(to="127.0.0.1:9000")
    pair.proxy("--trusted", "eth")
    return pair


@pytest.mark.parametrize("option", [PLAIT_OPTION, MPTCP_OPTION])
def test_stripped_offer_is_a_plain_connection_at_both_ends(preferring, option):
    strip(preferring.client, option, "syn")
    assert attempt(preferring)
    for count in counts(preferring).values():
        assert count == {"protected": 0, "plain": 1, "refused": 0, "rejected_identity": 0}


def test_fallback_is_plain_at_both_ends(preferring):
    strip(preferring.server, MPTCP_OPTION, "syn|ack")
    assert attempt(preferring)
    for count in counts(preferring).values():
        assert count == {"protected": 0, "plain": 1, "refused": 0, "rejected_identity": 0}


def test_stripped_choice_is_a_reset(preferring):
    """The server chose, the client saw nothing: without the confirmation they would talk past each other."""
    strip(preferring.server, PLAIT_OPTION, "syn|ack")
    assert not attempt(preferring)
    assert counts(preferring)["serve"] == {"protected": 0, "plain": 0, "refused": 1, "rejected_identity": 0}


def test_stripped_confirmation_is_a_reset(preferring):
    strip(preferring.client, PLAIT_OPTION, "ack")
    assert not attempt(preferring)
    assert counts(preferring)["serve"] == {"protected": 0, "plain": 0, "refused": 1, "rejected_identity": 0}


@pytest.mark.parametrize("option", [PLAIT_OPTION, MPTCP_OPTION])
@pytest.mark.parametrize("who, flags", [("client", "syn"), ("server", "syn|ack")])
def test_require_refuses_any_stripped_option(pair, option, who, flags):
    echo_server(pair.server)
    pair.serve("--require", to="127.0.0.1:9000")
    pair.proxy(*REQUIRE)
    strip(getattr(pair, who), option, flags)
    with pytest.raises(AssertionError, match="SOCKS reply 0x0[12]"):
        connect_by_socks(pair, pair.ETH, 8443)
    assert sum(count["protected"] for count in counts(pair).values()) == 0
