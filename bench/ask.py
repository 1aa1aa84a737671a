#!/usr/bin/env python3
"""ask.py [options] ADDRESS PORT: asks a service for something short, by a new connection each time, and says how long it took.

The service (of `bench/setup.py`) answers with the moment at which the first byte of the question had come, by the clock of
this machine. Printed is a JSON list with a pair for each connection: how many milliseconds after connect() was called the
service had that byte, and the client the first byte of the answer. A connection before them warms caches.
"""

import argparse
import json
import socket
import ssl
import struct
import time

import prologue  # noqa: F401
from streams import ask_socks, receive_exactly

ANSWER = struct.Struct("!q")


def ask(arguments, tls):
    """When the service had the question and this program the answer, in milliseconds since connect()."""
    protocol = socket.IPPROTO_MPTCP if arguments.mptcp else socket.IPPROTO_TCP
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    connection.settimeout(20)
    # What waits for an acknowledgement of what was said before would wait a round trip more.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    begun = time.monotonic_ns()
    if arguments.socks:
        connection.connect(("127.0.0.1", arguments.socks))
        ask_socks(connection, arguments.address, arguments.port)
    else:
        connection.connect((arguments.address, arguments.port))
    if tls:
        connection = tls.wrap_socket(connection, server_hostname=arguments.address)
    with connection:
        connection.sendall(b"?")
        answer = connection.recv(ANSWER.size)
        answered = time.monotonic_ns()
        answer += receive_exactly(connection, ANSWER.size - len(answer))
    (asked,) = ANSWER.unpack(answer)
    return (asked - begun) / 1e6, (answered - begun) / 1e6


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help="an IPv4 address")
    parser.add_argument("port", type=int)
    parser.add_argument("--count", type=int, default=5, help="connections that count")
    parser.add_argument("--mptcp", action="store_true", help="by MPTCP")
    parser.add_argument(
        "--socks", type=int, metavar="PORT", help="by the SOCKS5 proxy at this port of 127.0.0.1"
    )
    parser.add_argument("--tls", metavar="FILE", help="by TLS 1.3; the service's certificate")
    arguments = parser.parse_args()
    tls = None
    if arguments.tls:
        tls = ssl.create_default_context(cafile=arguments.tls)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
    times = [ask(arguments, tls) for _ in range(arguments.count + 1)]
    print(json.dumps(times[1:]))


if __name__ == "__main__":
    main()
