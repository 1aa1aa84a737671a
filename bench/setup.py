#!/usr/bin/env python3
"""Setup time and bytes of connections in each mode, through `plait run` and `plait proxy`, beside TCP, MPTCP and TLS 1.3.

A client connects, sends a one-byte request, and receives an immediate answer; TCP takes two round trips for that. The results are
medians of two times, from the call of connect(): until the service has the request, half a round trip after it left the client;
and until the client has the first byte of the answer. Two hosts have two emulated links. `eth` is the trusted one, and times are
given in its round trips; `sealed` has a witness by `wlan`.

TLS 1.3 is over TCP, with a full handshake and a self-signed certificate of P-256: `TLS 1.3` with X25519 by Python's OpenSSL, `TLS
hybrid` with X25519MLKEM768 by pyOpenSSL's. Resumption, with or without 0-RTT, is not measured. `TCP by wlan` connects to the
server's address on that link. `sealed classic` is `sealed` without ML-KEM-768 (`--hybrid false`), `sealed earlier` that of the
earlier version of plait that --earlier names.

Bytes are those of all packets of a connection on both links and in both directions, from the first SYN to the last FIN, with
the headers from Ethernet's on.

Bound: until the service has the request, `sealed` takes at most one round trip of the slowest path more than TCP by that path, and
a tenth for the machine. Needs root and a built plait.
"""

import contextlib
import functools
import itertools
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
from OpenSSL import SSL
from request import ANSWER
from streams import NAMED, listen

# Round-trip times by eth and by wlan, in milliseconds; wlan has the longer one.
LINKS = ((40, 40), (40, 80))
MODES = {
    "off": ("off",),
    "xor64": ("xor64", "--require"),
    "stream": ("stream", "--require"),
    "sealed classic": ("sealed", "--require=all-paths"),
    "sealed": ("sealed", "--require=all-paths"),
}
CLASSIC = ("--hybrid", "false")
SLOWEST = "TCP by wlan"
MAX_EXTRA_RTT, MACHINE = 1, 0.1

TCP, MPTCP, TLS, TLS_HYBRID, GATEWAYS, PROXIES = 9000, 9001, 9002, 9003, 8443, 1080
REQUEST = pathlib.Path(__file__).resolve().parent / "request.py"


def serve(listener, tls=None):
    """Answers each request with the time of its arrival."""
    while True:
        connection, _ = listener.accept()
        connection.settimeout(20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with contextlib.closing(accepted(connection, tls)) as asker:
                if asker.recv(1):
                    asker.sendall(ANSWER.pack(time.monotonic_ns()))
        except (OSError, SSL.Error) as error:
            print(f"the service: {error}", file=sys.stderr)


def accepted(connection, tls):
    """The server's end of a connection, by TLS if there is a context."""
    if isinstance(tls, SSL.Context):
        connection.settimeout(None)
        connection = SSL.Connection(tls, connection)
        connection.set_accept_state()
    elif tls:
        connection = tls.wrap_socket(connection, server_side=True)
    return connection


def start_services(pair):
    """Serves by TCP, MPTCP and TLS; returns the file with the certificate."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    key, certificate = pairs.certificate(pair, *curve, "-addext", f"subjectAltName=IP:{pair.ETH}")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.load_cert_chain(certificate, key)
    hybrid = SSL.Context(SSL.TLS_SERVER_METHOD)
    hybrid.use_certificate_file(certificate)
    hybrid.use_privatekey_file(key)
    for port, protocol, context in (
        (TCP, socket.IPPROTO_TCP, None),
        (MPTCP, socket.IPPROTO_MPTCP, None),
        (TLS, socket.IPPROTO_TCP, tls),
        (TLS_HYBRID, socket.IPPROTO_TCP, hybrid),
    ):
        listener = listen(pair.server, port, "0.0.0.0", protocol)
        threading.Thread(target=serve, args=(listener, context), daemon=True).start()
    return certificate


def start_ways(pair, count, earlier):
    """Starts the services; returns the requesting commands by name."""
    certificate = start_services(pair)
    ask = (sys.executable, REQUEST, "--count", count)
    ways = {
        "TCP": (*ask, pair.ETH, TCP),
        SLOWEST: (*ask, pair.WLAN, TCP),
        "MPTCP": (*ask, "--mptcp", pair.ETH, MPTCP),
        "TLS 1.3": (*ask, "--tls", certificate, pair.ETH, TLS),
        "TLS hybrid": (*ask, "--tls", certificate, "--hybrid", pair.ETH, TLS_HYBRID),
    }
    modes = MODES | ({"sealed earlier": MODES["sealed"]} if earlier else {})
    for number, (name, options) in enumerate(modes.items()):
        gateway, proxy = GATEWAYS + number, PROXIES + number
        plait = earlier if name.endswith("earlier") else PLAIT
        options = ("--mode", *options)
        pair.serve(*options, to=f"127.0.0.1:{TCP}", listen=f"[::]:{gateway}", plait=plait)
        client = (*options, *(CLASSIC if name.endswith("classic") else ()), *NAMED)
        pair.proxy(*client, listen=f"127.0.0.1:{proxy}", plait=plait)
        ways[f"{name}, run"] = (plait, "run", *client, "--", *ask, pair.ETH, gateway)
        ways[f"{name}, proxy"] = (*ask, "--socks", proxy, pair.ETH, gateway)
    return ways


def costs(pair, command):
    """Milliseconds until the service has the request, and until the client has the answer; bytes on the links."""
    before = link_bytes(pair)
    done = pair.client.run(*command)
    if done.returncode:
        sys.exit(done.stderr.decode())
    found = json.loads(done.stdout)
    # What closes the last connection.
    time.sleep(0.3)
    # The command opens one more, first.
    size = (link_bytes(pair) - before) / (len(found) + 1)
    return [*(statistics.median(column) for column in zip(*found)), size]


def link_bytes(pair):
    links = json.loads(pair.client.ip("-s -j link"))
    directions = (link["stats64"][way] for link in links if link["ifname"] != "lo" for way in ("rx", "tx"))
    return sum(direction["bytes"] for direction in directions)


def measure(rtts, count, connections, earlier, progress):
    options = {link: ("--delay", f"{rtt / 2}ms") for link, rtt in zip(("eth", "wlan"), rtts)}
    with pairs.built(functools.partial(pairs.Emulated, options=options)) as pair:
        ways = start_ways(pair, connections, earlier)
        found = rounds.in_turn(ways, count, lambda way: costs(pair, ways[way]), progress)
    rtt, slowest = rtts
    rows = {way: row(values, rtt) for way, values in found.items()}
    for mode, entry in itertools.product(("sealed", "sealed classic"), ("run", "proxy")):
        sealed, off = (rows[f"{each}, {entry}"] for each in (mode, "off"))
        more = [(sealed["asked_ms"] - other["asked_ms"]) / slowest for other in (rows[SLOWEST], off)]
        sealed |= {
            "slowest_rtts_after": dict(zip((SLOWEST, "off"), more)),
            "met": more[0] <= MAX_EXTRA_RTT + MACHINE,
        }
    return {"rtt_ms": {"eth": rtt, "wlan": slowest}, "ways": rows, "emulator": pair.emulator}


def row(values, rtt):
    """The result of a variant's rounds."""
    asked, answered, sizes = zip(*values)
    asked_ms, answered_ms = statistics.median(asked), statistics.median(answered)
    return {
        "asked_ms": asked_ms,
        "asked_rtts": asked_ms / rtt,
        "answered_ms": answered_ms,
        "answered_rtts": answered_ms / rtt,
        "answered_range_ms": [min(answered), max(answered)],
        "bytes": round(statistics.median(sizes)),
    }


def text(result):
    lines = [f"{'':21}{'service has the request':>28}{'client has the answer':>28}{'on the links':>15}"]
    for way, found in result["ways"].items():
        cells = [
            f"{found[f'{what}_ms']:12.1f} ms {found[f'{what}_rtts']:8.2f} RTT"
            for what in ("asked", "answered")
        ]
        least, most = found["answered_range_ms"]
        cells.append(f"{found['bytes']:8,} B")
        lines.append(f"  {way:21}{'    '.join(cells)}  ({least:.1f} to {most:.1f} ms)")
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
    parser.add_argument(
        "--earlier", metavar="PLAIT", help="the command of an earlier version, to measure as well"
    )
    arguments = prologue.parse(parser)
    progress = prologue.progress()
    results = []
    for eth, wlan in LINKS:
        say = lambda text, name=f"{eth} and {wlan} ms": progress(f"{name}: {text}")  # noqa: E731
        results.append(measure((eth, wlan), arguments.rounds, arguments.connections, arguments.earlier, say))
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
