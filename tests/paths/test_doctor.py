"""`plait doctor HOST` on hosts that are broken on purpose: it names the fault first, and its command mends it."""

import json
import pathlib
import socket

import pytest
from hosts import PLAIT, reason_to_skip, unique_id
from routed import ETH, OTHER, PORT, SERVER, SERVER6, WLAN, Routed
from schema import mistakes


def diagnose(net, target=f"{SERVER}:{PORT}", *options) -> dict:
    done = net.client.run(PLAIT, "doctor", target, "--json", *options, timeout=120)
    document = json.loads(done.stdout or b"null")
    assert document, done.stderr.decode()
    assert done.returncode == (0 if document["ok"] else 1), done.stderr.decode()
    assert mistakes(document, "doctor") == []
    return document


def faults(document: dict) -> list[dict]:
    return [check for check in document["checks"] if check["verdict"] == "fault"]


def assert_first_fault(
    net, check: str, interface: str | None, *words: str, target=f"{SERVER}:{PORT}"
) -> dict:
    """Diagnoses, and asserts what the first fault is and that what was found contains these words."""
    document = diagnose(net, target)
    first = next(iter(faults(document)), None)
    assert first and (first["check"], first["interface"]) == (check, interface), document
    assert all(word in first["found"] for word in words), first
    return first


def assert_healthy(net, target=f"{SERVER}:{PORT}"):
    document = diagnose(net, target)
    assert document["ok"] and not faults(document), document


def mend(net, fault: dict, line: int = 0):
    """Runs a command of the fault on the client, as it is printed."""
    net.client.tool("sh", "-ec", fault["mend"][line])


@pytest.mark.parametrize("target", [f"{SERVER}:{PORT}", f"[{SERVER6}]:{PORT}"], ids=["IPv4", "IPv6"])
def test_healthy_host(net, target):
    net.serve()
    document = diagnose(net, target)
    assert document["ok"], document
    found = {(check["check"], check["interface"]): check["found"] for check in document["checks"]}
    assert "both ends use MPTCP" in found["mp_capable", None]
    assert {"eth", "wlan"} == {interface for check, interface in found if check == "subflow"}
    assert {"eth", "wlan"} == {interface for check, interface in found if check == "mtu"}
    text = net.client.run(PLAIT, "doctor", target, text=True)
    assert text.returncode == 0 and "No fault was found" in text.stdout, text


def test_mptcp_disabled(net):
    net.serve()
    net.client.tool("sysctl", "-qw", "net.mptcp.enabled=0")
    mend(net, assert_first_fault(net, "mptcp", None, "net.mptcp.enabled is 0"))
    assert_healthy(net)


def test_limit_of_zero(net):
    net.serve()
    net.client.ip("mptcp limits set subflows 0 add_addr_accepted 0")
    mend(net, assert_first_fault(net, "limits", None, "may have 0 additional subflows"))
    assert_healthy(net)


def test_no_endpoint(net):
    net.serve()
    net.client.ip("mptcp endpoint flush")
    mend(net, assert_first_fault(net, "endpoint", "wlan", "no MPTCP endpoint", WLAN))
    assert_healthy(net)


def test_no_route_by_the_second_interface(net):
    net.serve()
    net.client.ip("route del default dev wlan")
    net.client.ip("route flush table 2")
    first = assert_first_fault(net, "route", "wlan", f"no route to {SERVER} by wlan")
    command, rule = (line.replace("via ROUTER", "via 10.80.2.254") for line in first["mend"])
    net.client.tool("sh", "-ec", f"{command}\n{rule}")
    assert_healthy(net)


def test_strict_reverse_path_filter(net):
    net.serve()
    net.client.ip(f"rule del from {WLAN} table 2")
    assert_healthy(net)
    net.client.tool("sysctl", "-qw", "net.ipv4.conf.wlan.rp_filter=1")
    mend(net, assert_first_fault(net, "rp_filter", "wlan", "strict", "leads to eth"))
    assert_healthy(net)


def test_missing_source_rule(net):
    """The endpoint is bound to no interface, so the join leaves by the default route's."""
    net.serve()
    net.client.ip(f"rule del from {WLAN} table 2")
    net.client.ip("mptcp endpoint flush")
    net.client.ip(f"mptcp endpoint add {WLAN} subflow")
    first = assert_first_fault(net, "source_rule", "wlan", f"packets from {WLAN}", "leave by eth")
    mend(net, first, 0)
    mend(net, first, 1)
    assert_healthy(net)


@pytest.mark.parametrize("hook", ["output", "input"])
def test_firewall_of_this_host_drops_joins(net, hook):
    net.serve()
    try:
        net.client.add_packet_rules(**{hook: "tcp option mptcp subtype 1 drop"})
    except RuntimeError as error:
        pytest.skip(f"nft cannot match MPTCP options here: {error}")
    first = assert_first_fault(net, "firewall", "wlan", "by wlan")
    assert "tcp option mptcp subtype" in first["mend"][0]
    mend(net, first)
    assert_healthy(net)


@pytest.mark.parametrize(("router", "hops"), [("first", ("hop 1", "hop 2")), ("second", ("hop 2",))])
def test_middlebox_strips_mp_capable(net, router, hops):
    """The router answers for a packet before it changes it, so it is found as the last one where the option arrives."""
    net.serve()
    try:
        getattr(net, router).add_packet_rules(forward="tcp flags & (syn|ack) == syn reset tcp option 30")
    except RuntimeError as error:
        pytest.skip(f"nft cannot strip TCP options here: {error}")
    first = assert_first_fault(net, "mp_capable", "eth", *hops)
    assert first["found"].count("hop ") == len(hops)


def test_middlebox_strips_all_but_syns(net):
    net.serve()
    try:
        net.first.add_packet_rules(forward="tcp flags & syn == 0 reset tcp option 30")
    except RuntimeError as error:
        pytest.skip(f"nft cannot strip TCP options here: {error}")
    assert_first_fault(net, "mp_capable", "eth", "the SYN/ACK has MP_CAPABLE", "missing in later segments")


@pytest.mark.long
def test_middlebox_drops_joins(net):
    net.serve()
    try:
        net.third.add_packet_rules(forward="tcp option mptcp subtype 1 drop")
    except RuntimeError as error:
        pytest.skip(f"nft cannot match MPTCP options here: {error}")
    assert_first_fault(net, "mp_join", "wlan", "no answer, others have", "hop 1 (10.80.2.254)")
    net.third.remove_packet_rules()
    assert_healthy(net)


def test_service_without_mptcp(net):
    net.serve(protocol=socket.IPPROTO_TCP)
    first = assert_first_fault(net, "mp_capable", "eth", "answers without MP_CAPABLE", "hop 2")
    assert any("mptcpize run" in line for line in first["mend"])


@pytest.mark.long
def test_router_that_should_translate_addresses_drops_packets(net):
    """The provider of the second path drops private source addresses, and its router does not translate them."""
    net.serve()
    net.third.tool("nft", f"table ip provider {{ chain filter {{ {PROVIDER} }}; }}")
    first = assert_first_fault(net, "network", "wlan", "not even of plain TCP", "hop 1 (10.80.2.254)")
    assert "masquerade" in first["mend"][0] and "10.80.2.254" in first["mend"][0]
    net.third.tool("nft", f"table ip nat {{ chain postrouting {{ {TRANSLATION} }}; }}")
    net.third.tool("sh", "-ec", first["mend"][0])
    assert_healthy(net)


PROVIDER = 'type filter hook postrouting priority 300; oifname "core" ip saddr 10.80.2.0/24 drop;'
TRANSLATION = "type nat hook postrouting priority 100;"


def test_narrow_link_whose_router_sends_no_icmp(net):
    net.serve()
    for router, link in ((net.first, "next"), (net.second, "previous")):
        router.ip(f"link set {link} mtu 1280")
    document = diagnose(net)
    assert document["ok"], "the kernel adapts to a narrow link that reports its MTU"
    net.first.add_packet_rules(output="icmp type destination-unreachable drop")
    # What the router has said before is forgotten.
    net.client.ip("route flush cache")
    first = assert_first_fault(net, "mtu", "eth", "more than 1280 bytes vanish")
    mend(net, first)
    assert_healthy(net)


def test_announced_address_without_listener(net):
    net.server.ip(f"addr add {OTHER}/24 dev core")
    net.server.ip(f"mptcp endpoint add {OTHER} signal")
    net.serve(SERVER)
    assert_first_fault(net, "listener", None, f"nothing listens at {OTHER}:{PORT}")
    net.server.ip("mptcp endpoint flush")
    assert_healthy(net)


def test_announced_address_with_listener(net):
    net.server.ip(f"addr add {OTHER}/24 dev core")
    net.server.ip(f"mptcp endpoint add {OTHER} signal")
    net.serve()
    assert_healthy(net)


@pytest.mark.long
def test_blackhole_detection(net):
    if not pathlib.Path("/proc/sys/net/mptcp/blackhole_timeout").exists():
        pytest.skip("this kernel detects no blackholes (net.mptcp.blackhole_timeout)")
    net.serve()
    try:
        net.first.add_packet_rules(forward="tcp flags syn tcp option mptcp exists drop")
    except RuntimeError as error:
        pytest.skip(f"nft cannot match MPTCP options here: {error}")
    dropped = assert_first_fault(net, "mp_capable", "eth", "no answer, others have", "hop 1")
    assert "10.80.1.254" in dropped["mend"][0]
    net.first.remove_packet_rules()
    mend(net, assert_first_fault(net, "blackhole", None, "MPTcpExtBlackhole"))
    assert_healthy(net)


def test_bbr(net):
    net.serve()
    if "bbr" not in net.client.tool("sysctl", "-n", "net.ipv4.tcp_available_congestion_control").split():
        pytest.skip("this kernel has no bbr")
    net.client.tool("sysctl", "-qw", "net.ipv4.tcp_congestion_control=bbr")
    mend(net, assert_first_fault(net, "congestion_control", None, "bbr"))
    assert_healthy(net)


def test_single_path_and_chosen_interface(net):
    net.serve()
    net.client.ip("mptcp endpoint flush")
    document = diagnose(net, f"{SERVER}:{PORT}", "--interface", "eth")
    assert document["ok"] and {check["interface"] for check in document["checks"]} == {None, "eth"}
    net.client.ip("route del default dev wlan")
    net.client.ip("route flush table 2")
    assert_first_fault(
        net, "paths", None, f"only eth leads to {SERVER}; wlan has an address, but no route to it"
    )
    done = net.client.run(PLAIT, "doctor", SERVER, "--interface", "wwan0", text=True)
    assert done.returncode == 1 and "expected the name of an interface that is up, got wwan0" in done.stderr


def test_refused_connection_and_own_address(net):
    assert_first_fault(net, "connection", None, "refused", f"{SERVER}:{PORT}")
    done = net.client.run(PLAIT, "doctor", ETH, text=True)
    assert done.returncode == 1 and "which is this one" in done.stderr
