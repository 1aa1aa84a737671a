"""Multipath TCP for Python: analysis of captures (`analyze`), network labs and experiments (`plait.lab`), packet
policies (`plait.policy`), coupled congestion control (`plait.cc`), schedulers (`plait.sched`), and protected connections (`connect`, `serve`).

>>> import plait
>>> found = plait.analyze("download.pcapng")
>>> found.subflows.to_polars()
>>> found.plot()
>>> found.report("download.html")

`analyze` keeps no state, so any pool or cluster can map it over many captures.
"""

from __future__ import annotations

from plait import cc, lab, policy, sched
from plait._plait import CaptureError, NoTcpError, ProtectionError
from plait.analysis import Analysis, analyze, analyze_async
from plait.connection import Connection, Listener, accept, connect, open_connection, serve, stop
from plait.table import Column, Table

__all__ = [
    "Analysis",
    "CaptureError",
    "Column",
    "Connection",
    "Listener",
    "NoTcpError",
    "ProtectionError",
    "Table",
    "accept",
    "analyze",
    "analyze_async",
    "cc",
    "connect",
    "lab",
    "open_connection",
    "policy",
    "sched",
    "serve",
    "stop",
]
