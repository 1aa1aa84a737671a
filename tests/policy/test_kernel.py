"""What actors do to real MPTCP: two kernels' own counters, over IPv4 and IPv6, with segments sent as one and one by one."""

import os
import pathlib
import socket
import subprocess
import threading

import pytest
from hosts import tool, wait_for
from transfers import counters, exchange, send_one_by_one, settle, transfer

from policies import chain, hits, load, policy, stats

FAMILIES = pytest.mark.parametrize("family", ["ipv4", "ipv6"])
SEGMENTED = pytest.mark.usefixtures("segments")
SIZE = 4_000_000


@pytest.fixture(params=["GSO", "no GSO"])
def segments(pair, request):
    """Segments are sent as one, or one by one."""
    if request.param == "no GSO":
        send_one_by_one(pair, "eth", "wlan")


def extension(host) -> dict:
    """What a kernel counted of MPTCP; checksums have been right all the time."""
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


def is_mptcp(pair):
    """The connection was, and stayed, one of MPTCP."""
    found = extension(pair.server)
    assert found["MPCapableSYNRX"] == found["MPCapableACKRX"] == 1
    assert found["MPCapableFallbackACK"] == found["MPFailRx"] == found["MPFailTx"] == 0
    assert found.get("MPFallbackTokenInit", 0) == 0


@FAMILIES
@SEGMENTED
def test_selectors_divide_what_a_host_sends(pair, family):
    """Those of a line are for what the first is for, each packet for one of them."""
    # Subflows of one of IPv6 may be of IPv4, and Linux 6.1 tries the other way round as well.
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
    counted = iter(each["packets"] for each in stats(pair.client)["policies"][0]["chains"])
    for line in lines:
        whole, *parts = [next(counted) for _ in line]
        assert sum(parts) == whole, (line, whole, parts)
        # Where a stream of numbers begins, and which addresses join, is chance.
        assert all(parts) or line[1].startswith(("sequence", "ip_pair", "src")), (line, whole, parts)


@FAMILIES
@SEGMENTED
def test_what_is_dropped_does_not_arrive(pair, family):
    load(pair.server, policy(chain(hook="egress", select="packet(add_addr)", actors='["drop"]')))
    transfer(pair, address(pair, family), SIZE, joins=False)
    is_mptcp(pair)
    assert hits(pair.server) >= [1] and extension(pair.client)["AddAddr"] == 0


@FAMILIES
@SEGMENTED
def test_a_backup_said_at_egress_is_heard_by_the_peer(pair, family):
    load(pair.client, policy(chain(hook="egress", select="path(wlan)", actors='["set_backup"]')))
    transfer(pair, address(pair, family), SIZE)
    is_mptcp(pair)
    assert extension(pair.server)["MPPrioRx"] >= 1
    assert extension(pair.client)["MPPrioTx"] == extension(pair.client)["MPPrioRx"] == 0


@FAMILIES
@SEGMENTED
def test_a_backup_said_at_ingress_is_heard_by_this_host(pair, family):
    load(pair.client, policy(chain(select="path(wlan)", actors='["set_backup"]')))
    transfer(pair, address(pair, family), SIZE)
    is_mptcp(pair)
    assert extension(pair.client)["MPPrioRx"] >= 1
    assert extension(pair.server)["MPPrioTx"] == extension(pair.server)["MPPrioRx"] == 0


@FAMILIES
@SEGMENTED
@pytest.mark.parametrize("where", ["at the receiver", "at the sender"])
def test_a_withheld_address_is_not_heard_and_the_connection_stays_mptcp(pair, family, where):
    host, hook = (pair.client, "ingress") if where == "at the receiver" else (pair.server, "egress")
    load(host, policy(chain(hook=hook, actors='["block_subflow"]')))
    transfer(pair, address(pair, family), SIZE, joins=False)
    is_mptcp(pair)
    found = extension(pair.client)
    assert found["AddAddr"] == 0 and extension(pair.server)["MPJoinSynRx"] == 0
    assert stats(host)["policies"][0]["chains"][0]["actors"][0]["hits"] >= 1


@FAMILIES
@SEGMENTED
def test_an_echo_of_ours_is_taken_for_the_peers(pair, family):
    load(pair.client, policy(chain(actors="[{ block_subflow = { echo = true } }]")))
    transfer(pair, address(pair, family), SIZE, joins=False)
    is_mptcp(pair)
    assert extension(pair.client)["AddAddr"] == 0
    assert extension(pair.server)["EchoAdd"] >= 1
    assert extension(pair.server)["MPJoinSynRx"] == 0


@FAMILIES
@SEGMENTED
def test_what_was_withheld_is_made_again_and_joins(pair, family):
    """With the HMAC that the peer computed."""
    client = pair.client

    def block_and_add():
        wait_for(
            "a withheld address",
            lambda: stats(client)["policies"][0]["chains"][0]["actors"][0]["hits"] > 0,
        )
        load(client, policy(chain(actors='["add_subflow"]')), "--replace")

    load(client, policy(chain(actors='["block_subflow"]')))
    # While the transfer waits for the second subflow.
    later = threading.Thread(target=block_and_add, daemon=True)
    transfer(pair, address(pair, family), SIZE, prepare=lambda _: later.start())
    is_mptcp(pair)
    assert extension(client)["AddAddr"] >= 1 and extension(pair.server)["MPJoinAckRx"] >= 1


@FAMILIES
@SEGMENTED
@pytest.mark.parametrize("how", ['"deny_join"', '{ deny_join = "reset" }'], ids=["drop", "reset"])
def test_no_subflow_joins_by_a_path_where_that_is_denied(pair, family, how):
    load(pair.client, policy(chain(hook="egress", interfaces=["wlan"], actors=f"[{how}]")))
    with pair.capture("wlan") as wlan:
        transfer(pair, address(pair, family), SIZE, joins=False)
    is_mptcp(pair)
    assert wlan.fields("frame.number", where="tcp") == [], "not even the wish is seen"
    assert extension(pair.server)["MPJoinSynRx"] == 0
    assert stats(pair.client)["policies"][0]["chains"][0]["actors"][0]["hits"] >= 1


@FAMILIES
@SEGMENTED
def test_a_join_that_comes_in_is_refused_by_this_host_itself(pair, family):
    load(pair.server, policy(chain(interfaces=["wlan"], actors='[{ deny_join = "reset" }]')))
    transfer(pair, address(pair, family), SIZE, joins=False)
    is_mptcp(pair)
    found = extension(pair.server)
    assert found["MPJoinNoTokenFound"] >= 1 and found["MPJoinAckRx"] == 0


@FAMILIES
def test_a_join_waits_until_its_connection_has_carried_enough(pair, family):
    """Its handshake is held back at the last step, which TCP repeats."""
    small = "packet(mp_join) and not packet(syn) and connection_size(0-1MB)"
    load(pair.client, policy(chain(hook="egress", select=small, actors='["deny_join"]')))

    def joins() -> bool:
        return extension(pair.server)["MPJoinAckRx"] > 0

    exchange(pair, address(pair, family), lambda: wait_for("held join", lambda: hits(pair.client) > [1]))
    assert not joins()
    # There and back.
    exchange(pair, address(pair, family), lambda: wait_for("join", joins), size=600_000)


@FAMILIES
@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_a_connection_falls_back_where_that_is_asked_for(pair, family, hook):
    load(pair.server, policy(chain(hook=hook, actors='["fall_back"]')))
    transfer(pair, address(pair, family), SIZE, joins=False)
    found = extension(pair.server)
    assert found["MPJoinSynRx"] == 0
    assert extension(pair.client)["MPCapableFallbackSYNACK"] == 1


@FAMILIES
def test_the_capable_flag_crosses_unseen_by_both_kernels(pair, family):
    both = policy(*(chain(hook, hook, actors='["capable_flag"]') for hook in ("ingress", "egress")))
    for host in (pair.client, pair.server):
        load(host, both)
    # What the client sends is captured behind it.
    with pair.capture("eth", pair.client) as eth:
        transfer(pair, address(pair, family), 100_000)
    is_mptcp(pair)
    opening = "tcp.flags == 0x002 && tcp.options.mptcp.subtype == 0"
    ((flags,),) = eth.fields("tcp.options.mptcp.flags", where=opening)
    assert int(flags.split(",")[0], 16) == 0x11
    for host in (pair.client, pair.server):
        hits = [each["actors"][0]["hits"] for each in stats(host)["policies"][0]["chains"]]
        assert hits == [1, 1], "cleared where one came in, set where one left"


def test_a_subflow_leaves_by_the_interface_that_is_asked_for(pair):
    client = pair.client
    redirect = '[{ redirect = "wlan" }]'
    load(client, policy(chain(hook="egress", interfaces=["eth"], actors=redirect)))
    before = {link: sent_bytes(client, link) for link in ("eth", "wlan")}
    tool("ip", "-n", pair.server.name, "mptcp", "endpoint", "flush")
    transfer(pair, pair.ETH, SIZE, joins=False)
    is_mptcp(pair)
    used = {link: sent_bytes(client, link) - before[link] for link in before}
    assert used["wlan"] > SIZE and used["eth"] < 10_000


def test_packets_are_chosen_by_the_mark_of_their_socket(pair):
    load(
        pair.client,
        policy(chain("ours", "egress", "mark(0x2a)"), chain("others", "egress", "mark(0x2b)")),
    )
    transfer(
        pair,
        pair.ETH,
        SIZE,
        prepare=lambda client: client.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x2A),
    )
    ours, others = stats(pair.client)["policies"][0]["chains"]
    assert ours["packets"] > 100 and others["packets"] == 0


def test_packets_are_chosen_by_the_control_group_of_their_socket(pair, documents):
    mounts = (line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines())
    root = next((pathlib.Path(line[1]) for line in mounts if line[2] == "cgroup2"), None)
    if not root:
        pytest.skip("no cgroup2 is mounted")
    (documents / "file").write_bytes(bytes(SIZE))
    name = f"plait-test-{os.getpid()}"
    group = root / name
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
        # `ip netns exec` hides control groups.
        enter = ("nsenter", f"--net=/run/netns/{pair.client.name}")
        done = subprocess.run([*enter, "sh", "-c", fetch, url], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        wait_for("end of the group", lambda: not (group / "cgroup.procs").read_text())
        ours, others = stats(pair.client)["policies"][0]["chains"]
        # What is sent for a socket that its program has closed belongs to the group no more.
        assert ours["packets"] > 20 > others["packets"]
    finally:
        group.rmdir()
