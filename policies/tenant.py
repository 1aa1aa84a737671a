#!/usr/bin/env python3
"""tenant.py PREFIX INTERFACE INTERFACE...: spreads subflows of guests over the physical interfaces of their host.

A guest, a virtual machine or a container with addresses in PREFIX, sees one network. Its Multipath TCP creates subflows to
each address of a peer, but all of them leave this host by the interface that routing prefers. This controller assigns each
new subflow of a guest to the interface with the fewest subflows of that guest, regardless of their traffic: the traffic of
a new subflow is unknown, and moving it later would reorder its packets. Each interface needs a route to the destinations
(with any metric in IPv4; in IPv6 in a separate table, selected by an `oif` rule), and reverse path filtering must be off;
answers return as the peer's network routes them.

    tenant.py 10.9.0.0/16 eth0 eth1

Run as root on the host until interrupted; afterwards routing applies again.
"""

import ipaddress
import sys
from collections import Counter

from plait import policy
from plait.policy import Chain, any_of, packet, src, subflow


class Tenant:
    interval = 0.1

    def __init__(self, prefix, interfaces):
        self.prefix = ipaddress.ip_network(prefix)
        self.interfaces = interfaces
        self.placed = {}

    def tick(self, view):
        before, self.placed = self.placed, {}
        for flow in view.flows:
            pair = flow.local, flow.remote
            if address(flow.local) in self.prefix and not (flow.sent.ended and flow.received.ended):
                self.placed[pair] = before.get(pair)
        for pair in [pair for pair, interface in self.placed.items() if interface is None]:
            used = Counter(by for (local, _), by in self.placed.items() if address(local) == address(pair[0]))
            self.placed[pair] = min(self.interfaces, key=lambda interface: used[interface])
        yield Chain("see", "egress", src(str(self.prefix)) & packet("mptcp"), ["record"], self.interfaces, 10)
        yield Chain("answers", "ingress", packet("mptcp"), ["record"], self.interfaces, 10)
        for interface in self.interfaces:
            assigned = any_of(one(*pair) for pair, by in self.placed.items() if by == interface)
            others = [other for other in self.interfaces if other != interface]
            yield Chain(f"by-{interface}", "egress", assigned, [{"redirect": interface}], others)


def address(end):
    return ipaddress.ip_address(end.rpartition(":")[0].strip("[]"))


def one(local, remote):
    ports = (int(end.rpartition(":")[2]) for end in (local, remote))
    return subflow(str(address(local)), str(address(remote)), *ports)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    policy.run(Tenant(sys.argv[1], sys.argv[2:]), "tenant")
