"""A flood of forged SYNs, which makes a server answer with SYN cookies."""

import contextlib
import random
import threading
import time

from forged import SYN, packet, raw_socket
from hosts import wait_for
from transfers import counters

# Far more than a queue holds, and few enough to end by itself.
MAX_FORGED = 2_000_000
BATCH = 50


def cookies(pair) -> tuple[int, int]:
    """Cookies that the server has sent, and those that came back in the packet that ends a handshake."""
    found = counters(pair.server)
    return found["TcpExtSyncookiesSent"], found["TcpExtSyncookiesRecv"]


def shorten_queues(server):
    """Makes the queues short of sockets that will listen, and SYN cookies the answer to what does not fit."""
    # A queue is as long as the backlog.
    server.tool("sysctl", "-qw", "net.ipv4.tcp_syncookies=1", "net.core.somaxconn=64")


@contextlib.contextmanager
def syn_flood(pair, port: int = 8443, pause: float = 0.002):
    """Within this context, SYNs from senders that do not exist keep the server's queue full: a batch after each pause."""
    # SYN-ACKs have a route, and nobody answers them.
    pair.server.ip("route add 198.18.0.0/15 via 10.77.1.1 dev eth")
    pair.client.tool("sysctl", "-qw", "net.ipv4.conf.all.forwarding=0")
    dice, stop = random.Random(1), threading.Event()

    def send():
        with raw_socket(pair.client) as raw:
            for _ in range(MAX_FORGED // BATCH):
                for _ in range(BATCH):
                    sender = f"198.{dice.choice((18, 19))}.{dice.randrange(256)}.{dice.randrange(1, 255)}"
                    source = (sender, dice.randrange(1024, 65536))
                    raw.sendto(packet(source, (pair.ETH, port), SYN, dice.getrandbits(32), 0), (pair.ETH, 0))
                if stop.is_set():
                    return
                time.sleep(pause)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        before = cookies(pair)[0]
        wait_for("a flooded queue", lambda: cookies(pair)[0] > before + 100)
        yield
        assert thread.is_alive(), "the flood ended before the connections"
    finally:
        stop.set()
        thread.join()
