"""A policy that matches nothing changes neither the transferred bytes nor the MPTCP counters."""

import itertools

import pytest
from transfers import SIZE, disable_offloads, steady, transfer

from policies import both_hooks, chain, counted, listed, load, policy, stats

# Never hold for what these hosts send.
NEVER = [
    "not any",
    "src(203.0.113.0/24) or dst(2001:db8::/32)",
    "connection(1) and packet(data)",
    "size(900GB-)",
    "subflow(sport = 1, dport = 1)",
    "packet(mp_fail, mp_fastclose) and sequence(data = 1-2)",
]


POLICIES = {
    "no chains": 'name = "test"\nchains = []\n',
    "selectors that never hold": policy(
        *(
            chain(f"{hook}-{number}", hook, text, '["drop"]')
            for hook in ("ingress", "egress")
            for number, text in enumerate(NEVER)
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "segmented"),
    [
        pytest.param("ipv4", True, id="ipv4-GSO"),
        pytest.param("ipv6", False, id="ipv6-no GSO"),
        pytest.param("ipv4", False, id="ipv4-no GSO", marks=pytest.mark.long),
        pytest.param("ipv6", True, id="ipv6-GSO", marks=pytest.mark.long),
    ],
)
def test_a_policy_that_matches_nothing_changes_nothing(make_pair, family, segmented):
    expected = None
    for text in (None, *POLICIES.values()):
        pair = make_pair()
        hosts = (pair.client, pair.server)
        if not segmented:
            disable_offloads(pair, "eth", "wlan")
        if text:
            for host in hosts:
                load(host, text)
        transfer(pair, pair.ETH if family == "ipv4" else pair.ETH6)
        found = [steady(host) for host in hosts]
        expected = expected or found
        assert found == expected
        assert found[0]["TcpInCsumErrors"] == found[1]["TcpInCsumErrors"] == 0
        if text:
            for host in hosts:
                found = stats(host)
                assert all(each["packets"] == 0 for one in found["policies"] for each in one["chains"])
                # Multicast listener reports have an extension header.
                left = {why for why, count in found["skipped"].items() if count}
                assert left <= {"extension_headers"}
        pair.remove()


def test_control_the_same_chains_match_the_transfer(pair):
    """Control: chains that match see the transfer at both hooks of both links."""
    both = itertools.product(("eth", "wlan"), ("ingress", "egress"))
    chains = [chain(f"{link}-{hook}", hook, f"path({link})") for link, hook in both]
    for host in (pair.client, pair.server):
        load(host, policy(*chains))
    transfer(pair, pair.ETH)
    for host in (pair.client, pair.server):
        by_name = {each["name"]: each for each in counted(host)}
        for hook in ("ingress", "egress"):
            both = [by_name[f"{link}-{hook}"] for link in ("eth", "wlan")]
            assert all(each["packets"] > 100 for each in both)
            assert sum(each["bytes"] for each in both) > SIZE


# Options, and the modes at ingress and egress.
WAYS = {
    "native": (("--xdp",), "native", "tcx"),
    "generic": (("--xdp", "--avoid=native"), "generic", "tcx"),
    "tcx": ((), "tcx", "tcx"),
    "clsact": (("--avoid=tcx",), "clsact", "clsact"),
}


@pytest.mark.parametrize(("options", "ingress", "egress"), WAYS.values(), ids=WAYS)
def test_every_attach_mode_sees_all_packets(pair, options, ingress, egress):
    for host in (pair.client, pair.server):
        load(host, both_hooks("packet(data)"), *options)
        modes = {each["hook"]: each["mode"] for each in listed(host)["attachments"]}
        if modes != {"ingress": ingress, "egress": egress}:
            pytest.skip(f"this kernel attaches by {modes}")
    transfer(pair, pair.ETH)
    for host in (pair.client, pair.server):
        assert all(each["bytes"] > SIZE for each in counted(host))


def test_vlan(pair):
    """On the VLAN interface and on the one below it, with addresses of the VLAN."""
    for number, host in ((1, pair.client), (2, pair.server)):
        vlan = ("link", "add", "link", "eth", "name", "eth.5", "type", "vlan", "id", "5")
        if b"Unknown device type" in host.run("ip", *vlan).stderr:
            pytest.skip("this kernel has no interfaces for VLANs")
        host.ip(f"addr add 10.77.5.{number}/24 dev eth.5")
        host.ip("link set eth.5 up")
        for name in ("eth", "eth.5"):
            load(host, both_hooks(interfaces=[name]).replace('"test"', f'"on-{name[-1]}"'))
    transfer(pair, "10.77.5.2", size=2_000_000)
    for host in (pair.client, pair.server):
        chains = [each for policy in stats(host)["policies"] for each in policy["chains"]]
        assert len(chains) == 4 and all(each["packets"] > 10 for each in chains)
