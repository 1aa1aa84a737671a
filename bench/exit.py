#!/usr/bin/env python3
"""Downloads through an exit, beside WireGuard and xray, in namespaces: throughput, processor time, memory of connections.

A client and an exit have two links, and nginx is behind the exit. The variants run in turn, round by round.

forwarded  TCP, which the exit's host forwards, by one link, unprotected
wireguard  the same through wireguard-go (a kernel with WireGuard uses that), by one link
xray       curl by SOCKS5 through xray, Shadowsocks 2022 with AES-128-GCM over MPTCP
proxy      curl by SOCKS5 through `plait proxy --exit`
run        curl under `plait run --exit`

Processor time is that of the whole machine while curl runs, in seconds per gigabit: leave it to the benchmark. `--connections N`
opens N idle connections by SOCKS5 and prints the memory of both ends. wireguard-go (with wg) and xray are left out if they are not in
PATH. Needs root and a built plait.
"""

import base64
import contextlib
import json
import os
import resource
import shutil
import socket
import statistics
import struct
import sys
import time

import download
import pairs
import prologue
import rounds
import wireguard
from exits import FAR, exit_behind
from hosts import wait_for
from streams import resident_bytes

# The web server's second address, which the client reaches through WireGuard.
FAR_BY_WIREGUARD = "11.0.0.3"
PORT, SOCKS, XRAY_SOCKS = 80, 1080, 1081
XRAY_PORT = 8388
LINKS = {"unlimited-veth": (None, 1024), "2x100mbit": ("100mbit", 100)}
MIB = 1 << 20


class Bench:
    """The hosts and the programs between them."""

    def __init__(self, exit, directory):
        self.exit, self.client, self.server, self.far = exit, exit.client, exit.server, exit.far
        self.directory = directory
        # By variant: the programs at the client and at the exit.
        self.programs = {}

    def start_plait(self, *options):
        limits = ("--max-connections", "100000", *options)
        serve = self.exit.serve(*limits, "--max-connections-per-peer", "100000")
        self.programs["proxy"] = (self.exit.proxy(*limits), serve)

    def start_forwarding(self):
        self.server.tool("sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.client.ip(f"route add {FAR}/32 via {self.exit.pair.ETH} dev eth")
        for network in ("10.77.0.0/16", "10.78.0.0/24"):
            self.far.ip(f"route add {network} via 11.0.0.1")

    def start_wireguard(self):
        self.far.ip(f"addr add {FAR_BY_WIREGUARD}/24 dev core")
        device = wireguard.connect(
            self.directory,
            self.client,
            self.server,
            self.exit.pair.ETH,
            "10.78.0",
            mtu=1420,
            more=("11.0.0.0/24",),
        )
        self.client.ip(f"route add {FAR_BY_WIREGUARD}/32 dev {device}")

    def start_xray(self):
        key = base64.b64encode(os.urandom(16)).decode()
        method = {"method": "2022-blake3-aes-128-gcm", "password": key}
        mptcp = {"sockopt": {"tcpMptcp": True}}
        server = {
            "inbounds": [
                {
                    "port": XRAY_PORT,
                    "protocol": "shadowsocks",
                    "settings": method | {"network": "tcp"},
                    "streamSettings": mptcp,
                }
            ],
            "outbounds": [{"protocol": "freedom", "settings": {"finalRules": [{"action": "allow"}]}}],
        }
        to = method | {"address": self.exit.pair.ETH, "port": XRAY_PORT}
        client = {
            "inbounds": [{"port": XRAY_SOCKS, "listen": "127.0.0.1", "protocol": "socks"}],
            "outbounds": [
                {"protocol": "shadowsocks", "settings": {"servers": [to]}, "streamSettings": mptcp}
            ],
        }
        self.client.ip("mptcp endpoint add 10.77.2.1 dev wlan subflow")
        programs = []
        for host, config, port in ((self.server, server, XRAY_PORT), (self.client, client, XRAY_SOCKS)):
            file = self.directory / f"xray-{port}.json"
            file.write_text(json.dumps({"log": {"loglevel": "warning"}} | config))
            program = host.start("xray", "run", "-c", file, log=f"xray-{port}.log")
            wait_for("xray", lambda: program.poll() is not None or host.listens(port))  # noqa: B023
            assert program.poll() is None, (host.directory / f"xray-{port}.log").read_text()
            programs.insert(0, program)
        self.programs["xray"] = tuple(programs)

    def variants(self):
        found = ["forwarded", "proxy", "run"]
        if wireguard.program() and shutil.which("wg"):
            found.append("wireguard")
        if shutil.which("xray"):
            found.append("xray")
        return found

    def fetch(self, variant):
        """Megabits per second, and seconds of processor time per gigabit."""
        address = FAR_BY_WIREGUARD if variant == "wireguard" else FAR
        curl = ["curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{size_download} %{time_total}"]
        if variant in ("proxy", "xray"):
            curl += ["-x", f"socks5h://127.0.0.1:{SOCKS if variant == 'proxy' else XRAY_SOCKS}"]
        curl.append(f"http://{address}/document")
        before = busy_seconds()
        done = self.exit.run(*curl, timeout=300) if variant == "run" else self.client.run(*curl, timeout=300)
        busy = busy_seconds() - before
        if done.returncode:
            sys.exit(f"{variant}: {done.stderr.decode()}")
        return download.mbps(done), busy / (float(done.stdout.split()[0]) * 8 / 1e9)

    def memory(self, variant, count):
        """Resident MiB of both ends without and with idle connections, each of which has carried a byte."""
        port = SOCKS if variant == "proxy" else XRAY_SOCKS
        programs = self.programs[variant]
        before = [resident_mib(program) for program in programs]
        began = time.monotonic()
        clients = [connect(self.client, port) for _ in range(count)]
        seconds = time.monotonic() - began
        after = [resident_mib(program) for program in programs]
        for client in clients:
            client.close()
        ends = ("client_mib", "exit_mib")
        return {"seconds": round(seconds, 1)} | {
            end: [round(one, 1), round(other, 1)] for end, one, other in zip(ends, before, after)
        }


def busy_seconds():
    """Processor time of this machine that was not idle."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, interrupt, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + interrupt + softirq) / os.sysconf("SC_CLK_TCK")


def resident_mib(program):
    """Of a program and its children."""
    pids = [program.pid]
    for pid in pids:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            pids += map(int, file.read().split())
    return sum(resident_bytes(pid) for pid in pids) / MIB


def connect(host, port):
    """A connection to the echo server behind the exit, by SOCKS5, over which a byte has gone and come back."""
    client = host.socket()
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    client.sendall(b"\5\1\0")
    assert client.recv(2) == b"\5\0"
    client.sendall(b"\5\1\0\1" + socket.inet_aton(FAR) + struct.pack("!H", 7))
    assert client.recv(10)[:2] == b"\5\0"
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    return client


# One thread for all connections.
ECHO = """
import resource, selectors, socket, sys
selector = selectors.DefaultSelector()
listener = socket.create_server((sys.argv[1], 7), backlog=4096)
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], selectors.EVENT_READ)
        elif data := key.fileobj.recv(4096):
            key.fileobj.send(data)
        else:
            selector.unregister(key.fileobj)
            key.fileobj.close()
"""


@contextlib.contextmanager
def built(rate, megabytes):
    make = lambda name, directory: pairs.Pair(name, directory, rate)  # noqa: E731
    with pairs.built(make) as pair, exit_behind(pair) as exit:
        documents = pair.directory / "documents"
        documents.mkdir()
        with (documents / "document").open("wb") as out:
            for _ in range(megabytes):
                out.write(os.urandom(MIB))
        bench = Bench(exit, pair.directory)
        bench.start_forwarding()
        if "wireguard" in bench.variants():
            bench.start_wireguard()
        exit.start_nginx(documents)
        bench.start_plait()
        if "xray" in bench.variants():
            bench.start_xray()
        yield bench


def rates(bench, count, progress):
    found = rounds.in_turn(bench.variants(), count, bench.fetch, progress)
    mbps = {variant: [rate for rate, _ in values] for variant, values in found.items()}
    others = [variant for variant in ("forwarded", "wireguard", "xray") if variant in mbps]
    result = rounds.summary(
        mbps, [("run", other) for other in others] + [("proxy", other) for other in others]
    )
    result["cpu_s_per_gbit"] = {
        variant: statistics.median(busy for _, busy in values) for variant, values in found.items()
    }
    return result


def main():
    parser = prologue.parser(__doc__, rounds=5)
    parser.add_argument("--links", choices=LINKS, action="append", help="links to measure; repeatable")
    parser.add_argument("--connections", type=int, help="measure the memory of so many connections instead")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    results = {}
    # Also of the programs.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.connections:
        with built(None, 1) as bench:
            bench.far.start(sys.executable, "-c", ECHO, FAR, log="echo.log")
            wait_for("echo", lambda: bench.far.listens(7))
            results = {name: bench.memory(name, arguments.connections) for name in bench.programs}
    else:
        for name in arguments.links or LINKS:
            with built(*LINKS[name]) as bench:
                results[name] = rates(
                    bench, arguments.rounds, lambda text, name=name: progress(f"{name}: {text}")
                )
    progress("")
    if arguments.json:
        print(json.dumps({"kernel": os.uname().release, "results": results}, indent=2))
        return
    for name, result in results.items():
        if arguments.connections:
            print(f"{name:10} {arguments.connections} connections: {result}")
            continue
        print(f"\n{name}, {arguments.rounds} rounds")
        print(rounds.text(result))
        for variant, busy in result["cpu_s_per_gbit"].items():
            print(f"  {variant:12} {busy:10.2f} s of processor time per gigabit")


if __name__ == "__main__":
    main()
