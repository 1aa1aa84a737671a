"""A policy that has nothing to do changes nothing: bytes, and what the kernel counts of MPTCP, are those without it."""

import hashlib
import json
import socket
import threading
import time

import pytest
from hosts import PLAIT, tool, wait_for
from packets import chain, policy
from streams import receive_exactly

MPTCP = 262
SIZE = 24_000_000

# Never hold for what these hosts send.
NEVER = [
    "not any",
    "src(203.0.113.0/24) or dst(2001:db8::/32)",
    "connection(1) and packet(data)",
    "size(900GB-)",
    "subflow(sport = 1, dport = 1)",
    "packet(mp_fail, mp_fastclose) and sequence(data = 1-2)",
]

# What happens the same number of times in every such transfer; how often something is sent again is chance.
STEADY = (
    "MPCapableSYNRX",
    "MPCapableSYNTX",
    "MPCapableSYNACKRX",
    "MPCapableACKRX",
    "MPCapableFallbackACK",
    "MPCapableFallbackSYNACK",
    "MPFallbackTokenInit",
    "MPJoinNoTokenFound",
    "MPJoinSynRx",
    "MPJoinSynAckRx",
    "MPJoinSynAckHMacFailure",
    "MPJoinAckRx",
    "MPJoinAckHMacFailure",
    "DSSNotMatching",
    "DSSNoMatchTCP",
    "DataCsumErr",
    "AddAddr",
    "AddAddrDrop",
    "EchoAdd",
    "RmAddr",
    "MPPrioTx",
    "MPPrioRx",
    "MPFailTx",
    "MPFailRx",
    "MPFastcloseTx",
    "MPFastcloseRx",
    "MPRstTx",
    "MPRstRx",
)


# Sent again soon, and counted each time.
AGAIN = ("MPTcpExtAddAddr", "MPTcpExtEchoAdd")


def counters(host) -> dict:
    """The kernel's own counters of a namespace."""
    return json.loads(host.run("nstat", "-asz", "--json").stdout)["kernel"]


def steady(host) -> dict:
    found = counters(host)
    some = {name: found[f"MPTcpExt{name}"] for name in sorted(STEADY) if f"MPTcpExt{name}" in found}
    assert len(some) > 15
    some |= {name: min(some.get(name, 0), 1) for name in AGAIN}
    return some | {"TcpInCsumErrors": found["TcpInCsumErrors"]}


def listen(host, address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = host.socket(family, MPTCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # On all addresses, as joins come to another one.
    listener.bind(("", 8080))
    listener.listen()
    return listener


def transfer(pair, address, size=SIZE, joins=True, prepare=lambda client: None) -> None:
    """Bytes from the client and back, over both links if they join; they are what was sent."""
    sent = bytes(range(251)) * (size // 251 + 1)
    sent = sent[:size]
    listener = listen(pair.server, address)

    def answer():
        connection, _ = listener.accept()
        with connection:
            got = receive_exactly(connection, size)
            connection.sendall(hashlib.sha256(got).digest())
            connection.sendall(got)
            connection.recv(1)

    server = threading.Thread(target=answer)
    server.start()
    with pair.client.socket(listener.family, MPTCP) as client:
        client.settimeout(30)
        prepare(client)
        client.connect((address, 8080))
        client.send(sent[:1])
        if joins:
            wait_for("second subflow", lambda: counters(pair.server)["MPTcpExtMPJoinAckRx"] > 0)
        else:
            settle(pair)
        client.sendall(sent[1:])
        assert receive_exactly(client, 32) == hashlib.sha256(sent).digest()
        back = receive_exactly(client, size)
        assert hashlib.sha256(back).digest() == hashlib.sha256(sent).digest()
        settle(pair)
    server.join(30)
    assert not server.is_alive()
    listener.close()


def settle(pair):
    """Until nothing is announced any more."""
    last, since = None, time.monotonic()
    while time.monotonic() - since < 0.5:
        now = [steady(host) for host in (pair.client, pair.server)]
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)


def load(host, folder, text, *options, name="policy") -> None:
    file = folder / f"{name}.toml"
    file.write_text(text)
    done = host.run(PLAIT, "policy", "load", file, *options, text=True)
    assert done.returncode == 0, done.stderr


def stats(host) -> dict:
    return json.loads(host.run(PLAIT, "policy", "stats", "--json").stdout)


POLICIES = {
    "no chains": 'name = "tried"\nchains = []\n',
    "a chain that is not asked for": policy(*(chain(hook, hook, "not any", '["drop"]') for hook in ("ingress", "egress"))),
    "selectors that never hold": policy(
        *(
            chain(f"{hook}-{number}", hook, text, '["drop"]')
            for hook in ("ingress", "egress")
            for number, text in enumerate(NEVER)
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("segmented", [True, False], ids=["GSO", "no GSO"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_a_policy_that_has_nothing_to_do_changes_nothing(make_pair, tmp_path, family, segmented):
    expected = None
    for text in (None, *POLICIES.values()):
        pair = make_pair()
        hosts = (pair.client, pair.server)
        if not segmented:
            for host in hosts:
                for link in ("eth", "wlan"):
                    off = ("gso", "off", "tso", "off", "gro", "off")
                    tool("ip", "netns", "exec", host.name, "ethtool", "-K", link, *off)
        if text:
            for host in hosts:
                load(host, tmp_path, text)
        transfer(pair, pair.ETH if family == "ipv4" else pair.ETH6)
        found = [steady(host) for host in hosts]
        expected = expected or found
        assert found == expected
        assert found[0]["TcpInCsumErrors"] == found[1]["TcpInCsumErrors"] == 0
        if text:
            for host in hosts:
                told = stats(host)
                assert all(each["packets"] == 0 for one in told["policies"] for each in one["chains"])
                # Hosts tell which multicast groups they listen to in packets with an extension header.
                left = {why for why, count in told["left_alone"].items() if count}
                assert left <= {"extension_headers"}
        pair.remove()


def test_the_counter_check_sees_the_transfer(pair, tmp_path):
    """The same chains, asked for: both hooks of both links are met, by all that the transfer sent."""
    chains = [
        chain(f"{link}-{hook}", hook, f"path({link})")
        for link in ("eth", "wlan")
        for hook in ("ingress", "egress")
    ]
    for host in (pair.client, pair.server):
        load(host, tmp_path, policy(*chains))
    transfer(pair, pair.ETH)
    for host in (pair.client, pair.server):
        (told,) = stats(host)["policies"]
        by_name = {each["name"]: each for each in told["chains"]}
        for hook in ("ingress", "egress"):
            both = [by_name[f"{link}-{hook}"] for link in ("eth", "wlan")]
            assert all(each["packets"] > 100 for each in both)
            assert sum(each["bytes"] for each in both) > SIZE


# What is asked for, and how packets that come in and go out are then met.
WAYS = {
    "native": (("--xdp",), "native", "tcx"),
    "generic": (("--xdp", "--avoid=native"), "generic", "tcx"),
    "tcx": ((), "tcx", "tcx"),
    "clsact": (("--avoid=tcx",), "clsact", "clsact"),
}


@pytest.mark.parametrize(("options", "ingress", "egress"), WAYS.values(), ids=WAYS)
def test_every_way_of_attaching_sees_all_that_passes(pair, tmp_path, options, ingress, egress):
    for host in (pair.client, pair.server):
        load(
            host,
            tmp_path,
            policy(*(chain(hook, hook, "packet(data)") for hook in ("ingress", "egress"))),
            *options,
        )
        listed = json.loads(host.run(PLAIT, "policy", "list", "--json").stdout)
        modes = {each["hook"]: each["mode"] for each in listed["attachments"]}
        if modes != {"ingress": ingress, "egress": egress}:
            pytest.skip(f"this kernel attaches by {modes}")
    transfer(pair, pair.ETH)
    for host in (pair.client, pair.server):
        for each in stats(host)["policies"][0]["chains"]:
            assert each["bytes"] > SIZE


def test_mtu_9000(pair, tmp_path):
    for host in (pair.client, pair.server):
        for link in ("eth", "wlan"):
            tool("ip", "-n", host.name, "link", "set", link, "mtu", "9000")
        load(host, tmp_path, policy(*(chain(hook, hook, "packet(data)") for hook in ("ingress", "egress"))))
    transfer(pair, pair.ETH)
    assert all(each["packets"] > 100 for each in stats(pair.server)["policies"][0]["chains"])


def test_vlan(pair, tmp_path):
    """On the interface below and on the one above alike, with addresses of the VLAN."""
    for number, host in ((1, pair.client), (2, pair.server)):
        vlan = ("link", "add", "link", "eth", "name", "eth.5", "type", "vlan", "id", "5")
        if b"Unknown device type" in host.run("ip", *vlan).stderr:
            pytest.skip("this kernel has no interfaces for VLANs")
        tool("ip", "-n", host.name, "addr", "add", f"10.77.5.{number}/24", "dev", "eth.5")
        tool("ip", "-n", host.name, "link", "set", "eth.5", "up")
        some = [
            chain(f"{name.replace('.', '-')}-{hook}", hook, interfaces=[name])
            for name in ("eth", "eth.5")
            for hook in ("ingress", "egress")
        ]
        load(host, tmp_path, policy(*some))
    transfer(pair, "10.77.5.2", size=2_000_000)
    for host in (pair.client, pair.server):
        told = stats(host)["policies"][0]["chains"]
        assert all(each["packets"] > 10 for each in told), told


def test_a_device_without_ethernet(pair, tmp_path):
    """TUN has no header before IP's, and no XDP."""
    tool("ip", "-n", pair.client.name, "tuntap", "add", "tun0", "mode", "tun")
    tool("ip", "-n", pair.client.name, "link", "set", "tun0", "up")
    load(
        pair.client,
        tmp_path,
        policy(*(chain(hook, hook, interfaces=["tun0"]) for hook in ("ingress", "egress"))),
    )
    listed = json.loads(pair.client.run(PLAIT, "policy", "list", "--json").stdout)
    modes = {each["hook"]: each["mode"] for each in listed["attachments"]}
    assert set(modes) == {"ingress", "egress"} and set(modes.values()) <= {"tcx", "clsact"}
