#!/usr/bin/env python3
"""request.py [options] ADDRESS PORT: sends a short request on a new connection each time, and measures how long the answer takes.

The service (of `bench/setup.py`) answers with the time at which the first byte of the request arrived, by this machine's clock.
Prints a JSON list with a pair per connection: milliseconds from connect() until the service had the request, and until the client
had the first byte of the answer. A first connection warms caches and does not count.
"""

import contextlib
import json
import socket
import ssl
import struct
import time

import prologue
from OpenSSL import SSL
from streams import receive_exactly, socks_handshake

ANSWER = struct.Struct("!q")
# The key exchange of TLS 1.3 that uses X25519 and ML-KEM-768, the first choice of OpenSSL from 3.5 on.
HYBRID = "X25519MLKEM768"


def request(arguments, tls):
    """Milliseconds from connect() until the service had the request, and until this program had the answer."""
    protocol = socket.IPPROTO_MPTCP if arguments.mptcp else socket.IPPROTO_TCP
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    connection.settimeout(20)
    # With Nagle's algorithm, data would wait another round trip for an acknowledgment.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    started = time.monotonic_ns()
    if arguments.socks:
        connection.connect(("127.0.0.1", arguments.socks))
        socks_handshake(connection, arguments.address, arguments.port)
    else:
        connection.connect((arguments.address, arguments.port))
    if isinstance(tls, SSL.Context):
        connection.settimeout(None)
        connection = SSL.Connection(tls, connection)
        connection.set_connect_state()
        connection.do_handshake()
        assert connection.get_group_name() == HYBRID
    elif tls:
        connection = tls.wrap_socket(connection, server_hostname=arguments.address)
    with contextlib.closing(connection):
        connection.sendall(b"?")
        answer = connection.recv(ANSWER.size)
        answered = time.monotonic_ns()
        answer += receive_exactly(connection, ANSWER.size - len(answer))
    (received,) = ANSWER.unpack(answer)
    return (received - started) / 1e6, (answered - started) / 1e6


def main():
    parser = prologue.parser(__doc__, json=False)
    parser.add_argument("address", help="an IPv4 address")
    parser.add_argument("port", type=int)
    parser.add_argument("--count", type=int, default=5, help="measured connections")
    parser.add_argument("--mptcp", action="store_true", help="use MPTCP")
    parser.add_argument(
        "--socks", type=int, metavar="PORT", help="connect through the SOCKS5 proxy at this port of 127.0.0.1"
    )
    parser.add_argument("--tls", metavar="FILE", help="use TLS 1.3; the service's certificate")
    parser.add_argument(
        "--hybrid", action="store_true", help=f"use TLS with {HYBRID}, by pyOpenSSL's OpenSSL"
    )
    arguments = parser.parse_args()
    tls = None
    if arguments.tls and arguments.hybrid:
        tls = SSL.Context(SSL.TLS_CLIENT_METHOD)
        tls.load_verify_locations(arguments.tls)
        tls.set_verify(SSL.VERIFY_PEER)
    elif arguments.tls:
        tls = ssl.create_default_context(cafile=arguments.tls)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
    times = [request(arguments, tls) for _ in range(arguments.count + 1)]
    print(json.dumps(times[1:]))


if __name__ == "__main__":
    main()
