"""The analysis of captures: `analyze`, `analyze_async`, and their result."""

from __future__ import annotations

import asyncio
import html
import json
import os
import pathlib
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from plait import _plait, document
from plait.table import Table, _import

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BinaryReader(Protocol):
    """A file object that is open for reading in binary mode, such as `open(path, "rb")`, `io.BytesIO` or a response."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, none at the end."""
        ...


Capture: TypeAlias = str | os.PathLike[str] | BinaryReader
"""A file, a directory with captures, or a file object."""

Progress: TypeAlias = Callable[[int, int | None], object]
"""Called with the bytes read so far and the bytes of all captures, `None` if that is unknown: one of them is a pipe."""


def analyze(
    captures: Capture | Iterable[Capture],
    output: str | os.PathLike[str] | None = None,
    interval: float = 0.1,
    *,
    progress: Progress | None = None,
) -> Analysis:
    """Analyze captures (pcap, pcapng; also compressed by gzip or zstd).

    Several captures belong to one measurement, such as one per interface, and are merged by time. A directory stands
    for the captures in it. Files of external metrics can be given too. A damaged capture is used up to the damage and
    listed in `Analysis.totals["damaged"]`.

    `interval` is the length of the intervals of `Analysis.series`, in seconds. With `output`, a directory, the files of
    `plait analyze -o` are written there as well; they appear once all of them are complete, `analysis.json` last.

    Other threads run meanwhile. `progress` is called about ten times a second; an exception that it raises ends the
    analysis, and so does Ctrl-C.

    Raises `OSError` (such as `FileNotFoundError`) if a file cannot be opened, read or written, `CaptureError` if it is not
    a capture, `NoTcpError`, which is a `CaptureError`, if no capture contains TCP, `ValueError` for an interval outside
    1 µs to 1 h or without captures, and what a file object raises.
    """
    output = None if output is None else os.fspath(output)
    return Analysis(_plait.analyze(_sources(captures), output, interval, progress))


async def analyze_async(
    captures: Capture | Iterable[Capture],
    output: str | os.PathLike[str] | None = None,
    interval: float = 0.1,
    *,
    progress: Progress | None = None,
) -> Analysis:
    """Analyze captures in another thread, like `analyze`. `progress` is called in the event loop.

    When the task is cancelled, the analysis ends with the next piece that it reads.
    """
    loop = asyncio.get_running_loop()
    cancelled = threading.Event()

    def check(done: int, total: int | None) -> None:
        if cancelled.is_set():
            raise asyncio.CancelledError
        if progress is not None:
            loop.call_soon_threadsafe(progress, done, total)

    try:
        return await asyncio.to_thread(analyze, captures, output, interval, progress=check)
    except asyncio.CancelledError:
        cancelled.set()
        raise


class Analysis:
    """The contents of the captures of one measurement, as tables.

    `connection` and `subflow` identify rows across tables. Absolute times are `timestamp[ns, UTC]`, durations `float64` in
    seconds; the names of columns end in their units. docs/reference/tables.md describes each column.
    """

    def __init__(self, native: _plait.Analysis) -> None:
        self._native = native

    @cached_property
    def connections(self) -> Table:
        """One row per MPTCP connection or plain TCP connection, in the order in which they ended."""
        return Table(self._native.connections())

    @cached_property
    def subflows(self) -> Table:
        """One row per subflow, with the statistics of both directions."""
        return Table(self._native.subflows())

    @cached_property
    def series(self) -> Table:
        """One row per interval in which a side sent anything on a subflow: rates, round-trip times, jitter."""
        return Table(self._native.series())

    @cached_property
    def failovers(self) -> Table:
        """One row per path that fell silent while it was needed."""
        return Table(self._native.failovers())

    @cached_property
    def events(self) -> Table:
        """One row per MPTCP signal, of each connection the first 10,000."""
        return Table(self._native.events())

    @cached_property
    def totals(self) -> document.Totals:
        """What was read besides connections: packets, packets skipped, damaged captures, external metrics."""
        totals: document.Totals = json.loads(self._native.totals())
        return totals

    def to_dict(self) -> document.Analysis:
        """Return the document of `plait analyze --json` (docs/reference/json.md), typed in `plait.document`."""
        found: document.Analysis = json.loads(self._native.document())
        return found

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the HTML report of `plait report`, one file that needs no network. Raises `OSError` if it cannot be
        written."""
        pathlib.Path(path).write_text(self._native.report(), encoding="utf-8")

    def plot(self, connection: int | None = None, *, direction: document.Direction | None = None) -> Figure:
        """Draw throughput and round-trip times of a connection's subflows over time, and return the figure.

        By default the MPTCP connection that carried most, in the direction that carried more. Silent paths are shaded.
        Raises `LookupError` if there is no such connection, and `ImportError` without matplotlib (`pip install
        'plait[plot]'`).
        """
        _import("matplotlib", "plot")
        from plait import _plot

        return _plot.draw(self, connection, direction)

    def __repr__(self) -> str:
        return f"<plait.Analysis: {self._summary()}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._summary())}</p>" + self.connections._repr_html_()

    def _summary(self) -> str:
        counts = [
            (len(self.connections), "connection"),
            (len(self.subflows), "subflow"),
            (self.totals["packets"], "packet"),
        ]
        return ", ".join(f"{number:,} {what}{'' if number == 1 else 's'}" for number, what in counts)


def _sources(captures: Capture | Iterable[Capture]) -> list[_plait.Source]:
    # Most file objects are iterables as well.
    if isinstance(captures, Iterable) and not isinstance(captures, str) and not hasattr(captures, "read"):
        return [_source(capture) for capture in captures]
    return [_source(captures)]


def _source(capture: object) -> _plait.Source:
    if isinstance(capture, (str, os.PathLike)):
        return os.fspath(capture)
    if not hasattr(capture, "read"):
        raise TypeError(f"expected a path or a file object, got {capture!r} of type {type(capture).__name__}")
    name = getattr(capture, "name", None)
    return (name if isinstance(name, str) else f"<{type(capture).__name__}>", capture, _size(capture))


def _size(file: Any) -> int | None:
    """Return how much is left to read, `None` if the file object does not know."""
    try:
        position = file.tell()
        end = file.seek(0, os.SEEK_END)
        file.seek(position)
    except (AttributeError, OSError):
        return None
    return max(0, end - position) if isinstance(end, int) else None
