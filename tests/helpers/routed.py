"""A client with two routed paths to a server, in network namespaces: configured as `plait doctor` wants it, for tests to break.

client eth  10.80.1.1 -- first -- second --+
                                           +-- server 10.80.9.1
client wlan 10.80.2.1 -- third ------------+
"""

from __future__ import annotations

import pathlib
import socket
import threading

from hosts import Host, tool
from streams import listen

SERVER, SERVER6, OTHER = "10.80.9.1", "fd80:9::1", "10.80.9.9"
ETH, WLAN, WLAN6 = "10.80.1.1", "10.80.2.1", "fd80:2::1"
PORT = 8443


class Routed:
    """The hosts and routers; remove() removes them."""

    def __init__(self, run_id: str, directory: pathlib.Path):
        names = ("client", "first", "second", "third", "server")
        self.hosts = [Host(f"plait-test-{run_id}-{name}", directory) for name in names]
        self.client, self.first, self.second, self.third, self.server = self.hosts

    def build(self):
        for host in self.hosts:
            tool("ip", "netns", "add", host.name)
            host.ip("link set lo up")
            host.tool("sysctl", "-qw", *SETTINGS)
        # Each host has the number of the network, and then its own.
        self.link(self.client, "eth", "1.1", self.first, "client", "1.254")
        self.link(self.first, "next", "5.1", self.second, "previous", "5.2")
        self.link(self.client, "wlan", "2.1", self.third, "client", "2.254")
        self.server.ip("link add core type bridge forward_delay 0")
        for router, number in ((self.second, 253), (self.third, 252)):
            port = f"port{number}"
            self.link(router, "core", f"9.{number}", self.server, port, None)
            self.server.ip(f"link set {port} master core")
        self.address(self.server, "core", "9.1")
        self.route(self.first, "9.0", "5.2")
        self.route(self.second, "1.0", "5.1")
        self.route(self.server, "1.0", "9.253")
        self.route(self.server, "5.0", "9.253")
        self.route(self.server, "2.0", "9.252")
        self.configure_client()
        self.server.ip("mptcp limits set subflows 8 add_addr_accepted 8")

    def configure_client(self):
        client = self.client
        client.ip("mptcp limits set subflows 8 add_addr_accepted 8")
        for link, number, metric in (("eth", 1, 100), ("wlan", 2, 600)):
            for family, router in (("-4", f"10.80.{number}.254"), ("-6", f"fd80:{number}::254")):
                client.ip(f"{family} route add default via {router} dev {link} metric {metric}")
        for family, router, own in (("-4", "10.80.2.254", WLAN), ("-6", "fd80:2::254", WLAN6)):
            client.ip(f"{family} route add default via {router} dev wlan table 2")
            client.ip(f"{family} rule add from {own} table 2")
            client.ip(f"mptcp endpoint add {own} dev wlan subflow")

    def link(self, left: Host, name: str, number: str, right: Host, other: str, other_number: str | None):
        tool("ip", "link", "add", name, "netns", left.name, "type", "veth",
             "peer", "name", other, "netns", right.name)  # fmt: skip
        for host, interface, address in ((left, name, number), (right, other, other_number)):
            if address:
                self.address(host, interface, address)
            host.ip(f"link set {interface} up")

    @staticmethod
    def address(host: Host, interface: str, number: str):
        network, last = number.split(".")
        host.ip(f"link set {interface} up")
        host.ip(f"addr add 10.80.{number}/24 dev {interface}")
        host.ip(f"addr add fd80:{network}::{last}/64 dev {interface} nodad")

    @staticmethod
    def route(host: Host, to: str, via: str):
        (network, _), (through, last) = to.split("."), via.split(".")
        host.ip(f"route add 10.80.{network}.0/24 via 10.80.{via}")
        host.ip(f"-6 route add fd80:{network}::/64 via fd80:{through}::{last}")

    def serve(self, address: str = "::", protocol: int = socket.IPPROTO_MPTCP, answer=None):
        """Accepts connections on the server, and calls `answer` with each: by default, it reads until they end."""
        listener = listen(self.server, PORT, address, protocol)

        def run():
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer or drain, args=(connection,), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()

    def remove(self):
        for host in self.hosts:
            host.stop_programs()
            tool("ip", "netns", "del", host.name)


def drain(connection: socket.socket):
    with connection:
        try:
            while connection.recv(65536):
                pass
        except OSError:
            pass


SETTINGS = (
    "net.ipv4.ip_forward=1",
    "net.ipv6.conf.all.forwarding=1",
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv4.tcp_congestion_control=reno",
    # Routers tell each probe where it is.
    "net.ipv4.icmp_ratelimit=0",
    "net.ipv6.icmp.ratelimit=0",
)
