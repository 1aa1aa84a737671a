"""An attacker on the path strips TCP options from connections to a peer that was reached `sealed` before."""

import json
import subprocess

import pytest
from gateways import report_of
from hosts import NAME, PLAIT, wait_for
from streams import assert_echo, connect_by_socks, echo_server, plain_server, receive_exactly

SERVER = "10.77.1.2:8443"
PLAIT_OPTION, MPTCP_OPTION = 254, 30
# Who sends the packet, its flags, the option that is overwritten with NOPs, and what the client then sees.
STRIPPED = {
    "offer": ("client", "syn", PLAIT_OPTION, "the peer did not negotiate"),
    "MP_CAPABLE": ("client", "syn", MPTCP_OPTION, "the peer did not negotiate"),
    "fallback": ("server", "syn|ack", MPTCP_OPTION, "fell back to TCP"),
}


@pytest.fixture
def echoing(pair):
    """A pair whose server has an echo service behind a gateway that only prefers protection, as the client's do."""
    echo_server(pair.server)
    pair.serve("--require=false", to="127.0.0.1:9000")
    return pair


def stripping(pair, name: str):
    sender, flags, option, _ = STRIPPED[name]
    return getattr(pair, sender).packet_rules(
        output=f"tcp flags & (syn|ack) == {flags} reset tcp option {option}"
    )


def start_proxy(pair, *options):
    gateway = pair.proxy("--trusted", "eth", *options)
    # It listens before it answers.
    wait_for("status", lambda: any(each["command"] == "proxy" for each in pair.status()))
    return gateway


def stop(gateway):
    gateway.terminate()
    assert gateway.wait(15) == 0


def carried_mode(pair) -> str:
    """The mode of a new connection, after it was used."""
    with connect_by_socks(pair) as client:
        assert_echo(client)
        return report_of(pair, "proxy")["connections"][-1]["mode"]


def refused_for(pair, reason: str, connect=connect_by_socks) -> str:
    """A new connection is refused, and the log has the reason. Returns the reason that the gateway has counted."""
    before, logged = report_of(pair, "proxy"), len(pair.logged("proxy"))
    # Not allowed by ruleset.
    with pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect(pair)
    after = report_of(pair, "proxy")
    assert after["counts"] == before["counts"] | {"refused": before["counts"]["refused"] + 1}
    failures = after["handshake_failures"].items() - before["handshake_failures"].items()
    [(counted, _)] = failures
    [line] = (line for line in pair.logged("proxy")[logged:].splitlines() if " refused: " in line)
    assert "WARN" in line and "was reached sealed before" in line and reason in line, line
    return counted


def peers(pair, *arguments) -> subprocess.CompletedProcess:
    return pair.client.run(PLAIT, "peers", *arguments, text=True)


def remembered(pair) -> dict[str, dict]:
    done = peers(pair, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["file"] == str(pair.client.state / "sealed_peers")
    return {peer.pop("peer"): peer for peer in document["peers"]}


@pytest.mark.parametrize("name", STRIPPED)
def test_stripped_option_is_refused_once_the_peer_was_sealed(echoing, name):
    """Also by a gateway that was started later; until the operator forgets the peer."""
    gateway = start_proxy(echoing)
    with stripping(echoing, name):
        assert carried_mode(echoing) == "off", "on first contact nothing is known"
    assert not remembered(echoing)
    assert carried_mode(echoing) == "sealed"
    assert list(remembered(echoing)) == [SERVER]
    with stripping(echoing, name):
        assert refused_for(echoing, STRIPPED[name][-1]) == "downgrade"
        assert "somebody on the path through eth may be stripping TCP options" in echoing.logged("proxy")
        stop(gateway)
        start_proxy(echoing)
        refused_for(echoing, f"plait peers forget {SERVER}")
        done = echoing.run(
            "socat", "-t", "5", "-", f"TCP:{SERVER}", input=b"hello", options=("--trusted", "eth")
        )
        assert done.stdout == b"" and f"{SERVER}: refused: ".encode() in done.stderr
    assert carried_mode(echoing) == "sealed"
    with stripping(echoing, name):
        assert peers(echoing, "forget", SERVER).returncode == 0
        assert carried_mode(echoing) == "off"


def test_sealed_peer_is_not_carried_in_a_weaker_mode(echoing):
    """Whether the gateway is configured so, or the host cannot protect."""
    gateway = start_proxy(echoing)
    assert carried_mode(echoing) == "sealed"
    for mode in ("stream", "xor64", "off"):
        stop(gateway)
        gateway = start_proxy(echoing, "--mode", mode)
        assert refused_for(echoing, f"the mode of this gateway is '{mode}'") == "weaker_mode"


def test_peer_that_never_was_sealed_is_carried_plain(echoing):
    """A memory of one peer does not affect others, such as another port of the same host."""
    start_proxy(echoing)
    assert carried_mode(echoing) == "sealed"
    plain_server(echoing, 9443, b"hello")
    with connect_by_socks(echoing, port=9443) as client:
        client.sendall(b"?")
        assert receive_exactly(client, 5) == b"hello"
    assert list(remembered(echoing)) == [SERVER]


def connect_by_name(pair):
    return connect_by_socks(pair, NAME)


def test_peer_is_remembered_by_name_wherever_the_name_leads(echoing, names):
    """A forged address of the name does not help the attacker."""
    names(echoing.ETH)
    start_proxy(echoing)
    with connect_by_name(echoing) as client:
        assert_echo(client)
    assert list(remembered(echoing)) == [f"{NAME}:8443"]
    # By its address it is another peer, not yet known.
    with stripping(echoing, "offer"):
        assert carried_mode(echoing) == "off"
    echoing.server.ip("addr add 10.77.1.3/24 dev eth")
    names("10.77.1.3")
    with stripping(echoing, "offer"):
        refused_for(echoing, f"plait peers forget {NAME}:8443", connect_by_name)
    assert peers(echoing, "forget", f"{NAME.upper()}:8443").returncode == 0
    assert not remembered(echoing)


def test_peers_are_listed_and_forgotten(echoing):
    done = peers(echoing)
    assert done.returncode == 0 and "no peer was reached sealed" in done.stdout
    start_proxy(echoing)
    assert carried_mode(echoing) == "sealed"
    [peer] = remembered(echoing).values()
    assert peer["first"] == peer["last"] and peer["address"] == echoing.ETH
    head, line = peers(echoing).stdout.splitlines()
    assert head.split() == ["peer", "first", "sealed", "last", "sealed", "address"]
    assert line.split() == [SERVER, peer["first"], peer["last"], echoing.ETH]
    file = echoing.client.state / "sealed_peers"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    unknown = peers(echoing, "forget", "10.77.1.2:8444")
    assert unknown.returncode == 1 and "got '10.77.1.2:8444'" in unknown.stderr
    assert peers(echoing, "forget", SERVER).returncode == 0
    assert not remembered(echoing) and file.read_text() == ""


def test_unreadable_memory_refuses_plain_connections_only(echoing):
    start_proxy(echoing)
    assert carried_mode(echoing) == "sealed"
    file = echoing.client.state / "sealed_peers"
    file.write_text(f"{SERVER} tomorrow\n")
    assert carried_mode(echoing) == "sealed"
    with stripping(echoing, "offer"), pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect_by_socks(echoing)
    wait_for("reason", lambda: f"{file}, line 1: expected HOST:PORT" in echoing.logged("proxy"))
