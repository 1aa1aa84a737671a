#!/usr/bin/env python3
"""small-flows.py [SIZE]: small connections use only their initial path; larger ones use all paths.

A second path hardly helps a connection of some 100 kB, and harms it if it is slower, as the last bytes wait for it. A join
therefore does not complete before its connection has carried SIZE bytes (default 256000). It is not rejected but delayed:
the third packet of its handshake (RFC 8684, section 3.2), which TCP retransmits after two round trips, is dropped until
the connection is large. Until then no data crosses the other path.

Run as root on either end until interrupted, preferably on the one that creates subflows, the client.
"""

import sys

from plait import policy
from plait.policy import Chain, any_of, connection, packet


class SmallFlows:
    interval = 0.05

    def __init__(self, size):
        self.size = size

    def tick(self, view):
        large = any_of(connection(found.token) for found in view.connections if found.carried >= self.size)
        joins = packet("mp_join") & ~packet("syn") & ~large
        return [Chain(f"hold-{hook}", hook, joins, ["deny_join"]) for hook in ("egress", "ingress")]


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 256_000
    policy.run(SmallFlows(size), "small-flows")
