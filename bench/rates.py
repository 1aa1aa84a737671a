#!/usr/bin/env python3
"""Connections per second through two gateways in each mode, beside kernel MPTCP and TCP without plait, and stunnel.

ab requests a document of 1 kB from nginx, with a connection for each request, one at a time and 100 at once. The variants run
in turn, round by round, in namespaces with two links; ratios are taken within a round and compared with their bounds. Where the
processors are busy, their time for each request is what bounds a rate: it is that of the whole machine, the client's, the
server's and the kernel's included. Needs root, a built plait and ab (Debian's apache2-utils).

tcp          ab to nginx, over one link
direct       the same by kernel MPTCP
off, ...     plait run to plait serve beside nginx; sealed with a witness by the second link
relays       haproxy in place of the gateways, by kernel MPTCP: what two relays cost that do nothing else, if installed
stunnel      stunnel on client and server, TLS 1.3 with AES-128-GCM and a full handshake, over TCP, if installed
"""

import json
import os
import pathlib
import re
import shutil
import statistics
import sys

import download
import pairs
import prologue
import rounds
from hosts import wait_for
from streams import NAMED
from throughput import NGINX, STUNNEL, TUNNEL_IN, start_tunnel

MODES = {"off": (), "stream": ("--require",), "sealed": ("--require",)}
PORTS = {"off": 8443, "stream": 8445, "sealed": 8446}
TUNNEL = 8451
RELAY, RELAY_IN = 8460, 8461

# Requests at once, and in all.
LOADS = {1: 1000, 100: 5000}

# Lower bounds of some ratios with 100 requests at once.
WANTED = {"off/direct": 0.8, "sealed/direct": 0.4}

TICKS = os.sysconf("SC_CLK_TCK")

RATE = re.compile(rb"^Requests per second: +([\d.]+)", re.MULTILINE)
FAILED = re.compile(rb"^Failed requests: +(\d+)", re.MULTILINE)


# The machine's times as ab begins, and what ab prints.
MEASURED = "cat /proc/stat; exec ab -q -c {at_once} -n {count} http://{host}:{port}/document"


def ab(host, port, at_once):
    return ["sh", "-c", MEASURED.format(at_once=at_once, count=LOADS[at_once], host=host, port=port)]


def times(stat):
    """Seconds of all processors together, busy and idle, from /proc/stat."""
    ticks = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / TICKS, idle / TICKS


def request(pair, variant, at_once) -> dict:
    """Requests per second, milliseconds of the processors for each, and the share in which they were idle. None may fail."""
    match variant:
        case "tcp":
            done = pair.client.run(*ab(pair.ETH, download.NGINX, at_once), timeout=300)
        case "direct":
            done = pair.client.run("mptcpize", "run", *ab(pair.ETH, download.NGINX, at_once), timeout=300)
        case "relays" | "stunnel":
            port = RELAY if variant == "relays" else TUNNEL
            done = pair.client.run(*ab("127.0.0.1", port, at_once), timeout=300)
        case mode:
            options = ("--mode", mode, *MODES[mode], *NAMED)
            done = pair.run(*ab(pair.ETH, PORTS[mode], at_once), options=options, timeout=300)
    after = times(pathlib.Path("/proc/stat").read_bytes())
    rate, failed = RATE.search(done.stdout), FAILED.search(done.stdout)
    if done.returncode or not rate or not failed or int(failed[1]):
        sys.exit(f"{variant}: {done.stdout.decode()}{done.stderr.decode()}")
    busy, idle = (now - before for now, before in zip(after, times(done.stdout), strict=True))
    return {
        "per_second": float(rate[1]),
        "busy_ms": 1e3 * busy / LOADS[at_once],
        "idle": idle / (busy + idle),
    }


def start_stunnel(pair):
    key, certificate = pairs.certificate(pair, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    # Without tickets, each connection takes a full handshake, as with plait.
    common = (
        "foreground = yes\npid =\nsslVersionMin = TLSv1.3\nciphersuites = TLS_AES_128_GCM_SHA256\n"
        "options = NO_TICKET\n"
    )
    server = (f"0.0.0.0:{TUNNEL_IN}", f"127.0.0.1:{NGINX}")
    start_tunnel(pair.server, TUNNEL_IN, f"cert = {certificate}\nkey = {key}", *server, common, mptcp=False)
    client = (f"127.0.0.1:{TUNNEL}", f"{pair.ETH}:{TUNNEL_IN}")
    start_tunnel(pair.client, TUNNEL, "client = yes", *client, common, mptcp=False)


def start_relays(pair):
    start_relay(pair.server, f"0.0.0.0:{RELAY_IN}", f"127.0.0.1:{NGINX}")
    start_relay(pair.client, f"127.0.0.1:{RELAY}", f"{pair.ETH}:{RELAY_IN}")


def start_relay(host, listen, to):
    port = int(listen.rsplit(":", 1)[1])
    file = host.directory / f"haproxy-{port}.cfg"
    file.write_text(
        "global\n maxconn 4096\n"
        "defaults\n mode tcp\n timeout connect 10s\n timeout client 60s\n timeout server 60s\n"
        f"listen relay\n bind {listen}\n server next {to}\n"
    )
    host.start("mptcpize", "run", "haproxy", "-db", "-f", file, log=f"haproxy-{port}.log")
    wait_for("haproxy", lambda: host.listens(port))


def measure(count, progress):
    with download.served(1024) as pair:
        download.start_nginx(pair, NGINX)
        for mode, port in PORTS.items():
            options = ("--mode", mode, *MODES[mode])
            pair.serve(*options, to=f"127.0.0.1:{NGINX}", listen=f"[::]:{port}")
        variants = ["tcp", "direct", *MODES]
        if shutil.which("haproxy"):
            start_relays(pair)
            variants.append("relays")
        if shutil.which(STUNNEL):
            start_stunnel(pair)
            variants.append("stunnel")
        return {
            at_once: rounds.in_turn(
                variants,
                count,
                lambda variant, at_once=at_once: request(pair, variant, at_once),
                lambda text, at_once=at_once: progress(f"{at_once} at once, {text}"),
            )
            for at_once in LOADS
        }


def summary(found):
    rates = {variant: [one["per_second"] for one in each] for variant, each in found.items()}
    ratios = [(mode, "direct") for mode in MODES]
    ratios += [("off", "relays"), ("relays", "direct")] * ("relays" in rates)
    ratios += [("sealed", "stunnel")] * ("stunnel" in rates)
    result = rounds.summary(rates, ratios, "per_second")
    for figure in ("busy_ms", "idle"):
        result[figure] = {
            variant: statistics.median(one[figure] for one in each) for variant, each in found.items()
        }
    return result


def text(result, bounds):
    remarks = {
        ratio: f"at least {least}: {'met' if result['ratio'][ratio] >= least else 'MISSED'}"
        for ratio, least in bounds.items()
    }
    lines = [
        rounds.text(result, remarks, "per second", "per_second"),
        "  processors' time for a request, and idle:",
    ]
    for variant, busy in result["busy_ms"].items():
        lines.append(f"  {variant:12} {busy:10.2f} ms  {result['idle'][variant]:6.1%}")
    return "\n".join(lines)


def main():
    parser = prologue.parser(__doc__, rounds=5)
    arguments = prologue.parse(parser)
    if not shutil.which("ab"):
        sys.exit("ab is not installed: install Debian's apache2-utils")
    progress = prologue.progress()
    results = {at_once: summary(rates) for at_once, rates in measure(arguments.rounds, progress).items()}
    progress("")
    kernel = os.uname().release
    if arguments.json:
        about = {"kernel": kernel, "rounds": arguments.rounds, "wanted": WANTED}
        print(json.dumps(about | {"at_once": results}, indent=2))
        return
    for at_once, result in results.items():
        print(f"\n{at_once} at once, {arguments.rounds} rounds, kernel {kernel}")
        print(text(result, WANTED if at_once == max(LOADS) else {}))


if __name__ == "__main__":
    main()
