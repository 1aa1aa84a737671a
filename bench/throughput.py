#!/usr/bin/env python3
"""Throughput of curl from nginx through two gateways, in each mode; of kernel MPTCP without plait; and of stunnel.

All are run in turn, round by round, in namespaces with two links; ratios are taken within a round. stunnel (TLS 1.3 with
AES-128-GCM, as a client's and a server's tunnel, over kernel MPTCP) is there if it is installed. Needs root and a built
plait.
"""

import json
import os
import shutil

import download
import prologue
import rounds
from hosts import tool, wait_for

PORTS = {"off": 8443, "xor64": 8444, "stream": 8445, "sealed": 8446}
PAIRS = (
    *((mode, "off") for mode in PORTS if mode != "off"),
    ("sealed", "stunnel"),
    ("xor64", "direct"),
    ("off", "direct"),
)
TUNNEL_IN, TUNNEL_OUT = 8450, 8451
STUNNEL = "stunnel4"


def fetch(pair, way) -> float:
    """Megabits per second of one transfer."""
    if way == "direct":
        return download.direct(pair)
    if way == "stunnel":
        return download.mbps(pair.client.run(*download.curl(pair, TUNNEL_OUT, "127.0.0.1"), timeout=300))
    strictness = [] if way == "off" else ["--require"]
    options = ("--mode", way, *strictness, "--trusted", "eth")
    return download.mbps(pair.run(*download.curl(pair, PORTS[way]), options=options, timeout=300))


def start_stunnel(pair):
    """A tunnel beside each end, over kernel MPTCP as `direct` is."""
    key, certificate = pair.folder / "key.pem", pair.folder / "certificate.pem"
    tool("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=server",
         "-keyout", str(key), "-out", str(certificate))  # fmt: skip
    common = "foreground = yes\npid =\nsslVersionMin = TLSv1.3\nciphersuites = TLS_AES_128_GCM_SHA256\n"
    ends = (
        (
            pair.server,
            f"cert = {certificate}\nkey = {key}\n[tunnel]\naccept = {pair.ETH}:{TUNNEL_IN}\n"
            f"connect = {pair.ETH}:{download.NGINX}\n",
            TUNNEL_IN,
        ),
        (
            pair.client,
            f"[tunnel]\nclient = yes\naccept = 127.0.0.1:{TUNNEL_OUT}\nconnect = {pair.ETH}:{TUNNEL_IN}\n",
            TUNNEL_OUT,
        ),
    )
    for number, (host, settings, port) in enumerate(ends):
        file = pair.folder / f"stunnel{number}.conf"
        file.write_text(common + settings)
        host.start("mptcpize", "run", STUNNEL, file, log=f"stunnel{number}.log")
        wait_for("stunnel", lambda host=host, port=port: host.listens(port))


def measure(rate, megabytes, count, progress):
    with download.served(megabytes, rate) as pair:
        nginx = f"{pair.ETH}:{download.NGINX}"
        for mode, port in PORTS.items():
            strictness = [] if mode == "off" else ["--require"]
            pair.serve("--mode", mode, *strictness, to=nginx, listen=f"[::]:{port}")
        ways = [*PORTS, "direct"]
        if shutil.which(STUNNEL):
            start_stunnel(pair)
            ways.append("stunnel")
        say = lambda text: progress(f"{rate or 'unlimited'}: {text}")  # noqa: E731
        rates = rounds.in_turn(ways, count, lambda way: fetch(pair, way), say)
    return rounds.summary(rates, [pair for pair in PAIRS if all(way in ways for way in pair)])


def main():
    arguments = prologue.parser(__doc__, rounds=5).parse_args()
    prologue.require_root()
    prologue.require_plait()
    progress = prologue.progress()
    results = {}
    links = (("2 x 100 Mbit/s", "100mbit", 100), ("unlimited veth", None, 1024))
    for name, rate, megabytes in links:
        results[name] = measure(rate, megabytes, arguments.rounds, progress)
    progress("")
    kernel = os.uname().release
    if arguments.json:
        print(json.dumps({"kernel": kernel, "rounds": arguments.rounds, "links": results}, indent=2))
        return
    for name, result in results.items():
        print(f"\n{name}, {arguments.rounds} rounds, kernel {kernel}")
        print(rounds.text(result))


if __name__ == "__main__":
    main()
