"""Hosts behind a router that know nothing of it, and an exit beyond its two uplinks."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess

from exits import Exit
from hosts import PLAIT, Host, Pair, tool, unique_id, wait_for

# The networks behind the router's interfaces lan0 and lan1: the router has .1, the host .2.
NETWORKS = {"lan0": ("10.50.0", "fd50"), "lan1": ("10.51.0", "fd51")}
MARK = "0x706c6169"


@dataclasses.dataclass
class Lan:
    """The hosts behind the client of a pair, which is their router."""

    pair: Pair
    hosts: dict[str, Host]

    @property
    def router(self) -> Host:
        return self.pair.client

    @property
    def host(self) -> Host:
        """The host behind lan0."""
        return self.hosts["lan0"]

    def start(self, *options, interfaces=("lan0",)) -> subprocess.Popen:
        """Starts `plait router`; returns once it takes packets."""
        named = [word for interface in interfaces for word in ("--interface", interface)]
        log = self.pair.directory / "router.log"
        program = self.router.start(PLAIT, "-vv", "router", *named, *options, log=log.name)
        wait_for("router", lambda: program.poll() is not None or "router of the hosts" in log.read_text())
        assert program.poll() is None, log.read_text()
        return program

    def start_with(self, exit: Exit, *options, **more) -> subprocess.Popen:
        """The same, with connections through an exit."""
        return self.start("--trusted", "eth", "--exit", exit.url, *options, **more)

    def plug(self, interface: str):
        """Connects a host."""
        host, (network, network6) = self.hosts[interface], NETWORKS[interface]
        tool("ip", "link", "add", interface, "netns", self.router.name, "type", "veth",
             "peer", "name", "uplink", "netns", host.name)  # fmt: skip
        # As distributions set it: packets from behind an interface must leave by it.
        self.router.tool("sysctl", "-qw", f"net.ipv4.conf.{interface}.rp_filter=1")
        for end, name, last in ((self.router, interface, 1), (host, "uplink", 2)):
            end.ip(f"addr add {network}.{last}/24 dev {name}")
            end.ip(f"addr add {network6}::{last}/64 dev {name} nodad")
            end.ip(f"link set {name} up")
        host.ip(f"route add default via {network}.1")
        host.ip(f"-6 route add default via {network6}::1")

    def unplug(self, interface: str):
        self.router.ip(f"link del {interface}")

    def log(self) -> str:
        return (self.pair.directory / "router.log").read_text()

    def traces(self) -> dict[str, object]:
        """What a router has set and attached, which must be as before when it has ended."""
        routes = [self.router.ip(f"{family} route show table all") for family in ("-4", "-6")]
        # Those of link-local addresses appear when duplicate address detection is over.
        routes = [
            line for line in "".join(routes).splitlines() if "fe80:" not in line and "ff00:" not in line
        ]
        settings = self.router.tool("sysctl", "net.ipv4", "net.ipv6").splitlines()
        # The lists of algorithms are the host's, on which other tests load some.
        settings = [
            line for line in settings if "e_congestion_control" not in line and "allowed_cong" not in line
        ]
        return {
            "rules": self.router.ip("-4 rule") + self.router.ip("-6 rule"),
            "routes": "\n".join(routes),
            "programs": self.router.programs_at("lan0"),
            "settings": "\n".join(settings),
        }


@contextlib.contextmanager
def lan_behind(pair: Pair, *interfaces: str):
    """Hosts behind interfaces of the pair's client. Their default route leads to it; it does not forward."""
    lan = Lan(pair, {})
    try:
        for interface in interfaces:
            host = Host(f"plait-test-{unique_id()}-{interface}", pair.directory)
            tool("ip", "netns", "add", host.name)
            lan.hosts[interface] = host
            host.ip("link set lo up")
            lan.plug(interface)
        forward(pair.client, False)
        yield lan
    finally:
        for host in lan.hosts.values():
            host.stop_programs()
            tool("ip", "netns", "del", host.name)


def forward(host: Host, forwards: bool):
    value = int(forwards)
    host.tool("sysctl", "-qw", f"net.ipv4.ip_forward={value}", f"net.ipv6.conf.all.forwarding={value}")
