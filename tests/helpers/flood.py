"""Floods a gateway from one address with connections that never complete a handshake of mode `sealed`, until it is ended.

`idle` sends nothing; `hello` sends a HELLO that lists a witness which never comes; `witness` sends a WITNESS of a session that
has no HELLO. It enters the control group of a gateway, which writes the TCP option. A line on stdout tells each further
hundred connections.
"""

import collections
import contextlib
import itertools
import os
import pathlib
import socket
import sys
import time

from peer import Initiator, encode_witness
from peer_sockets import MPTCP, Handshakes

# Connections that it keeps open: more than a gateway keeps by default.
MAX_OPEN = 2000


def first_message(kind: str, connection: socket.socket, handshakes: Handshakes | None) -> bytes:
    if kind == "idle":
        return b""
    if kind == "witness":
        return encode_witness(os.urandom(32), 1, os.urandom(32))
    negotiated = handshakes.of(connection.getsockname()[1])
    address, port = connection.getpeername()
    return Initiator(
        negotiated, 2, {1: os.urandom(32)}, service=(port, address.encode().ljust(32)), hybrid=False
    ).hello


def main():
    kind, rate, interface, source, address, port, group = sys.argv[1:]
    pathlib.Path(group, "cgroup.procs").write_text("0")
    handshakes = Handshakes(interface) if kind == "hello" else None
    kept = collections.deque(maxlen=MAX_OPEN)
    start = time.monotonic()
    for number in itertools.count(1):
        time.sleep(max(0, start + number / float(rate) - time.monotonic()))
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
        connection.bind((source, 0))
        # The gateway may reset it at any time.
        with contextlib.suppress(OSError):
            connection.connect((address, int(port)))
            connection.sendall(first_message(kind, connection, handshakes))
        kept.append(connection)
        if number % 100 == 0:
            print(number, flush=True)


if __name__ == "__main__":
    main()
