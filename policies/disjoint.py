#!/usr/bin/env python3
"""disjoint.py [SIZE]: connections get further subflows step by step, and only on paths that share no end with one in use.

A connection begins with one subflow. For every SIZE bytes that it has carried (default 256000), one more may join, if none in
use has its local or its remote address. Between two hosts with two addresses each, Multipath TCP creates four subflows, of
which two cross each access link: the second of a link brings no capacity, but competes with the first.

A join is not rejected but delayed: the third packet of its handshake (RFC 8684, section 3.2), which TCP retransmits, is
dropped until the join is allowed. Until then no data crosses that subflow.

Run as root on either end until interrupted, preferably on the one that creates subflows, the client.
"""

import sys

from plait import policy
from plait.policy import Chain, any_of, connection, dst, packet, src


class Disjoint:
    interval = 0.05

    def __init__(self, size):
        self.size = size

    def tick(self, view):
        joins = packet("mp_join") & ~packet("syn")
        for hook, near, far in (("egress", src, dst), ("ingress", dst, src)):
            allowed = any_of(self.allowed(one, near, far) for one in view.connections if self.may_grow(one))
            yield Chain(f"hold-{hook}", hook, joins & ~allowed, ["deny_join"])

    def may_grow(self, found):
        return 1 <= len(in_use(found)) < 1 + found.carried // self.size

    def allowed(self, found, near, far):
        """Select the packets of a connection on paths that share no end with those of its subflows."""
        used = in_use(found)
        taken = [near(address(one.local)) for one in used] + [far(address(one.remote)) for one in used]
        return connection(found.token) & ~any_of(taken)


def in_use(found):
    """Return the subflows that have carried data: one whose join is delayed has not, but its SYN counts as a byte."""
    return [one for one in found.subflows if one.bytes_acked + one.bytes_received > 1]


def address(end):
    return end.rpartition(":")[0].strip("[]")


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 256_000
    policy.run(Disjoint(size), "disjoint")
