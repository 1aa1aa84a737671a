#!/usr/bin/env python3
"""small-flows.py [SIZE]: small flows stay on the path that they began on; larger ones get further paths.

A second path helps a flow of some 100 kB little, and harms it where it is slower: the last bytes wait there. So no subflow
that joins a connection comes to life before that has carried SIZE bytes (256000). A join is not refused but held back at
its last step: the third packet of its handshake (RFC 8684, section 3.2), which TCP sends again after two round trips,
passes when the connection is large. Until then nothing else crosses the other path.

Runs, as root, on either end until it is ended; best on the one that makes subflows, which is the client.
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
