#!/usr/bin/env python3
"""tiers.py INTERFACE=LEVEL[,cap=RATE][,quota=BYTES]...: assigns interfaces to tiers, with rates and quotas.

    tiers.py wlan0=primary lte0=secondary,cap=4mbit,quota=500e6 wwan0=never

primary     no restriction
secondary   a backup for connections that have carried less than 1 MB
backup      always a backup
never       no new subflows

`cap` limits the total payload rate of all subflows on the interface, separately for each direction, in mbit or kbit. After
`quota` bytes in both directions since the start, the interface becomes a backup and gets no new subflows. Other interfaces
are not affected.

Run as root until interrupted.
"""

import sys

from plait import policy
from plait.policy import Backup, Chain, Limit, Pace, packet

LARGE = 1_000_000
UNITS = {"kbit": 125, "mbit": 125_000}


class Tiers:
    interval = 0.1

    def __init__(self, tiers):
        self.tiers = tiers

    def tick(self, view):
        for interface, (level, cap, quota) in self.tiers.items():
            path = view.paths.get(interface)
            if path and quota and path.bytes_sent + path.bytes_received >= quota:
                level = "exhausted"
            if level in ("never", "exhausted"):
                joins = packet("mp_join") & packet("syn")
                for hook in ("ingress", "egress"):
                    yield Chain(f"no-joins-{interface}-{hook}", hook, joins, ["deny_join"], [interface])
            on_it = [(c, s) for c in view.connections for s in c.subflows if s.interface == interface]
            for connection, subflow in on_it:
                is_small = level == "secondary" and connection.carried < LARGE
                if is_small or level in ("backup", "exhausted"):
                    yield Backup(subflow)
            if cap:
                busy = [s for _, s in on_it if s.send_rate + s.receive_rate > 0]
                for _, subflow in on_it:
                    share = cap / max(len(busy), 1)
                    yield Pace(subflow, share)
                    yield Limit(subflow, share)


def tier(text):
    interface, _, words = text.partition("=")
    level, *options = words.split(",")
    given = dict(option.split("=") for option in options)
    if level not in ("primary", "secondary", "backup", "never") or given.keys() - {"cap", "quota"}:
        sys.exit(f"expected INTERFACE=LEVEL[,cap=RATE][,quota=BYTES], got {text!r}\n\n{__doc__}")
    cap = given.get("cap", "")
    rate = next(
        (float(cap.removesuffix(unit)) * size for unit, size in UNITS.items() if cap.endswith(unit)), 0
    )
    return interface, (level, rate, float(given.get("quota", 0)))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    policy.run(Tiers(dict(map(tier, sys.argv[1:]))), "tiers")
