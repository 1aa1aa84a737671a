"""Multipath TCP for Python: analysis of captures (`analyze`), network labs and experiments (`plait.lab`), packet
policies (`plait.policy`), coupled congestion control (`plait.cc`), and protected connections (`connect`, `serve`).

>>> import plait
>>> found = plait.analyze("download.pcapng", output="download")
>>> for connection in found["connections"]:
...     print(connection["id"], connection["bytes"]["server_to_client"])

`analyze` is a pure function from files to files, so any pool or cluster can map it over many captures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from plait import cc, lab, policy
from plait._plait import CaptureError, ProtectionError
from plait._plait import analyze as _analyze
from plait.connection import Connection, Listener, accept, connect, open_connection, serve, stop
from plait.document import Analysis

__all__ = [
    "Analysis",
    "CaptureError",
    "Connection",
    "Listener",
    "ProtectionError",
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
    """Analyze captures; returns the document of `plait analyze --json`.

    Several captures belong to one measurement, such as one per interface, and are merged by time. A directory stands
    for the captures in it. Files of external metrics can be given too. With `output`, a directory, the files of `plait
    analyze -o` are written there, with series in intervals of `interval` seconds; they appear once all of them are
    complete, `analysis.json` last. Other threads run meanwhile, and Ctrl-C stops the analysis.

    A damaged capture is used up to the damage and listed in `damaged`.

    Raises `OSError` (such as `FileNotFoundError`) if a file cannot be opened, read or written, `CaptureError` if it is
    not a capture or contains no TCP, and `ValueError` for an interval outside 1 µs to 1 h.
    """
    several = [captures] if isinstance(captures, (str, os.PathLike)) else captures
    paths = [os.fspath(path) for path in several]
    document: Analysis = json.loads(_analyze(paths, None if output is None else os.fspath(output), interval))
    return document
