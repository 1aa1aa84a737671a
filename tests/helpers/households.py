"""A household behind two uplinks, each with a NAT of its provider, and a rented server on the Internet.

one, two --- lan0 router eth  --- isp1 (NAT, 40 Mb/s) --+            +--- server (exit)
                         wlan --- isp2 (NAT, 20 Mb/s) --+- internet -+
                                                                     +--- far (web, DNS, SSH, ...)

The router forwards and has a NAT, as before plait was installed: what plait does not carry would reach its destination.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess

from exits import resolver_of
from hosts import Capture, Host, start_nginx, tool, wait_for
from machines import Machine

UPLINKS = {"eth": 40, "wlan": 20}
PORT = 8443
NAME = "www.far.example"

# The networks of the Internet: their router has .1, the host .2.
OUTSIDE = {"isp1": 1, "isp2": 2, "server": 3, "far": 4}
SERVER, FAR, FAR6 = "11.0.3.2", "11.0.4.2", "2a00:77:4::2"
ROUTER, ROUTER6 = "10.50.0.1", "fd50::1"
LAN = {"one": ("10.50.0.11", "fd50::11"), "two": ("10.50.0.12", "fd50::12")}
# Of providers: what the router asks, and what a host of the LAN has by hand.
RESOLVERS = {"router": "192.168.1.1", "one": ROUTER, "two": "9.9.9.9"}

MASQUERADE = "table ip nat { chain postrouting { type nat hook postrouting priority srcnat; oifname { %s } masquerade; }; }"

# Neighbors and addresses; see RFC 4861 and RFC 3810.
NEIGHBORS = "icmpv6.type >= 130 && icmpv6.type <= 143"


class Household:
    """The hosts. remove() removes them, however far build() got."""

    def __init__(self, run_id: str, directory: pathlib.Path, root: pathlib.Path):
        self.directory = directory
        self.run_id = run_id
        self.server = Machine(f"plait-test-{run_id}-server", directory, root)
        self.router = Machine(f"plait-test-{run_id}-router", directory, root)
        plain = ("internet", "isp1", "isp2", "far", *LAN)
        self.hosts = {name: Host(f"plait-test-{run_id}-{name}", directory) for name in plain}
        self.hosts |= {"server": self.server, "router": self.router}
        self.root = root
        # What the server prints for the router.
        self.url = ""

    @property
    def far(self) -> Host:
        return self.hosts["far"]

    @property
    def one(self) -> Host:
        return self.hosts["one"]

    @property
    def two(self) -> Host:
        return self.hosts["two"]

    def build(self):
        for host in self.hosts.values():
            tool("ip", "netns", "add", host.name)
            host.ip("link set lo up")
            # As systemd sets it.
            set_keys(host, "net.ipv4.conf.all.rp_filter=2", "net.ipv4.conf.default.rp_filter=2")
        for name in ("internet", "isp1", "isp2", "router"):
            set_keys(self.hosts[name], "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        for name, number in OUTSIDE.items():
            self.connect("internet", name, name, "outside", f"11.0.{number}", f"2a00:77:{number}:")
            self.hosts[name].ip(f"route add default via 11.0.{number}.1")
            self.hosts[name].ip(f"-6 route add default via 2a00:77:{number}::1")
        for number, (uplink, rate) in enumerate(UPLINKS.items(), start=1):
            self.connect(f"isp{number}", "home", "router", uplink, f"192.168.{number}", f"2a00:78:{number}:")
            self.hosts["internet"].ip(f"-6 route add 2a00:78:{number}::/64 via 2a00:77:{number}::2")
            provider = self.hosts[f"isp{number}"]
            add_masquerade(provider, "outside")
            for interface in ("home", "outside"):
                tool("tc", "-n", provider.name, "qdisc", "add", "dev", interface, "root",
                     "tbf", "rate", f"{rate}mbit", "burst", "64k", "latency", "50ms")  # fmt: skip
            self.add_default_route(uplink)
        self.build_lan()
        for name, address in RESOLVERS.items():
            self.write_resolver(name, address)
        for machine in (self.server, self.router):
            machine.boot()
        (self.server.etc / "resolv.conf").write_text(f"nameserver {FAR}\n")
        (self.router.etc / "resolv.conf").write_text(f"nameserver {RESOLVERS['router']}\n")

    def connect(self, left: str, name: str, right: str, other: str, network: str, network6: str):
        """A link between two hosts: .1 and .2 of its networks."""
        ends = ((self.hosts[left], name, 1), (self.hosts[right], other, 2))
        tool("ip", "link", "add", name, "netns", ends[0][0].name, "type", "veth",
             "peer", "name", other, "netns", ends[1][0].name)  # fmt: skip
        for host, interface, last in ends:
            host.ip(f"addr add {network}.{last}/24 dev {interface}")
            host.ip(f"addr add {network6}:{last}/64 dev {interface} nodad")
            host.ip(f"link set {interface} up")

    def add_default_route(self, uplink: str):
        """As a DHCP client does; again after a cut."""
        number = list(UPLINKS).index(uplink) + 1
        self.router.ip(f"route replace default via 192.168.{number}.1 dev {uplink} metric {100 * number}")
        self.router.ip(f"-6 route replace default via 2a00:78:{number}::1 dev {uplink} metric {100 * number}")

    def build_lan(self):
        """A bridge, with a port for each host."""
        self.router.ip("link add lan0 type bridge forward_delay 0")
        self.router.ip(f"addr add {ROUTER}/24 dev lan0")
        self.router.ip(f"addr add {ROUTER6}/64 dev lan0 nodad")
        for name, addresses in LAN.items():
            host = self.hosts[name]
            tool("ip", "link", "add", f"port-{name}", "netns", self.router.name, "type", "veth",
                 "peer", "name", "uplink", "netns", host.name)  # fmt: skip
            self.router.ip(f"link set port-{name} master lan0 up")
            for address, length in zip(addresses, (24, 64), strict=True):
                host.ip(f"addr add {address}/{length} dev uplink" + (" nodad" if length == 64 else ""))
            host.ip("link set uplink up")
            host.ip(f"route add default via {ROUTER}")
            host.ip(f"-6 route add default via {ROUTER6}")
        self.router.ip("link set lan0 up")
        add_masquerade(self.router, *UPLINKS)

    def add_laptop(self) -> Machine:
        """Another machine with plait, elsewhere on the Internet."""
        laptop = Machine(f"plait-test-{self.run_id}-laptop", self.directory, self.root)
        tool("ip", "netns", "add", laptop.name)
        self.hosts["laptop"] = laptop
        laptop.ip("link set lo up")
        self.connect("internet", "laptop", "laptop", "outside", "11.0.5", "2a00:77:5:")
        laptop.ip("route add default via 11.0.5.1")
        laptop.ip("-6 route add default via 2a00:77:5::1")
        laptop.boot()
        (laptop.etc / "resolv.conf").write_text("nameserver 11.0.5.1\n")
        return laptop

    def write_resolver(self, name: str, address: str):
        directory = pathlib.Path("/etc/netns") / self.hosts[name].name
        directory.mkdir(parents=True)
        (directory / "resolv.conf").write_text(f"nameserver {address}\n")

    def remove(self):
        for host in self.hosts.values():
            if isinstance(host, Machine):
                if host is not self.server and host.init and host.init.poll() is None:
                    host.run("plait", "down")
                host.power_off()
            else:
                host.stop_programs()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)
            directory = pathlib.Path("/etc/netns") / host.name
            (directory / "resolv.conf").unlink(missing_ok=True)
            if directory.exists():
                directory.rmdir()

    def resolve_at_home(self):
        """The first provider's resolver passes queries on."""
        self.translate("isp1", f"ip daddr {RESOLVERS['router']} udp dport 53 dnat to {FAR}")

    def forward_port(self, provider: str, port: int):
        """Connections to a port of a provider's address go to the router."""
        self.translate(provider, f'iifname "outside" tcp dport {port} dnat to 192.168.{provider[-1]}.2')

    def translate(self, provider: str, rule: str):
        host = self.hosts[provider]
        host.tool("nft", "add chain ip nat prerouting { type nat hook prerouting priority dstnat; }")
        host.tool("nft", f"add rule ip nat prerouting {rule}")

    def bring_up_uplink(self, uplink: str):
        number = list(UPLINKS).index(uplink) + 1
        self.router.ip(f"link set {uplink} up")
        self.router.ip(f"-6 addr replace 2a00:78:{number}::2/64 dev {uplink} nodad")
        self.add_default_route(uplink)

    def cut(self, uplink: str, kind: str):
        """Cuts an uplink, or gives it another address; returns a function that restores it, if it is cut."""
        number = list(UPLINKS).index(uplink) + 1
        provider = self.hosts[f"isp{number}"]
        match kind:
            case "silent":
                provider.add_packet_rules(forward="drop")
                return provider.remove_packet_rules
            case "interface down":
                self.router.ip(f"link set {uplink} down")
                return lambda: self.bring_up_uplink(uplink)
            case "address changed":
                # As after a lease that was not renewed; the provider's end is the same.
                self.router.ip(f"addr del 192.168.{number}.2/24 dev {uplink}")
                self.router.ip(f"addr add 192.168.{number}.77/24 dev {uplink}")
                self.add_default_route(uplink)
                return lambda: None
        raise ValueError(kind)

    @contextlib.contextmanager
    def suspended(self):
        """Within this context, no program of the router runs, and its interfaces are down. Its kernel goes on, so that timers expire
        that would not."""
        programs = self.router.processes()
        for program in programs:
            os.kill(program, signal.SIGSTOP)
        for interface in (*UPLINKS, "lan0"):
            self.router.ip(f"link set {interface} down")
        try:
            yield
        finally:
            self.router.ip("link set lan0 up")
            self.router.ip(f"-6 addr replace {ROUTER6}/64 dev lan0 nodad")
            for uplink in UPLINKS:
                self.bring_up_uplink(uplink)
            for program in programs:
                os.kill(program, signal.SIGCONT)

    # What the README says, and nothing else.

    def set_up_exit(self, *options) -> str:
        """`plait exit init` on the server, which starts the exit; returns the URL that it prints for a client."""
        done = self.server.run("plait", "exit", "init", *options, text=True)
        assert done.returncode == 0, done.stderr
        self.url = done.stdout.strip()
        return self.url

    def invite(self) -> str:
        """The URL for one more client."""
        return self.server.tool("plait", "exit", "invite").strip()

    def start_exit(self):
        """After a reboot, as its service does."""
        command = ("plait", "-v", "daemon", "--config", "/etc/plait/plait.toml")
        program = self.server.start(*command, log="exit.log")
        wait_for("exit", lambda: program.poll() is not None or self.server.listens(PORT))
        assert program.poll() is None, (self.directory / "exit.log").read_text()

    def up(self, *options, router=("--router", "lan0")) -> subprocess.CompletedProcess:
        return self.router.run("plait", "up", self.url, *router, *options, text=True)

    def down(self) -> subprocess.CompletedProcess:
        return self.router.run("plait", "down", text=True)

    # What tests look at.

    def report(self) -> dict:
        """The gateway on the router, in `plait status --json`."""
        [gateway] = json.loads(self.router.tool("plait", "status", "--json"))["gateways"]
        return gateway

    def router_log(self) -> str:
        [log] = pathlib.Path(f"/proc/{self.router.init.pid}/root/run/plait").glob("host.*.log")
        return log.read_text()

    def exit_log(self) -> str:
        """Of the exit that `plait exit init` started."""
        [log] = pathlib.Path(f"/proc/{self.server.init.pid}/root/run/plait").glob("exit.*.log")
        return log.read_text()

    def client_pid(self) -> int:
        """The process of the daemon on the router, which `plait up` started."""
        [lock] = pathlib.Path(f"/proc/{self.router.init.pid}/root/run/plait").glob("host.*.lock")
        return int(lock.read_text())

    def start_web(self, documents: pathlib.Path, more: str = ""):
        """nginx on the far host, with further directives of its server."""
        start_nginx(self.far, documents, 80, f"listen 80; listen [::]:80; {more}")

    def capture(self, uplink: str, **options) -> Capture:
        """A tcpdump on an uplink, as the provider sees it."""
        options.setdefault("filter", "ip or ip6")
        file = self.directory / f"{uplink}.pcap"
        return Capture(self.hosts[f"isp{list(UPLINKS).index(uplink) + 1}"], "home", file, **options)


def set_keys(host: Host, *keys: str):
    tool("ip", "netns", "exec", host.name, "sysctl", "-qw", *keys)


def add_masquerade(host: Host, *interfaces: str):
    names = ", ".join(f'"{interface}"' for interface in interfaces)
    tool("ip", "netns", "exec", host.name, "nft", MASQUERADE % names)
