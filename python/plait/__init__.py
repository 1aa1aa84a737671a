"""Multipath TCP captures as data: connections, subflows, series, failovers; labs to take captures in (`plait.lab`);
policies for what happens to packets (`plait.policy`); and congestion control of subflows (`plait.cc`).

>>> import plait
>>> found = plait.analyze("download.pcapng", output="download")
>>> for connection in found["connections"]:
...     print(connection["id"], connection["bytes"]["server_to_client"])

`analyze` is a plain function from files to files, fit to be mapped over many captures by any pool or cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from plait import cc, lab, policy
from plait._plait import CaptureError, Refused
from plait._plait import analyze as _analyze
from plait.connection import Connection, Listener, accept, connect, open_connection, serve, stop
from plait.document import Analysis

__all__ = [
    "Analysis",
    "CaptureError",
    "Connection",
    "Listener",
    "Refused",
    "accept",
    "analyze",
    "cc",
    "connect",
    "lab",
    "open_connection",
    "policy",
    "serve",
    "stop",
]


def analyze(
    captures: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    interval: float = 0.1,
) -> Analysis:
    """What captures say about connections and their subflows: the document of `plait analyze --json`.

    Several captures are those of one measurement, as one per interface, and are merged by time; a directory stands for the
    captures in it, and what other tools measured may be given beside them. With `output`, a directory, the files of `plait
    analyze -o` are written there, with series in intervals of `interval` seconds; they appear when all of them are
    whole, `analysis.json` as the last. Other threads run meanwhile, and Ctrl-C ends the analysis.

    A capture that is damaged is used up to the damage, and listed in `damaged`.

    Raises `OSError` (`FileNotFoundError`, ...) for a file that cannot be opened, read or written, `CaptureError` for
    one that is not a capture or has no TCP in it, and `ValueError` for an interval that is not within 1 us and 1 h.
    """
    several = [captures] if isinstance(captures, (str, os.PathLike)) else captures
    paths = [os.fspath(path) for path in several]
    document: Analysis = json.loads(_analyze(paths, None if output is None else os.fspath(output), interval))
    return document
