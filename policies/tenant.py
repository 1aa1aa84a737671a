#!/usr/bin/env python3
"""tenant.py PREFIX INTERFACE INTERFACE...: subflows of guests are spread over the physical interfaces of their host.

A guest, a virtual machine or a container with addresses of PREFIX, sees one network. Its Multipath TCP makes subflows to
each address of a peer, but all of them leave this host by the one interface that routing prefers. Here each new subflow of
a guest gets the interface that carries the fewest of this guest's, whatever they send: what a subflow will send, nobody
knows when it begins, and to move it later would put its packets out of order. Each of these interfaces needs a route to the
destinations (whatever its metric in IPv4; in IPv6 in a table of its own, by a rule `oif`), and no filter for reverse paths;
answers come back as the peer's network routes them.

    tenant.py 10.9.0.0/16 eth0 eth1

Runs, as root, on the host until it is ended; then subflows go where routing says again.
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
            ends = flow.local, flow.remote
            if address(flow.local) in self.prefix and not (flow.sent.ended and flow.received.ended):
                self.placed[ends] = before.get(ends)
        for ends in [ends for ends, interface in self.placed.items() if interface is None]:
            used = Counter(by for (local, _), by in self.placed.items() if address(local) == address(ends[0]))
            self.placed[ends] = min(self.interfaces, key=lambda interface: used[interface])
        yield Chain("see", "egress", src(str(self.prefix)) & packet("mptcp"), ["record"], self.interfaces, 10)
        yield Chain("answers", "ingress", packet("mptcp"), ["record"], self.interfaces, 10)
        for interface in self.interfaces:
            own = any_of(one(*ends) for ends, by in self.placed.items() if by == interface)
            others = [other for other in self.interfaces if other != interface]
            yield Chain(f"by-{interface}", "egress", own, [{"redirect": interface}], others)


def address(end):
    return ipaddress.ip_address(end.rpartition(":")[0].strip("[]"))


def one(local, remote):
    ports = (int(end.rpartition(":")[2]) for end in (local, remote))
    return subflow(str(address(local)), str(address(remote)), *ports)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    policy.run(Tenant(sys.argv[1], sys.argv[2:]), "tenant")
