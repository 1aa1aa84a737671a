"""`plait up --killswitch --router lan0`: nothing of the router or of the hosts behind it leaves by the uplinks outside of plait, though the
router forwards and has a NAT."""

import contextlib
import os
import signal
import socket
import time

import pytest
from attempts import attempts
from daemons import Daemon
from hosts import Capture, wait_for
from households import FAR, FAR6, NAME, NEIGHBORS, PORT, RESOLVERS, SERVER, UPLINKS
from scapy.layers.dns import DNS, DNSQR
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

# What the router and the hosts of the LAN try to reach.
OF_ROUTER, OF_LAN = 7001, 7002


@contextlib.contextmanager
def everything_outside(household):
    """The packets that the providers receive, and that are not to the exit: fields of each are in the list afterwards."""
    outside = f"inbound and (ip or ip6) and not (host {SERVER} and port {PORT})"
    captures = [household.capture(uplink, filter=outside) for uplink in UPLINKS]
    packets: list[list[str]] = []
    with captures[0], captures[1]:
        yield packets
    for capture in captures:
        fields = ("ip.dst", "ipv6.dst", "_ws.col.Info")
        packets += capture.fields(*fields, where=f"!({NEIGHBORS})")


def attempting(household):
    lan = [(host, OF_LAN, OF_LAN) for host in (household.one, household.two)]
    # Nor to the resolver in the network of an uplink, which may be reached otherwise.
    programs = [(household.router, OF_ROUTER, OF_ROUTER), *lan]
    return attempts(programs, FAR, FAR6, [RESOLVERS["router"], "9.9.9.9"], pause=0.05)


def kill(household):
    pid = household.client_pid()
    os.kill(pid, signal.SIGKILL)
    wait_for("its end", lambda: pid not in household.router.processes())


def terminate(household):
    pid = household.client_pid()
    os.kill(pid, signal.SIGTERM)
    wait_for("its end", lambda: pid not in household.router.processes())


def reload(household):
    os.kill(household.client_pid(), signal.SIGHUP)
    time.sleep(0.2)


def start(household):
    done = household.up("--killswitch")
    assert done.returncode == 0, done.stderr


def wait_until_reachable(host, address: str):
    """By IPv6 from this host, which resolves no neighbor's address before its link-local address is known to be unique (RFC 4862)."""
    wait_for(f"ping to {address}", lambda: host.run("ping", "-c", "1", "-W", "1", address).returncode == 0)


@pytest.mark.parametrize(
    ("rounds", "wanted"), [(1, 300), pytest.param(15, 10_000, marks=pytest.mark.long)], ids=["300", "10000"]
)
def test_nothing_leaves_while_the_daemon_starts_reloads_ends_and_is_killed(
    household, documents, text, rounds, wanted
):
    """Prints the number of attempts."""
    household.start_web(documents)
    household.set_up_exit()
    # Packets sent before the provider's address is resolved are queued, and would leave once it is: when the kill switch is on.
    wait_until_reachable(household.router, FAR6)
    with everything_outside(household) as before, attempting(household):
        time.sleep(0.3)
    shown = " ".join(info for *_, info in before)
    assert f" {OF_ROUTER} " in shown and f" {OF_LAN} " in shown, "the test would see nothing"
    start(household)
    with everything_outside(household) as packets:
        with attempting(household) as counts:
            for _ in range(rounds):
                reload(household)
                for end in (kill, terminate):
                    end(household)
                    # With nothing that takes the packets at the interface.
                    time.sleep(0.3)
                    start(household)
        done = household.one.run("curl", "-sS", "-m", "30", f"http://{NAME}/text.txt")
        assert done.stdout == text.read_bytes(), done.stderr.decode() + household.router_log()
    print(f"{sum(counts)} attempts, {len(packets)} packets outside")
    assert packets == []
    assert sum(counts) >= wanted, counts
    household.down()
    done = household.one.run("curl", "-sS", "-m", "20", f"http://{FAR}/text.txt")
    assert done.stdout == text.read_bytes(), "as before"


def test_errors_about_answers_of_resolvers_do_not_leave(household):
    """To a program that no longer waits for it: an ICMP error quotes the answer, and with it the name. The resolvers are in the network of
    an uplink, which is reached without plait."""
    household.set_up_exit()
    wait_until_reachable(household.router, "fd50::11")
    wait_until_reachable(household.hosts["isp1"], "2a00:78:1::2")
    start(household)
    kill(household)
    answer = UDP(sport=53, dport=50000) / DNS(qr=1, qd=DNSQR(qname=NAME))
    to_lan = [
        (socket.AF_INET, "10.50.0.11", IP(src=RESOLVERS["router"], dst="10.50.0.11")),
        (socket.AF_INET6, "fd50::11", IPv6(src="2a00:78:1::1", dst="fd50::11")),
    ]
    to_router = [
        (socket.AF_INET, "192.168.1.2", IP(src=RESOLVERS["router"], dst="192.168.1.2")),
        (socket.AF_INET6, "2a00:78:1::2", IPv6(src="2a00:78:1::1", dst="2a00:78:1::2")),
    ]
    seen = Capture(household.one, "uplink", household.directory / "lan.pcap", filter="icmp or icmp6")
    with everything_outside(household) as packets, seen:
        for host, headers in ((household.router, to_lan), (household.hosts["isp1"], to_router)):
            for family, address, header in headers:
                with host.inside(), socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
                    raw.sendto(bytes(header / answer), (address, 0))
        time.sleep(1)
    for version in ("icmp.type == 3", "icmpv6.type == 1"):
        assert seen.fields("frame.number", where=version), "the test would see nothing"
    assert packets == []


def test_excluded_networks_are_forwarded_and_their_names_are_not(household, documents, text):
    """Of a LAN host, also when the daemon was killed."""
    household.start_web(documents)
    household.set_up_exit()
    start_excluding = ("--killswitch", "--exclude", f"{FAR}/32")
    assert household.up(*start_excluding).returncode == 0
    url = f"http://{FAR}/text.txt"
    assert household.one.run("curl", "-sS", "-m", "20", url).stdout == text.read_bytes()
    kill(household)
    assert household.one.run("curl", "-sS", "-m", "20", url).stdout == text.read_bytes()
    with household.capture("eth", filter="port 53") as capture:
        household.one.run("dig", "+time=1", "+tries=1", f"@{FAR}", NAME)
        assert household.one.run("curl", "-sS", "-m", "2", f"http://{FAR6}/").returncode != 0
    assert capture.fields("frame.number", where="ip") == []


def test_networks_that_the_router_excludes_are_forwarded_only(household, documents, text):
    """`exclude` of [router]: they are reached without plait by the hosts behind it, not by the router itself."""
    household.start_web(documents)
    url = household.router.tool("plait", "exit", "join", household.set_up_exit()).strip()
    text_of_file = (
        f'exit = "{url}"\n[paths]\neth = "trusted"\n[host]\nkillswitch = true\n'
        f'[router]\ninterfaces = ["lan0"]\nexclude = ["{FAR}/32"]\n'
    )
    daemon = Daemon(household.router, text_of_file, household.directory).start()
    url = f"http://{FAR}/text.txt"
    assert household.one.run("curl", "-sS", "-m", "20", url).stdout == text.read_bytes(), daemon.log()
    assert household.router.run("curl", "-sS", "-m", "20", url).stdout == text.read_bytes(), "by the exit"
    daemon.kill()
    assert household.one.run("curl", "-sS", "-m", "20", url).stdout == text.read_bytes()
    assert household.router.run("curl", "-sS", "-m", "3", url).returncode != 0
    assert household.one.run("curl", "-sS", "-m", "3", f"http://[{FAR6}]/text.txt").returncode != 0
