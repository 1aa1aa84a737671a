"""`redirect` with real connections, on a host with two uplinks that forwards for a guest."""

import json

import pytest
import wires
from controllers import run, work  # noqa: F401
from hosts import Host, reason_to_skip, tool, unique_id, wait_for
from transfers import counters, transfer

from policies import chain, listed, load, policy, stats

FAMILIES = pytest.mark.parametrize("family", ["ipv4", "ipv6"])
SIZE = 4_000_000
# For TUN devices, whose packets a Python thread carries.
SMALL = 1_000_000


class Tenancy:
    """A guest behind `tap` of a host whose `up1` and `up2` lead to one server; routing prefers `up1`."""

    SERVICE = {"ipv4": "10.79.0.1", "ipv6": "fd79::1"}
    LINKS = {"tap": ("guest", "host"), "up1": ("host", "server"), "up2": ("host", "server")}

    def __init__(self, directory, kinds=()):
        self.kinds, self.wires = dict(kinds), []
        names = ("guest", "host", "server")
        run_id = unique_id()
        hosts = (Host(f"plait-test-{run_id}-{name}", directory) for name in names)
        self.guest, self.host, self.server = hosts
        # The name that transfers.py uses.
        self.client = self.guest

    def hosts(self):
        return self.guest, self.host, self.server

    def build(self):
        for host in self.hosts():
            tool("ip", "netns", "add", host.name)
            host.ip("link set lo up")
            # Skip duplicate address detection, so that neighbour discovery works at once.
            filters = ("ipv4.conf.all.rp_filter", "ipv4.conf.default.rp_filter")
            for key in (*filters, "ipv6.conf.default.accept_dad"):
                host.tool("sysctl", "-qw", f"net.{key}=0")
            host.ip("mptcp limits set subflows 8 add_addr_accepted 8")
        for key in ("ipv4.ip_forward", "ipv6.conf.all.forwarding"):
            self.host.tool("sysctl", "-qw", f"net.{key}=1")
        for number, (link, ends) in enumerate(self.LINKS.items()):
            self.join(number, *(getattr(self, name) for name in ends), link)
        for link, ends in self.LINKS.items():
            # TUN devices have no neighbours.
            if self.kinds.get(link) != "tun":
                for name in ends:
                    host = getattr(self, name)
                    wait_for("address to ask for neighbours from", lambda: has_own(host, link))  # noqa: B023
        self.guest.ip("addr add 10.78.0.3/24 dev tap")
        # Not preferred as a source address.
        self.guest.ip("addr add fd78::3/64 dev tap nodad preferred_lft 0")
        for family, version in (("ipv4", "-4"), ("ipv6", "-6")):
            service, length = self.SERVICE[family], 32 if family == "ipv4" else 128
            self.server.ip(f"addr add {service}/{length} dev lo")
            self.guest.ip(f"{version} route add default via {at(family, 0, 2)}")
            for number in (1, 2):
                way = f"via {at(family, number, 2)} dev up{number}"
                self.host.ip(f"{version} route add {service} {way} metric {10 * number}")
            # For IPv6, Linux considers only routes with the lowest metric, so redirect needs a table.
            self.host.ip(f"{version} rule add oif up2 table 2")
            self.host.ip(f"{version} route add default via {at(family, 2, 2)} table 2")
            self.server.ip(f"{version} route add default via {at(family, 1, 1)}")

    def join(self, number, first, second, link):
        """Connects two hosts; addresses end in 1 for the first and 2 for the second."""
        if made := wires.join(self.kinds.get(link, "veth"), first, second, link):
            self.wires.append(made)
        for last, host in enumerate((first, second), start=1):
            host.ip(f"addr add {at('ipv4', number, last)}/24 dev {link}")
            host.ip(f"addr add {at('ipv6', number, last)}/64 dev {link} nodad")
            host.ip(f"link set {link} up")

    def sent(self, link) -> int:
        """Bytes the host has sent on a link."""
        [found] = json.loads(self.host.ip(f"-s -j link show {link}"))
        return found["stats64"]["tx"]["bytes"]

    def remove(self):
        for host in self.hosts():
            host.unload_policies()
        for wire in self.wires:
            wire.close()
        for host in self.hosts():
            tool("ip", "netns", "del", host.name)


def at(family, number, last) -> str:
    if family == "ipv4":
        return f"10.78.{number}.{last}"
    return f"fd78:{number}::{last}" if number else f"fd78::{last}"


def has_own(host, link) -> bool:
    """Whether the link has a link-local address, which neighbour discovery needs."""
    found = json.loads(host.ip(f"-6 -j address show dev {link} scope link -tentative"))
    return any(each.get("addr_info") for each in found)


@pytest.fixture
def make_tenancy(tmp_path):
    if reason := reason_to_skip():
        pytest.skip(reason)
    made = []

    def make(kinds=()) -> Tenancy:
        made.append(Tenancy(tmp_path, kinds))
        made[-1].build()
        return made[-1]

    yield make
    for each in made:
        each.remove()


@pytest.fixture
def tenancy(make_tenancy):
    return make_tenancy()


def redirecting(hook="ingress", on="tap", select="any", to="up2", actors="") -> str:
    return chain(f"by-{to}", hook, select, f'[{actors}{{ redirect = "{to}" }}]', interfaces=[on])


# Family and offload do not depend on each other.
@pytest.mark.parametrize(("family", "offload"), [("ipv4", "on"), ("ipv6", "off")])
def test_traffic_of_a_guest_is_redirected_to_another_uplink(tenancy, family, offload):
    for host in tenancy.hosts():
        for link in json.loads(host.ip("-j link show type veth")):
            for feature in ("gso", "tso", "gro"):
                host.run("ethtool", "-K", link["ifname"], feature, offload)
    load(tenancy.host, policy(redirecting()))
    transfer(tenancy, tenancy.SERVICE[family], SIZE, joins=False)
    assert tenancy.sent("up2") > SIZE > 40 * tenancy.sent("up1")
    assert counters(tenancy.server)["TcpInCsumErrors"] == 0
    assert counters(tenancy.server)["MPTcpExtMPCapableACKRX"] == 1


@FAMILIES
def test_subflows_of_a_guest_are_redirected_separately(tenancy, family):
    second = "10.78.0.3" if family == "ipv4" else "fd78::3"
    tenancy.guest.ip(f"mptcp endpoint add {second} dev tap subflow")
    load(tenancy.host, policy(redirecting(select=f"src({second})")))
    transfer(tenancy, tenancy.SERVICE[family], SIZE)
    first, other = tenancy.sent("up1"), tenancy.sent("up2")
    # The scheduler decides how much each carries; a handshake alone is below 1,000 bytes.
    assert first > 10_000 and other > 10_000 and first + other > SIZE


KINDS = {
    "from a TUN device": {"tap": "tun"},
    "to a TUN device": {"up2": "tun"},
    "between TUN devices": {"tap": "tun", "up2": "tun"},
    "from a VLAN": {"tap": "vlan"},
    "to a VLAN": {"up2": "vlan"},
    "between bridges": {"tap": "bridge", "up2": "bridge"},
}


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_ingress_redirect_between_kinds_of_interfaces(make_tenancy, kinds):
    tenancy = make_tenancy(kinds)
    load(tenancy.host, policy(redirecting()))
    for service in tenancy.SERVICE.values():
        before = tenancy.sent("up2")
        transfer(tenancy, service, SMALL, joins=False)
        assert tenancy.sent("up2") - before > SMALL > 10 * tenancy.sent("up1")
    found = counters(tenancy.server)
    assert found["TcpInCsumErrors"] == counters(tenancy.guest)["TcpInCsumErrors"] == 0
    assert found["MPTcpExtMPCapableACKRX"] == 2
    [only] = stats(tenancy.host)["policies"][0]["chains"]
    assert only["hits"] == only["packets"] > 0 == only["errors"]


OUTWARD = {
    "plain": {},
    "from a TUN device": {"up1": "tun"},
    "to a TUN device": {"up2": "tun"},
    "from a VLAN": {"up1": "vlan"},
    "to a VLAN": {"up2": "vlan"},
    "from a bridge": {"up1": "bridge"},
    "to a bridge": {"up2": "bridge"},
}


@pytest.mark.parametrize("kinds", OUTWARD.values(), ids=OUTWARD)
def test_egress_redirect_counts_packets_once(work, make_tenancy, kinds):  # noqa: F811
    """A packet passes the routed interface, the target, and the interfaces below, but counts once."""
    tenancy = make_tenancy(kinds)
    size = SMALL if "tun" in kinds.values() else SIZE
    record = [chain(f"record-{hook}", hook) for hook in ("ingress", "egress")]
    to_services = " or ".join(f"dst({service})" for service in tenancy.SERVICE.values())
    load(tenancy.host, policy(*record, redirecting("egress", "*", to_services)))
    for service in tenancy.SERVICE.values():
        resent, before = counters(tenancy.guest)["TcpRetransSegs"], tenancy.sent("up2")
        transfer(tenancy, service, size, joins=False)
        assert tenancy.sent("up2") - before > size > 10 * tenancy.sent("up1")
        found = json.loads(run(work, "print(json.dumps(flows(), default=vars))", tenancy.host).stdout)
        # Read last: the tail may still be retransmitted after the transfer.
        resent = counters(tenancy.guest)["TcpRetransSegs"] - resent
        # The record of the uplinks, not of the guest's link.
        [flow] = [each for each in found if service in each["remote"]]
        assert size <= flow["sent"]["bytes"] < size * 1.05 + 1500 * resent
        assert flow["sent"]["retransmitted_packets"] <= resent and flow["rtt"] is not None
    assert counters(tenancy.server)["TcpInCsumErrors"] == 0
    assert not any(each["errors"] for each in stats(tenancy.host)["policies"][0]["chains"])


def test_ingress_redirect_uses_tc(tenancy):
    """XDP finds no next hop: loading such a policy moves the interface from XDP to TC."""

    def modes():
        return {each["hook"]: each["mode"] for each in listed(tenancy.host)["attachments"]}

    load(tenancy.host, policy(chain(interfaces=["tap"])), "--xdp", name="first")
    assert modes()["ingress"] == "native"
    load(tenancy.host, policy(redirecting()).replace('"test"', '"second"'), "--xdp", name="second")
    assert modes()["ingress"] in ("tcx", "clsact")
    transfer(tenancy, tenancy.SERVICE["ipv4"], SIZE, joins=False)
    assert tenancy.sent("up2") > SIZE
    assert all(each["packets"] for found in stats(tenancy.host)["policies"] for each in found["chains"])


def test_redirect_to_a_missing_interface_loses_no_packet(tenancy):
    load(tenancy.host, policy(redirecting(to="up9")))
    transfer(tenancy, tenancy.SERVICE["ipv4"], SIZE, joins=False)
    assert tenancy.sent("up1") > SIZE
    [found] = stats(tenancy.host)["policies"][0]["chains"]
    assert found["errors"] == found["packets"] > 0 == found["hits"]


def test_marks_are_visible_on_lower_interfaces(make_tenancy):
    tenancy = make_tenancy({"up1": "bridge"})
    marks = chain("marks", "egress", actors='[{ mark = "0x7/0xf" }]', interfaces=["up1"])
    sees = [
        chain(name, "egress", select, "[]", interfaces=["up1-below"])
        for name, select in (("marked", "mark(0x7)"), ("others", "not mark(0x7)"))
    ]
    load(tenancy.host, policy(marks, *sees))
    transfer(tenancy, tenancy.SERVICE["ipv4"], SMALL, joins=False)
    marks, marked, others = (each["packets"] for each in stats(tenancy.host)["policies"][0]["chains"])
    assert marked >= marks > 10 and others == 0
