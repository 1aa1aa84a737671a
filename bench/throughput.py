#!/usr/bin/env python3
"""Throughput of curl from nginx through two gateways in each mode, beside kernel MPTCP without plait, and stunnel.

The variants run in turn, round by round, in namespaces with two links; ratios are taken within a round and compared with their
bounds. Needs root and a built plait.

links        TCP payload that fits into the links' rates, if they have a rate
direct       kernel MPTCP, curl to nginx
off, ...     plait run to plait serve beside nginx; sealed with a witness by the second link
stunnel      stunnel on client and server, TLS 1.3 with AES-128-GCM, over kernel MPTCP, if installed
stunnel-tcp  the same over TCP, thus over one link
earlier      sealed by the earlier version of plait that --earlier names
"""

import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable

import download
import pairs
import prologue
import rounds
from hosts import Pair, wait_for
from pairs import Emulated
from streams import NAMED

PORTS = {"off": 8443, "xor64": 8444, "stream": 8445, "sealed": 8446}
REQUIRE = {"off": (), "xor64": ("--require",), "stream": ("--require",), "sealed": ("--require=all-paths",)}

EARLIER = "earlier"
EARLIER_PORT = 8447

STUNNEL = "stunnel4"
TUNNEL_IN = 8450
TUNNELS = {"stunnel": 8451, "stunnel-tcp": 8452}

# nginx runs beside the gateways and tunnels, which reach it by TCP.
NGINX = 8081

# The headers of a full frame of a subflow: Ethernet, IPv4, TCP with timestamps, and MPTCP's mapping and
# acknowledgment (a DSS of 26 bytes, padded; RFC 8684 section 3.3).
FRAME, HEADERS = 1514, 14 + 20 + 20 + 12 + 28


@dataclasses.dataclass
class Links:
    """Two links, and the variants to measure over them."""

    make: Callable
    megabytes: int
    # The rate of each link in Mbit/s of whole frames, if limited.
    rate: int | None = None
    # Lower bounds of some ratios.
    wanted: dict = dataclasses.field(default_factory=dict)


FILLED = 0.95
EMULATED = ("--rate", "1gbit", "--delay", "5ms")
LINKS = {
    "unlimited-veth": Links(
        Pair,
        1024,
        wanted={"sealed/off": 0.6, "stream/off": 0.8, "sealed/stunnel": 1, "sealed/stunnel-tcp": 1},
    ),
    "2x100mbit": Links(functools.partial(Pair, rate="100mbit"), 100, 100),
    "2x1gbit-emulated": Links(
        functools.partial(Emulated, options={"eth": EMULATED, "wlan": EMULATED}),
        2048,
        1000,
        {f"{mode}/links": FILLED for mode in PORTS},
    ),
}


def fetch(pair, way, earlier=None) -> float:
    """Megabits per second of one transfer."""
    if way == EARLIER:
        command = (earlier, "run", "--mode", "sealed", *REQUIRE["sealed"], *NAMED, "--")
        done = pair.client.run(*command, *download.curl(pair, EARLIER_PORT), timeout=300)
        return download.mbps(done)
    if way == "direct":
        return download.direct(pair)
    if way in TUNNELS:
        return download.mbps(pair.client.run(*download.curl(pair, TUNNELS[way], "127.0.0.1"), timeout=300))
    options = ("--mode", way, *REQUIRE[way], *NAMED)
    return download.mbps(pair.run(*download.curl(pair, PORTS[way]), options=options, timeout=300))


def start_stunnel(pair):
    """Starts a tunnel on the server, and two on the client."""
    key, certificate = pairs.certificate(pair, "-newkey", "rsa:2048")
    common = "foreground = yes\npid =\nsslVersionMin = TLSv1.3\nciphersuites = TLS_AES_128_GCM_SHA256\n"
    start = functools.partial(start_tunnel, common=common)
    # Joins to the server's other address need a listener on all addresses.
    ends = (f"0.0.0.0:{TUNNEL_IN}", f"127.0.0.1:{NGINX}")
    start(pair.server, TUNNEL_IN, f"cert = {certificate}\nkey = {key}", *ends)
    for name, port in TUNNELS.items():
        to = f"{pair.ETH}:{TUNNEL_IN}"
        start(pair.client, port, "client = yes", f"127.0.0.1:{port}", to, mptcp=name == "stunnel")


def start_tunnel(host, port, settings, accept, connect, common, mptcp=True):
    file = host.directory / f"stunnel-{port}.conf"
    # Without a syslog daemon, the C library would write each connection's messages to the console, which is slow.
    file.write_text(f"syslog = no\n{common}[tunnel]\n{settings}\naccept = {accept}\nconnect = {connect}\n")
    launcher = ("mptcpize", "run") if mptcp else ()
    program = host.start(*launcher, STUNNEL, file, log=f"stunnel-{port}.log")
    wait_for("stunnel", lambda: program.poll() is not None or host.listens(port))
    assert program.poll() is None, (host.directory / f"stunnel-{port}.log").read_text()


def measure(links, count, earlier, progress):
    with download.served(links.megabytes * download.MIB, links.make) as pair:
        download.start_nginx(pair, NGINX)
        for mode, port in PORTS.items():
            pair.serve("--mode", mode, *REQUIRE[mode], to=f"127.0.0.1:{NGINX}", listen=f"[::]:{port}")
        ways = [*PORTS, "direct"]
        if shutil.which(STUNNEL):
            start_stunnel(pair)
            ways += TUNNELS
        if earlier:
            options = ("--mode", "sealed", *REQUIRE["sealed"])
            pair.serve(*options, to=f"127.0.0.1:{NGINX}", listen=f"[::]:{EARLIER_PORT}", plait=earlier)
            ways.append(EARLIER)
        rates = rounds.in_turn(ways, count, lambda way: fetch(pair, way, earlier), progress)
    ratios = [(mode, "off") for mode in PORTS if mode != "off"] + [("xor64", "direct"), ("off", "direct")]
    ratios += [("sealed", other) for other in (*TUNNELS, EARLIER) if other in ways]
    if links.rate:
        rates = {"links": [2 * links.rate * (1 - HEADERS / FRAME)] * count} | rates
        ratios += [(way, "links") for way in [*PORTS, "direct"]]
    result = rounds.summary(rates, ratios)
    result["wanted"] = {
        ratio: {"at_least": least, "met": result["ratio"][ratio] >= least}
        for ratio, least in links.wanted.items()
        if ratio in result["ratio"]
    }
    if isinstance(pair, Emulated):
        result["emulator"] = pair.emulator
    return result


def text(result):
    remarks = {
        ratio: f"at least {wanted['at_least']}: {'met' if wanted['met'] else 'MISSED'}"
        for ratio, wanted in result["wanted"].items()
    }
    lines = [rounds.text(result, remarks)]
    if "emulator" in result:
        lines.append(pairs.text(result["emulator"]))
    return "\n".join(lines)


def main():
    parser = prologue.parser(__doc__, rounds=5)
    parser.add_argument("--links", choices=LINKS, action="append", help="links to measure; repeatable")
    parser.add_argument(
        "--earlier", metavar="PLAIT", help="the command of an earlier version, to measure as well"
    )
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    results = {}
    for name in arguments.links or LINKS:
        say = lambda text, name=name: progress(f"{name}: {text}")  # noqa: E731
        results[name] = measure(LINKS[name], arguments.rounds, arguments.earlier, say)
    progress("")
    kernel = os.uname().release
    if arguments.json:
        print(json.dumps({"kernel": kernel, "rounds": arguments.rounds, "links": results}, indent=2))
        return
    for name, result in results.items():
        print(f"\n{name}, {arguments.rounds} rounds, kernel {kernel}")
        print(text(result))
    print(f"\nload of this machine's {os.cpu_count()} processors in the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
