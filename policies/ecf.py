#!/usr/bin/env python3
"""ecf.py: earliest completion first. A slower path carries data only if that makes it complete earlier.

A burst that a program writes completes when its last byte arrives: on a single path, after

    RTT x (1 + bytes / congestion window)

(Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017, which decides per packet; this
controller decides ten times a second, by the largest burst of the last second). The kernel's scheduler queues 64 kB on a
subflow, however slow it is. If the fastest path alone would complete a burst before a slower one completes its 64 kB, the
slower path becomes a backup. With larger bursts, nothing is changed.

Run as root on the sending host until interrupted.
"""

from collections import deque

from plait import policy
from plait.policy import Backup

QUEUED = 65536


class Ecf:
    interval = 0.1

    def __init__(self):
        self.bursts = {}

    def tick(self, view):
        before, self.bursts = self.bursts, {}
        for connection in view.connections:
            acked = sum(subflow.bytes_acked for subflow in connection.subflows)
            start, recent = before.get(connection.token, (acked, deque(maxlen=10)))
            recent.append(acked - start + connection.bytes_unacked)
            # A burst ends when all of its data is acknowledged.
            self.bursts[connection.token] = start if connection.bytes_unacked else acked, recent
            usable = [subflow for subflow in connection.subflows if subflow.state == "established"]
            if not usable:
                continue
            fast = min(usable, key=lambda subflow: subflow.rtt_us)
            burst = max(recent)
            for slow in usable:
                if slow is not fast and time_us(fast, burst) < time_us(slow, min(burst, QUEUED)):
                    yield Backup(slow)


def time_us(subflow, size):
    return subflow.rtt_us * (1 + size / (subflow.cwnd * subflow.mss))


if __name__ == "__main__":
    policy.run(Ecf(), "ecf")
