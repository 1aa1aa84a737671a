#!/usr/bin/env python3
"""ecf.py: earliest completion first. A farther path carries data only where that makes it complete earlier.

What a program gives at a time is complete when its last byte is there: on a path by itself, after

    RTT x (1 + bytes / congestion window)

(Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017, which decides for each packet; here
it is decided ten times a second, by the most that the program gave at a time in the last second). The kernel's scheduler
gives a subflow 64 kB at a time to keep, however slow it is. Where the nearest path alone would be done before a farther
one with these, the farther becomes a backup. With more to send, nothing is changed.

Runs, as root, where data is sent, until it is ended.
"""

from collections import deque

from plait import policy
from plait.policy import Backup

KEPT = 65536


class Ecf:
    interval = 0.1

    def __init__(self):
        self.bursts = {}

    def tick(self, view):
        before, self.bursts = self.bursts, {}
        for connection in view.connections:
            acked = sum(subflow.bytes_acked for subflow in connection.subflows)
            begun, recent = before.get(connection.token, (acked, deque(maxlen=10)))
            recent.append(acked - begun + connection.bytes_unacked)
            # What is given at a time ends when all of it has arrived.
            self.bursts[connection.token] = begun if connection.bytes_unacked else acked, recent
            usable = [subflow for subflow in connection.subflows if subflow.state == "established"]
            if not usable:
                continue
            near = min(usable, key=lambda subflow: subflow.rtt_us)
            most = max(recent)
            for far in usable:
                if far is not near and time_us(near, most) < time_us(far, min(most, KEPT)):
                    yield Backup(far)


def time_us(subflow, size):
    return subflow.rtt_us * (1 + size / (subflow.cwnd * subflow.mss))


if __name__ == "__main__":
    policy.run(Ecf(), "ecf")
