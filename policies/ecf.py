#!/usr/bin/env python3
"""ecf.py: earliest completion first. A farther path carries data only where that makes it complete earlier.

What a program gives at a time is complete when its last byte is there. A path with a longer round-trip time is not worth
using as long as the nearest one alone would be done before: after

    RTT x (1 + bytes / congestion window)

(Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017, which decides for each packet; here
it is decided ten times a second, by the most that the program gave at a time in the last second). Then the farther path
becomes a backup. It does not become slow: the kernel's scheduler gives even a slow subflow the next 64 kB to keep. With
more to send, nothing is changed; nor is there much to gain where paths are alike, as the kernel's scheduler looks at what
waits on each.

Runs, as root, where data is sent, until it is ended.
"""

from collections import deque

from plait import policy
from plait.policy import Backup


class Ecf:
    interval = 0.1

    def __init__(self):
        self.bursts = {}

    def tick(self, view):
        before, self.bursts = self.bursts, {}
        for connection in view.connections:
            burst, recent = before.get(connection.token, (0, deque(maxlen=10)))
            burst += sum(subflow.send_rate for subflow in connection.subflows) * view.elapsed
            recent.append(burst + connection.bytes_unacked)
            # What is given at a time ends when all of it has arrived.
            self.bursts[connection.token] = burst if connection.bytes_unacked else 0, recent
            usable = [subflow for subflow in connection.subflows if subflow.state == "established"]
            if not usable:
                continue
            near = min(usable, key=lambda subflow: subflow.rtt_us)
            alone_us = near.rtt_us * (1 + max(recent) / (near.cwnd * near.mss))
            yield from (Backup(far) for far in usable if alone_us < far.rtt_us)


if __name__ == "__main__":
    policy.run(Ecf(), "ecf")
