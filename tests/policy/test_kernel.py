"""Actors on real MPTCP connections, verified by the counters of both kernels."""

import os
import pathlib
import socket
import subprocess

import pytest
from gateways import cgroup_mount
from hosts import wait_for
from transfers import counters, disable_offloads, exchange, settle, transfer

from policies import both_hooks, chain, counted, hits, load, policy

FAMILIES = pytest.mark.parametrize("family", ["ipv4", "ipv6"])
# Segmentation offload and address family affect actors independently, so each value of both is tested once.
VARIANTS = pytest.mark.parametrize(
    ("family", "segments"), [("ipv4", "GSO"), ("ipv6", "no GSO")], indirect=["segments"]
)
SIZE = 4_000_000


@pytest.fixture
def segments(pair, request):
    """Sends segments merged (GSO) or one by one."""
    if request.param == "no GSO":
        disable_offloads(pair, "eth", "wlan")


def extension(host) -> dict:
    """The MPTCP counters of a kernel; asserts that there were no checksum errors."""
    found = counters(host)
    assert found["TcpInCsumErrors"] == 0
    return {
        name.removeprefix("MPTcpExt"): value for name, value in found.items() if name.startswith("MPTcpExt")
    }


def address(pair, family) -> str:
    return pair.ETH if family == "ipv4" else pair.ETH6


def sent_bytes(host, link) -> int:
    with host.inside():
        table = pathlib.Path("/proc/thread-self/net/dev").read_text()
    return int(next(line for line in table.splitlines() if line.strip().startswith(f"{link}:")).split()[9])


def assert_mptcp(pair):
    """Asserts that the connection was MPTCP and did not fall back."""
    found = extension(pair.server)
    assert found["MPCapableSYNRX"] == found["MPCapableACKRX"] == 1
    assert found["MPCapableFallbackACK"] == found["MPFailRx"] == found["MPFailTx"] == 0
    assert found.get("MPFallbackTokenInit", 0) == 0


@VARIANTS
def test_selectors_partition_the_packets_of_a_host(pair, family, segments):
    """The selectors of a line partition the packets of its first selector."""
    # Subflows of an IPv6 connection may use IPv4, and on Linux 6.1 also the reverse.
    ends = ["10.77.1.", "10.77.2.", "fd77:1::", "fd77:2::"]
    lines = [
        ["any", *(f"ip_pair({end}1, {end}2)" for end in ends)],
        ["any", *(f"src({end}1)" for end in ends)],
        ["any", "path(eth)", "path(wlan)"],
        ["path(eth)", "path(trusted)"],
        ["path(wlan)", "path(untrusted)"],
        ["any", "subflow(dport = 8080)"],
        ["any", "size(0-1MB)", "size(1MB-)"],
        ["any", "connection_size(0-1MB)", "connection_size(1MB-)"],
        ["any", f"sequence(subflow = 0-{2**31 - 1})", f"sequence(subflow = {2**31}-{2**32 - 1})"],
        ["packet(mapping)", f"sequence(data = 0-{2**63 - 1})", f"sequence(data = {2**63}-{2**64 - 1})"],
        ["packet(syn)", "packet(mp_capable) and packet(syn)", "packet(mp_join) and packet(syn)"],
    ]
    chains = [
        chain(f"c{number}-{place}", "egress", text, "[]")
        for number, line in enumerate(lines)
        for place, text in enumerate(line)
    ]
    load(pair.client, policy(*chains), "--trusted", "eth", "--untrusted", "wlan")
    transfer(pair, address(pair, family), SIZE)
    settle(pair)
    packets = iter(each["packets"] for each in counted(pair.client))
    for line in lines:
        whole, *parts = [next(packets) for _ in line]
        assert sum(parts) == whole, (line, whole, parts)
        # Initial sequence numbers and the joining addresses are random.
        assert all(parts) or line[1].startswith(("sequence", "ip_pair", "src")), (line, whole, parts)


@VARIANTS
def test_dropped_packets_do_not_arrive(pair, family, segments):
    load(pair.server, policy(chain(hook="egress", select="packet(add_addr)", actors='["drop"]')))
    transfer(pair, address(pair, family), SIZE, joins=False)
    assert_mptcp(pair)
    assert hits(pair.server) >= [1] and extension(pair.client)["AddAddr"] == 0


@pytest.mark.parametrize(
    ("family", "segments", "how"),
    [("ipv4", "GSO", '"deny_join"'), ("ipv6", "no GSO", '{ deny_join = "reset" }')],
    indirect=["segments"],
)
def test_deny_join_prevents_subflows_on_a_path(pair, family, segments, how):
    load(pair.client, policy(chain(hook="egress", interfaces=["wlan"], actors=f"[{how}]")))
    with pair.capture("wlan") as wlan:
        transfer(pair, address(pair, family), SIZE, joins=False)
    assert_mptcp(pair)
    assert wlan.fields("frame.number", where="tcp") == [], "not even the SYN is sent"
    assert extension(pair.server)["MPJoinSynRx"] == 0
    assert counted(pair.client)[0]["actors"][0]["hits"] >= 1


@VARIANTS
def test_deny_join_makes_this_host_reject_joins(pair, family, segments):
    load(pair.server, policy(chain(interfaces=["wlan"], actors='[{ deny_join = "reset" }]')))
    transfer(pair, address(pair, family), SIZE, joins=False)
    assert_mptcp(pair)
    found = extension(pair.server)
    assert found["MPJoinNoTokenFound"] >= 1 and found["MPJoinAckRx"] == 0


@FAMILIES
def test_a_join_completes_when_its_connection_is_large_enough(pair, family):
    """The third packet of its handshake is dropped, and retransmitted by TCP."""
    small = "packet(mp_join) and not packet(syn) and connection_size(0-1MB)"
    load(pair.client, policy(chain(hook="egress", select=small, actors='["deny_join"]')))

    def joins() -> bool:
        return extension(pair.server)["MPJoinAckRx"] > 0

    exchange(pair, address(pair, family), lambda: wait_for("held join", lambda: hits(pair.client) > [1]))
    assert not joins()
    # In both directions.
    exchange(pair, address(pair, family), lambda: wait_for("join", joins), size=600_000)


@pytest.mark.parametrize(("family", "hook"), [("ipv4", "ingress"), ("ipv6", "egress")])
def test_fall_back_makes_connections_plain_tcp(pair, family, hook):
    load(pair.server, policy(chain(hook=hook, actors='["fall_back"]')))
    transfer(pair, address(pair, family), SIZE, joins=False)
    found = extension(pair.server)
    assert found["MPJoinSynRx"] == 0
    assert extension(pair.client)["MPCapableFallbackSYNACK"] == 1


@FAMILIES
def test_capable_flag_is_invisible_to_both_kernels(pair, family):
    both = both_hooks(actors='["capable_flag"]')
    for host in (pair.client, pair.server):
        load(host, both)
    # Capture after the egress hook.
    with pair.capture("eth", pair.client) as eth:
        transfer(pair, address(pair, family), 100_000)
    assert_mptcp(pair)
    opening = "tcp.flags == 0x002 && tcp.options.mptcp.subtype == 0"
    ((flags,),) = eth.fields("tcp.options.mptcp.flags", where=opening)
    assert int(flags.split(",")[0], 16) == 0x11
    for host in (pair.client, pair.server):
        hits = [each["actors"][0]["hits"] for each in counted(host)]
        assert hits == [1, 1], "cleared at ingress, set at egress"


def test_redirect_moves_a_subflow_to_another_interface(pair):
    client = pair.client
    redirect = '[{ redirect = "wlan" }]'
    load(client, policy(chain(hook="egress", interfaces=["eth"], actors=redirect)))
    before = {link: sent_bytes(client, link) for link in ("eth", "wlan")}
    pair.server.ip("mptcp endpoint flush")
    transfer(pair, pair.ETH, SIZE, joins=False)
    assert_mptcp(pair)
    used = {link: sent_bytes(client, link) - before[link] for link in before}
    assert used["wlan"] > SIZE and used["eth"] < 10_000


def test_mark_selects_by_socket_mark(pair):
    load(pair.client, policy(*(chain(f"c{mark}", "egress", f"mark({mark})") for mark in (42, 43))))
    mark = (socket.SOL_SOCKET, socket.SO_MARK, 42)
    transfer(pair, pair.ETH, SIZE, prepare=lambda client: client.setsockopt(*mark))
    ours, others = counted(pair.client)
    assert ours["packets"] > 100 and others["packets"] == 0


def test_cgroup_selects_by_control_group(pair, documents):
    (documents / "file").write_bytes(bytes(SIZE))
    name = f"plait-test-{os.getpid()}"
    group = pathlib.Path(cgroup_mount()) / name
    group.mkdir()
    try:
        chains = [
            chain("ours", "egress", f"cgroup(/{name})"),
            chain("others", "egress", f"not cgroup(/{name})"),
        ]
        load(pair.client, policy(*chains))
        where = pair.nginx(documents)
        pair.serve("--mode", "off", to=where)
        url = f"http://{pair.ETH}:8443/file"
        fetch = f'echo $$ >{group}/cgroup.procs && exec mptcpize run curl -sS -o /dev/null "$0"'
        # `ip netns exec` hides cgroup file systems.
        enter = ("nsenter", f"--net=/run/netns/{pair.client.name}")
        done = subprocess.run([*enter, "sh", "-c", fetch, url], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        wait_for("end of the group", lambda: not (group / "cgroup.procs").read_text())
        ours, others = counted(pair.client)
        # Packets of a socket that its program has closed no longer belong to the group.
        assert ours["packets"] > 20 > others["packets"]
    finally:
        group.rmdir()
