"""Programs that try to reach others by all means, and how often they tried."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from hosts import Host

# Connects, queries and pings all the time; prints how often when it is stopped.
PROGRAM = """
import signal, socket, sys, time
attempts = 0
def stop(*_):
    print(attempts)
    sys.exit()
signal.signal(signal.SIGTERM, stop)
print("started")
query = b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\3www\\3far\\7example\\0\\0\\1\\0\\1"
def attempt(family, kind, protocol, address, data=None):
    global attempts
    try:
        with socket.socket(family, kind, protocol) as client:
            client.setblocking(False)
            if data is None:
                client.connect_ex(address)
            else:
                client.sendto(data, address)
    except OSError:
        pass
    attempts += 1
v4, v6 = socket.AF_INET, socket.AF_INET6
far, far6, resolvers = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
tcp_port, port, pause = int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
while True:
    attempt(v4, socket.SOCK_STREAM, 0, (far, tcp_port))
    attempt(v6, socket.SOCK_STREAM, 0, (far6, tcp_port))
    attempt(v4, socket.SOCK_STREAM, 262, (far, port))
    attempt(v4, socket.SOCK_DGRAM, 0, (far, port), b"datagram")
    attempt(v6, socket.SOCK_DGRAM, 0, (far6, port), b"datagram")
    attempt(v4, socket.SOCK_RAW, 1, (far, 0), b"\\x08\\0\\xf7\\xff\\0\\0\\0\\0")
    for resolver in resolvers:
        attempt(v4, socket.SOCK_STREAM, 0, (resolver, 53))
        attempt(v4, socket.SOCK_DGRAM, 0, (resolver, 53), query)
    time.sleep(pause)
"""


@contextlib.contextmanager
def attempts(
    programs: list[tuple[Host, int, int]], far: str, far6: str, resolvers: list[str], pause: float
) -> Iterator[list[int]]:
    """Within this context, a program runs on each of these hosts, and tries again and again, after a pause in seconds, to reach two
    ports of a far host, the first by TCP, the second by MPTCP and UDP, and port 53 of resolvers. How often is in the list afterwards."""
    running: list[subprocess.Popen] = []
    for host, tcp_port, port in programs:
        arguments = (far, far6, ",".join(resolvers), tcp_port, port, pause)
        command = (sys.executable, "-u", "-c", PROGRAM, *arguments)
        running.append(host.start(*command, stdout=subprocess.PIPE, text=True))
    for program in running:
        assert program.stdout.readline() == "started\n"
    counts: list[int] = []
    yield counts
    for program in running:
        program.terminate()
        counts.append(int(program.communicate(timeout=60)[0]))
