"""Negotiation by a flag of MP_CAPABLE (`--negotiate flag`): the packets as tshark sees them, and what the two ends conclude."""

import pathlib
import random
import re

import pytest
import wires
from controllers import built
from gateways import report_of, skip_without_programs_at_interfaces
from hosts import PLAIT, Pair, unique_id, wait_for
from streams import (
    MPTCP,
    XOR64,
    accept,
    assert_echo,
    connect_by_socks,
    deliver,
    listen,
    plain_server,
    start_gateways,
)

import bpf

FLAG = (*XOR64, "--negotiate", "flag")
# RFC 8684, 3.1: D is the first flag that is not assigned; H means HMAC-SHA256.
FLAG_D, FLAG_H = 0x10, 0x01
PLAIT_EXID = "504c4149"


@pytest.fixture(autouse=True)
def programs_at_interfaces():
    skip_without_programs_at_interfaces()


def flags_of_capable(capture) -> dict[str, set[int]]:
    """The flags of MP_CAPABLE in each packet of the handshake."""
    kinds = {("1", "0"): "SYN", ("1", "1"): "SYN-ACK", ("0", "1"): "ACK"}
    found: dict[str, set[int]] = {}
    names = ("tcp.flags.syn", "tcp.flags.ack", "tcp.options.mptcp.flags")
    for syn, ack, flags in capture.fields(*names, where="tcp.options.mptcp.subtype == 0"):
        found.setdefault(kinds[syn, ack], set()).add(int(flags, 16))
    return found


def attached_programs(pid: int) -> set[int]:
    """The ids of the programs whose links to interfaces (tcx) a process has open."""
    files = [file.read_text() for file in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir()]
    return {
        int(re.search(r"^prog_id:\s*(\d+)", text, re.M)[1]) for text in files if "link_type:\ttcx" in text
    }


@pytest.mark.parametrize("family", ["ETH", "ETH6"])
def test_flag_negotiates_and_no_option_leaves_the_host(pair, family):
    start_gateways(pair, *FLAG, "--require")
    data = random.Random(1).randbytes(200_000)
    with pair.capture("eth") as capture, connect_by_socks(pair, getattr(pair, family)) as client:
        assert_echo(client, data)
        connection = report_of(pair, "proxy")["connections"][0]
    assert connection["mode"] == "xor64"
    flags = flags_of_capable(capture)
    assert flags == {kind: {FLAG_D | FLAG_H} for kind in ("SYN", "SYN-ACK", "ACK")}
    options = [line[0] for line in capture.fields("tcp.options", where="tcp.options")]
    assert options and not any(PLAIT_EXID in words or "fe0450" in words for words in options)
    assert data[:1000] not in capture.payload()


def test_flag_negotiates_with_syn_cookies(pair):
    """A responder that sends a cookie stores nothing, and the packet with the cookie belongs to no socket."""
    pair.server.tool("sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
    start_gateways(pair, *FLAG, "--require")
    with pair.capture("eth") as capture, connect_by_socks(pair) as client:
        assert_echo(client)
    assert flags_of_capable(capture) == {kind: {FLAG_D | FLAG_H} for kind in ("SYN", "SYN-ACK", "ACK")}
    assert int(pair.server.tool("nstat", "-azs", "TcpExtSyncookiesRecv").split()[-2]) > 0


@pytest.mark.parametrize("kind", ["tun", "vlan", "bridge"])
def test_flag_negotiates_on_other_links_than_ethernet(tmp_path, kind):
    class ByKind(Pair):
        def join(self, link):
            tunnels.append(wires.join(kind, self.client, self.server, link))

    tunnels: list = []
    with built(ByKind(unique_id(), tmp_path)) as pair:
        start_gateways(pair, *FLAG, "--require")
        # The lowest interface takes the flag.
        link = "eth" if kind == "tun" else "eth-below"
        with pair.capture(link) as capture, connect_by_socks(pair) as client:
            assert_echo(client)
        assert flags_of_capable(capture) == {kind: {FLAG_D | FLAG_H} for kind in ("SYN", "SYN-ACK", "ACK")}
    for tunnel in filter(None, tunnels):
        tunnel.close()


def test_checksums_are_right(pair):
    """As tshark computes them, without offloads, which would compute them after the program."""
    for host in (pair.client, pair.server):
        host.tool("ethtool", "-K", "eth", "tx", "off", "rx", "off")
    start_gateways(pair, *FLAG, "--require")
    with pair.capture("eth") as capture, connect_by_socks(pair) as client:
        assert_echo(client)
    # 1: good, 2: not verified.
    states = capture.fields("tcp.checksum.status", preferences=("tcp.check_checksum:TRUE",))
    assert {state for (state,) in states} == {"1"}
    assert flags_of_capable(capture)["SYN"] == {FLAG_D | FLAG_H}


@pytest.mark.parametrize(("outbound", "inbound"), [(FLAG, XOR64), (XOR64, FLAG)], ids=["flag", "option"])
def test_ends_that_negotiate_differently_are_plain_or_refused(pair, outbound, inbound):
    listener = listen(pair.server)
    pair.serve(*inbound, "--require=false", to="127.0.0.1:9000")
    pair.proxy(*outbound, "--trusted", "eth")
    with connect_by_socks(pair) as client:
        deliver(client, accept(listener))
        assert report_of(pair, "proxy")["connections"][0]["mode"] == "off"
    assert "PLAIN" in pair.logged("proxy")
    pair.proxy(*outbound, "--require", "--trusted", "eth", listen="127.0.0.1:1081")
    with pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect_by_socks(pair, proxy=("127.0.0.1", 1081))


@pytest.mark.parametrize("protocol", [MPTCP, 6], ids=["mptcp", "tcp"])
def test_peer_without_plait_is_carried_plain_or_refused(pair, protocol):
    plain_server(pair, 8443, b"answer", protocol)
    pair.proxy(*FLAG, "--trusted", "eth")
    with connect_by_socks(pair) as client:
        client.sendall(b"?")
        assert client.recv(6) == b"answer"
    pair.proxy(*FLAG, "--require", "--trusted", "eth", listen="127.0.0.1:1081")
    with pytest.raises(AssertionError, match="SOCKS reply 0x02"):
        connect_by_socks(pair, proxy=("127.0.0.1", 1081))


def test_client_without_plait_is_served_plain_without_requirement(pair):
    listener = listen(pair.server)
    pair.serve(*FLAG, "--require=false", to="127.0.0.1:9000")
    client = pair.client.socket(protocol=MPTCP)
    client.connect((pair.ETH, 8443))
    deliver(client, accept(listener))
    client.close()


def test_other_programs_on_the_host_are_left_alone(pair):
    pair.serve(*FLAG, to="127.0.0.1:9000")
    pair.proxy(*FLAG, "--trusted", "eth")
    listener = listen(pair.server, 7000, pair.ETH, MPTCP)
    with pair.capture("eth") as capture:
        client = pair.client.socket(protocol=MPTCP)
        client.connect((pair.ETH, 7000))
        deliver(client, accept(listener))
    assert flags_of_capable(capture) == {kind: {FLAG_H} for kind in ("SYN", "SYN-ACK", "ACK")}
    client.close()


def test_nothing_stays_at_the_interfaces_of_a_killed_gateway(pair):
    gateway = pair.serve(*FLAG, to="127.0.0.1:9000")
    programs = attached_programs(gateway.pid)
    assert programs and programs <= bpf.ids("prog")
    gateway.kill()
    gateway.wait()
    wait_for("no programs", lambda: not programs & bpf.ids("prog"))


def test_only_xor64_can_be_negotiated_by_a_flag(pair, tmp_path):
    configuration = tmp_path / "plait.toml"
    configuration.write_text('mode = "sealed"\nnegotiate = "flag"\n')
    flag = ("--negotiate", "flag")
    for options in (flag, ("--mode", "stream", *flag), ("--config", configuration)):
        done = pair.client.run(PLAIT, "proxy", *options, text=True, timeout=20)
        assert done.returncode == 1 and "expected mode 'xor64' with --negotiate flag" in done.stderr, (
            done.stderr
        )
