"""Hosts, links and programs for end-to-end tests, in network namespaces that are removed when the test ends."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

import bpf

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# What the fixture `names` resolves.
NAME = "server.example"
PLAIT = os.environ.get("PLAIT", str(REPOSITORY / "target" / "release" / "plait"))


def tool(*command: str) -> str:
    """Runs a program and returns its stdout; raises an error with its stderr if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def linux_release() -> tuple[int, int]:
    """Such as (6, 18)."""
    major, minor = os.uname().release.split("-")[0].split(".")[:2]
    return int(major), int(minor)


def wait_for(what: str, condition, timeout: float = 60.0):
    """Polls a condition every few milliseconds, and returns its first true value. The default is generous: a busy machine
    is slow, and nothing waits this long for what does happen."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"no {what} within {timeout} s"
        time.sleep(0.005)


_numbers = itertools.count(1)


def unique_id() -> str:
    """An identifier of a test, for the names of its namespaces."""
    return f"{os.getpid()}-{next(_numbers)}"


def enter_network(descriptor: int):
    """Calls setns(2) for this thread; os.setns needs Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newnet = 0x40000000
    if libc.setns(descriptor, clone_newnet):
        raise OSError(ctypes.get_errno(), "setns")


@dataclasses.dataclass
class Host:
    """A network namespace with state of plait of its own, and the programs that a test started in it."""

    name: str
    directory: pathlib.Path
    programs: list[subprocess.Popen] = dataclasses.field(default_factory=list)

    @property
    def state(self) -> pathlib.Path:
        """The directory of plait's state, which each machine has."""
        return self.directory / "state" / self.name

    def command(self, *command) -> list[str]:
        state = f"STATE_DIRECTORY={self.state}"
        return ["ip", "netns", "exec", self.name, "env", state, *map(str, command)]

    def netns_inode(self) -> int:
        """The namespace's inode number."""
        return (pathlib.Path("/run/netns") / self.name).stat().st_ino

    def run(self, *command, timeout: float = 60, **options) -> subprocess.CompletedProcess:
        """Runs a program in the namespace and waits for it; does not check its exit status."""
        options.setdefault("capture_output", True)
        return subprocess.run(self.command(*command), timeout=timeout, **options)

    def tool(self, *command) -> str:
        """Runs a program in the namespace, as `tool` does."""
        return tool(*self.command(*command))

    def add_packet_rules(self, **rules: str):
        """Adds a rule to each of these netfilter hooks, such as `input="tcp dport 80 drop"`."""
        chains = (
            f"chain {hook} {{ type filter hook {hook} priority -300; {rule}; }}; "
            for hook, rule in rules.items()
        )
        self.tool("nft", f"table inet test {{ {''.join(chains)} }}")

    def remove_packet_rules(self):
        self.tool("nft", "delete table inet test")

    @contextlib.contextmanager
    def packet_rules(self, **rules: str):
        """Within this context, the rules of `add_packet_rules` apply."""
        self.add_packet_rules(**rules)
        try:
            yield
        finally:
            self.remove_packet_rules()

    def start(self, *command, log: str | None = None, **options) -> subprocess.Popen:
        """Starts a program in the namespace, until the test ends. `ip` execs it, so the pid is the program's."""
        sink = open(self.directory / log, "wb") if log else subprocess.DEVNULL
        options.setdefault("stdout", sink)
        options.setdefault("stderr", sink)
        options.setdefault("stdin", subprocess.DEVNULL)
        program = subprocess.Popen(self.command(*command), **options)
        self.programs.append(program)
        return program

    def receive_on(self, interface: str, processor: int):
        """Receives the interface's packets on this processor (RPS), as a network card does for one flow."""
        self.tool("sh", "-c", f"echo {1 << processor:x} >/sys/class/net/{interface}/queues/rx-0/rps_cpus")

    def ip(self, words: str) -> str:
        """The output of `ip` with these words in the namespace; raises an error if it fails."""
        return tool("ip", "-n", self.name, *words.split())

    @contextlib.contextmanager
    def inside(self):
        """Within this context, new sockets of this thread belong to the host."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name}", os.O_RDONLY)
        try:
            enter_network(there)
            yield
        finally:
            enter_network(before)
            os.close(before)
            os.close(there)

    def socket(self, family=socket.AF_INET, protocol=socket.IPPROTO_TCP) -> socket.socket:
        with self.inside():
            return socket.socket(family, socket.SOCK_STREAM, protocol)

    def programs_at(self, interface: str) -> list[int]:
        """The ids of programs attached to an interface by tcx."""
        with self.inside():
            return bpf.programs_at(interface)

    def listens(self, port: int) -> bool:
        return bool(self.tool("ss", "-Htln", f"sport = :{port}").strip())

    def unload_policies(self):
        """Unloads what a test left loaded: pinned programs outlive the namespace."""
        exists = (pathlib.Path("/run/netns") / self.name).exists()
        if exists and (pathlib.Path("/run/plait/policy") / str(self.netns_inode())).exists():
            self.run(PLAIT, "policy", "unload", "--all")

    def stop_programs(self):
        for program in self.programs:
            if program.poll() is None:
                program.terminate()
        for program in self.programs:
            # A gateway that carries connections ends at the second signal; one that is killed leaves its socket behind.
            for stop in (program.terminate, program.kill):
                try:
                    program.wait(5)
                    break
                except subprocess.TimeoutExpired:
                    stop()
            program.wait()
        self.programs.clear()


class Pair:
    """A client and a server with two links between them: `eth` (trusted) and `wlan` (untrusted).

    The server announces its address on wlan; the client has no MPTCP endpoint.
    """

    ETH = "10.77.1.2"
    WLAN = "10.77.2.2"
    ETH6 = "fd77:1::2"
    WLAN6 = "fd77:2::2"

    def __init__(self, run_id: str, directory: pathlib.Path, rate: str | None = None):
        self.directory = directory
        self.client = Host(f"plait-test-{run_id}-client", directory)
        self.server = Host(f"plait-test-{run_id}-server", directory)
        self.rate = rate

    def build(self):
        hosts = (self.client, self.server)
        for host in hosts:
            tool("ip", "netns", "add", host.name)
            host.ip("link set lo up")
            for key in ("ipv4.conf.all.rp_filter", "ipv4.conf.default.rp_filter"):
                host.tool("sysctl", "-qw", f"net.{key}=0")
            host.ip("mptcp limits set subflows 8 add_addr_accepted 8")
        for number, link in ((1, "eth"), (2, "wlan")):
            self.join(link)
            for last, host in enumerate(hosts, start=1):
                host.ip(f"addr add 10.77.{number}.{last}/24 dev {link}")
                host.ip(f"addr add fd77:{number}::{last}/64 dev {link} nodad")
                host.ip(f"link set {link} up")
                if self.rate:
                    tool("tc", "-n", host.name, "qdisc", "add", "dev", link, "root",
                         "tbf", "rate", self.rate, "burst", "64k", "latency", "50ms")  # fmt: skip
        for address in (self.WLAN, self.WLAN6):
            self.server.ip(f"mptcp endpoint add {address} dev wlan signal")

    def join(self, link: str):
        """Creates the interfaces of a link, one on each host."""
        tool("ip", "link", "add", link, "netns", self.client.name, "type", "veth",
             "peer", "name", link, "netns", self.server.name)  # fmt: skip

    def add_route_by_wlan(self):
        """Adds a route by wlan to the server's address on eth, so that wlan can carry a witness; again after a cut."""
        self.client.ip(f"route replace 10.77.1.0/24 via {self.WLAN} dev wlan metric 1000")

    def remove(self):
        for host in (self.client, self.server):
            host.stop_programs()
            host.unload_policies()
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True)

    def capture(self, link: str, host: Host | None = None, **options) -> Capture:
        return Capture(host or self.server, link, self.directory / f"{link}.pcap", **options)

    def serve(self, *options, to: str, listen: str = "[::]:8443", plait=PLAIT) -> subprocess.Popen:
        """Starts `plait serve` on the server; returns once it listens."""
        return start_listening(self.server, ("-v", "serve", "--to", to, *options), listen, plait)

    def run(self, *command, options=("--trusted", "eth"), **more) -> subprocess.CompletedProcess:
        """Runs a command through `plait run` on the client."""
        return self.client.run(PLAIT, "run", *options, "--", *command, **more)

    def proxy(self, *options, listen: str = "127.0.0.1:1080", plait=PLAIT) -> subprocess.Popen:
        """Starts `plait proxy` on the client; returns once it listens."""
        return start_listening(self.client, ("-vv", "proxy", *options), listen, plait)

    def nginx(self, documents: pathlib.Path, port: int = 8080) -> str:
        """Starts an unmodified nginx on the server's loopback, and returns its address."""
        listen = f"listen 127.0.0.1:{port} backlog=4096; listen [::1]:{port};"
        start_nginx(self.server, documents, port, listen)
        return f"127.0.0.1:{port}"

    def logged(self, command: str) -> str:
        """The log of the gateway that a command runs."""
        return (self.directory / f"{command}.log").read_text()

    def status(self) -> list[dict]:
        """The gateways of this pair in `plait status --json`."""
        ours = {program.pid for host in (self.client, self.server) for program in host.programs}
        gateways = json.loads(tool(PLAIT, "status", "--json"))["gateways"]
        return [gateway for gateway in gateways if gateway["pid"] in ours]


def start_nginx(host: Host, documents: pathlib.Path, port: int, listen: str):
    """Starts an unmodified nginx, which listens on a port as the directives `listen` say; returns once it does."""
    directory = host.directory / "nginx"
    directory.mkdir()
    configuration = directory / "nginx.conf"
    configuration.write_text(
        f"""
        daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log;
        events {{ worker_connections 8192; }}
        http {{
            access_log off; sendfile on;
            client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
            fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
            server {{ {listen} root {documents}; }}
        }}
        """
    )
    # Its workers must be able to read root's files.
    host.start("nginx", "-c", configuration, "-g", "user root;", log="nginx.log")
    wait_for("nginx", lambda: host.listens(port))


def start_listening(host: Host, arguments: tuple, listen: str, plait=PLAIT) -> subprocess.Popen:
    """Starts a gateway of plait, with a log named after its command; returns once it listens."""
    log = host.directory / f"{arguments[1]}.log"
    program = host.start(plait, *arguments, "--listen", listen, log=log.name)
    port = int(listen.rsplit(":", 1)[1])
    wait_for(f"listening {arguments[1]}", lambda: program.poll() is not None or host.listens(port))
    assert program.poll() is None, log.read_text()
    return program


class Capture:
    """A tcpdump on one link: captures from entry on, and has written everything on exit."""

    def __init__(
        self, host: Host, link: str, file: pathlib.Path, *, filter: str = "tcp", snap_length: int = 0
    ):
        self.host, self.link, self.file = host, link, file
        self.filter, self.snap_length = filter, snap_length
        self.log = host.directory / f"tcpdump-{link}.log"

    def __enter__(self) -> Capture:
        # Without immediate mode, packets wait in the ring for up to a second and are lost when tcpdump exits.
        options = ("--immediate-mode", "-s", self.snap_length, "-B", "32768", "-U", "-w", self.file)
        self.program = self.host.start("tcpdump", "-i", self.link, *options, self.filter, log=self.log.name)
        wait_for("tcpdump", lambda: b"listening on" in self.log.read_bytes())
        return self

    def __exit__(self, *_):
        time.sleep(0.3)
        # It ends without the packets that it has not read, as while it writes to a busy disk; when it has, it sleeps.
        state = pathlib.Path(f"/proc/{self.program.pid}/stat")
        wait_for("sleep of tcpdump", lambda: state.read_text().rpartition(")")[2].split()[0] == "S")
        self.program.send_signal(signal.SIGINT)
        self.program.wait(60)
        log = self.log.read_text()
        assert "\n0 packets dropped by kernel" in log, log

    def payload(self) -> bytes:
        """All TCP payload in the order of capture, by tshark."""
        lines = self.fields("tcp.payload", where="tcp.len > 0")
        return b"".join(bytes.fromhex(line[0].replace(":", "")) for line in lines)

    def fields(self, *names: str, where: str = "tcp", preferences: tuple[str, ...] = ()) -> list[list[str]]:
        """Those of packet_fields()."""
        return packet_fields(self.file, *names, where=where, preferences=preferences)


def packet_fields(
    file: pathlib.Path, *names: str, where: str = "tcp", preferences: tuple[str, ...] = ()
) -> list[list[str]]:
    """Fields of every matching packet in a capture file, by tshark."""
    options = [option for name in names for option in ("-e", name)]
    options += [option for preference in preferences for option in ("-o", preference)]
    arguments = ["-o", "tcp.desegment_tcp_streams:FALSE", "-Y", where, "-T", "fields", *options]
    lines = tool("tshark", "-n", "-r", str(file), *arguments).splitlines()
    return [line.split("\t") for line in lines]


def reason_to_skip() -> str | None:
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not pathlib.Path("/proc/sys/net/mptcp").exists():
        return "this kernel has no MPTCP"
    if missing := missing_tools():
        return f"not installed: {', '.join(missing)}"
    return None


def skip_without_feature(name: str):
    """Skips the test if `plait doctor` lacks the feature."""
    features = json.loads(subprocess.run([PLAIT, "doctor", "--json"], capture_output=True).stdout)["features"]
    found = next(each for each in features if each["name"] == name)
    if not found["present"]:
        pytest.skip(found["detail"])


def missing_tools() -> list[str]:
    needed = ("ip", "tc", "ss", "nginx", "curl", "tcpdump", "tshark", "mptcpize")
    return [name for name in needed if not shutil.which(name)]
