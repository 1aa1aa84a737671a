#!/usr/bin/env python3
"""Setup time of connections in each mode, through `plait run` and `plait proxy`, beside TCP, kernel MPTCP and TLS 1.3.

A client connects, sends a one-byte request, and receives an immediate answer; TCP takes two round trips for that. The results are
medians of two times, from the call of connect(): until the service has the request, half a round trip after it left the client;
and until the client has the first byte of the answer. Two hosts have two emulated links. `eth` is the trusted one, and times are
given in its round trips; `sealed` has a witness by `wlan`.

TLS 1.3 is OpenSSL's by Python, over TCP, with a full handshake. Resumption, with or without 0-RTT, is not measured. `TCP by wlan`
connects to the server's address on that link.

Bound: until the service has the request, `sealed` takes at most one round trip of the slowest path more than TCP by that path, and
a tenth for the machine. Needs root and a built plait.
"""

import functools
import json
import os
import pathlib
import socket
import ssl
import statistics
import sys
import threading
import time

import pairs
import prologue
import rounds
from hosts import PLAIT
from request import ANSWER
from streams import listen

# Round-trip times by eth and by wlan, in milliseconds; wlan has the longer one.
LINKS = ((40, 40), (40, 80))
MODES = {"off": (), "xor64": ("--require",), "stream": ("--require",), "sealed": ("--require=all-paths",)}
NAMED = ("--trusted", "eth", "--untrusted", "wlan")
SLOWEST = "TCP by wlan"
MAX_EXTRA_RTT, MACHINE = 1, 0.1

TCP, MPTCP, TLS, GATEWAYS, PROXIES = 9000, 9001, 9002, 8443, 1080
REQUEST = pathlib.Path(__file__).resolve().parent / "request.py"


def serve(listener, tls=None):
    """Answers each request with the time of its arrival."""
    while True:
        connection, _ = listener.accept()
        connection.settimeout(20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with tls.wrap_socket(connection, server_side=True) if tls else connection as asker:
                if asker.recv(1):
                    asker.sendall(ANSWER.pack(time.monotonic_ns()))
        except OSError as error:
            print(f"the service: {error}", file=sys.stderr)


def start_services(pair):
    """Serves by TCP, MPTCP and TLS; returns the file with the certificate."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    key, certificate = pairs.certificate(pair, *curve, "-addext", f"subjectAltName=IP:{pair.ETH}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.load_cert_chain(certificate, key)
    for port, protocol, context in (
        (TCP, socket.IPPROTO_TCP, None),
        (MPTCP, socket.IPPROTO_MPTCP, None),
        (TLS, socket.IPPROTO_TCP, tls),
    ):
        listener = listen(pair.server, port, "0.0.0.0", protocol)
        threading.Thread(target=serve, args=(listener, context), daemon=True).start()
    return certificate


def start_ways(pair, count):
    """Starts the services; returns the requesting commands by name."""
    certificate = start_services(pair)
    ask = (sys.executable, REQUEST, "--count", count)
    ways = {
        "TCP": (*ask, pair.ETH, TCP),
        SLOWEST: (*ask, pair.WLAN, TCP),
        "MPTCP": (*ask, "--mptcp", pair.ETH, MPTCP),
        "TLS 1.3": (*ask, "--tls", certificate, pair.ETH, TLS),
    }
    for number, (mode, require) in enumerate(MODES.items()):
        gateway, proxy = GATEWAYS + number, PROXIES + number
        options = ("--mode", mode, *require)
        pair.serve(*options, to=f"127.0.0.1:{TCP}", listen=f"[::]:{gateway}")
        pair.proxy(*options, *NAMED, listen=f"127.0.0.1:{proxy}")
        run = (PLAIT, "run", *options, *NAMED, "--")
        ways[f"{mode}, run"] = (*run, *ask, pair.ETH, gateway)
        ways[f"{mode}, proxy"] = (*ask, "--socks", proxy, pair.ETH, gateway)
    return ways


def times(pair, command):
    """Milliseconds until the service has the request, and until the client has the answer."""
    done = pair.client.run(*command)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return [statistics.median(column) for column in zip(*json.loads(done.stdout))]


def measure(rtts, count, connections, progress):
    options = {link: ("--delay", f"{rtt / 2}ms") for link, rtt in zip(("eth", "wlan"), rtts)}
    with pairs.built(functools.partial(pairs.Emulated, options=options)) as pair:
        ways = start_ways(pair, connections)
        found = rounds.in_turn(ways, count, lambda way: times(pair, ways[way]), progress)
    rtt, slowest = rtts
    rows = {way: row(values, rtt) for way, values in found.items()}
    for entry in ("run", "proxy"):
        sealed, off = (rows[f"{mode}, {entry}"] for mode in ("sealed", "off"))
        more = [(sealed["asked_ms"] - other["asked_ms"]) / slowest for other in (rows[SLOWEST], off)]
        sealed |= {
            "slowest_rtts_after": dict(zip((SLOWEST, "off"), more)),
            "met": more[0] <= MAX_EXTRA_RTT + MACHINE,
        }
    return {"rtt_ms": {"eth": rtt, "wlan": slowest}, "ways": rows, "emulator": pair.emulator}


def row(values, rtt):
    """The result of a variant's rounds."""
    asked, answered = zip(*values)
    asked_ms, answered_ms = statistics.median(asked), statistics.median(answered)
    return {
        "asked_ms": asked_ms,
        "asked_rtts": asked_ms / rtt,
        "answered_ms": answered_ms,
        "answered_rtts": answered_ms / rtt,
        "answered_range_ms": [min(answered), max(answered)],
    }


def text(result):
    lines = [f"{'':16}{'service has the request':>28}{'client has the answer':>28}"]
    for way, found in result["ways"].items():
        cells = (
            f"{found[f'{what}_ms']:12.1f} ms {found[f'{what}_rtts']:8.2f} RTT"
            for what in ("asked", "answered")
        )
        least, most = found["answered_range_ms"]
        lines.append(f"  {way:14}{'':4}{'    '.join(cells)}  ({least:.1f} to {most:.1f} ms)")
    for way, found in result["ways"].items():
        if "met" in found:
            after = found["slowest_rtts_after"]
            lines.append(
                f"  {way}: the request {after[SLOWEST]:.2f} round trips of the slowest path after that of {SLOWEST} "
                f"(at most {MAX_EXTRA_RTT}: {'met' if found['met'] else 'MISSED'}), {after['off']:.2f} after that of off"
            )
    return "\n".join([*lines, pairs.text(result["emulator"])])


def main():
    parser = prologue.parser(__doc__, rounds=3)
    parser.add_argument("--connections", type=int, default=5, help="connections per variant and round")
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    results = []
    for eth, wlan in LINKS:
        say = lambda text, name=f"{eth} and {wlan} ms": progress(f"{name}: {text}")  # noqa: E731
        results.append(measure((eth, wlan), arguments.rounds, arguments.connections, say))
    progress("")
    about = {"kernel": os.uname().release, "rounds": arguments.rounds, "connections": arguments.connections}
    if arguments.json:
        print(json.dumps(about | {"at_most": MAX_EXTRA_RTT, "links": results}, indent=2))
        return
    for result in results:
        print(
            "\nround trips of {eth} ms by eth and {wlan} ms by wlan, ".format(**result["rtt_ms"])
            + "{rounds} rounds of {connections} connections, kernel {kernel}".format(**about)
        )
        print(text(result))


if __name__ == "__main__":
    main()
