"""Draws `Analysis.plot` with matplotlib, in the look of the report."""

from __future__ import annotations

import datetime
import io
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plait import document
from plait.table import Table

if TYPE_CHECKING:
    from plait.analysis import Analysis

_INK, _SOFT, _RULE = "#1d2330", "#6b7280", "#e3e6eb"
# Okabe and Ito's colours, with a dash pattern for each.
_STYLES: list[tuple[str, Any]] = [
    ("#0072b2", "solid"),
    ("#d55e00", (0, (7, 3))),
    ("#009e73", (0, (3, 3))),
    ("#cc79a7", (0, (11, 3))),
    ("#e69f00", (0, (5, 2))),
    ("#56b4e9", (0, (1, 2))),
]
_DIRECTIONS: tuple[document.Direction, ...] = ("client_to_server", "server_to_client")
# A longer time without samples interrupts the line of round-trip times.
_GAP_INTERVALS = 8


class _NotebookFigure(Figure):
    """A figure that notebooks show. It does not belong to pyplot, which would keep it, and open a window."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=100)
        return image.getvalue()


def draw(analysis: Analysis, connection: int | None, wanted: document.Direction | None) -> Figure:
    """Draw a connection. Raises `LookupError` if there is no such one."""
    chosen = _choose(analysis, connection)
    direction = wanted or max(_DIRECTIONS, key=lambda way: chosen[f"bytes_{way}"])
    if direction not in _DIRECTIONS:
        raise ValueError(f"expected one of the directions {', '.join(_DIRECTIONS)}, got {direction!r}")
    number, start = chosen["connection"], chosen["start"]
    figure = _NotebookFigure(figsize=(9, 5), layout="constrained", facecolor="white")
    throughput, rtt = figure.subplots(2, sharex=True)
    names = {row["subflow"]: _name(row) for row in _of(analysis.subflows, number)}
    for subflow, rows in sorted(_series(analysis.series, number, direction, start).items()):
        if any(row["bytes"] for row in rows):
            colour, dashes = _STYLES[(subflow - 1) % len(_STYLES)]
            style = {"color": colour, "linestyle": dashes, "label": names[subflow]}
            throughput.plot(*_steps(rows), linewidth=1.5, **style)
            _draw_rtt(rtt, rows, style)
    for row in _of(analysis.failovers, number):
        if row["direction"] == direction:
            until = row["silent_until"]
            end = chosen["duration_s"] if until is None else _since(start, until)
            for axes in (throughput, rtt):
                axes.axvspan(_since(start, row["silent_from"]), end, color=_INK, alpha=0.08, linewidth=0)
    _label(throughput, "Throughput", "Mb/s")
    _label(rtt, "Round-trip time (mean and range)", "ms")
    rtt.set_xlabel("seconds since the connection's start", color=_SOFT)
    rtt.set_xlim(0, max(chosen["duration_s"], 1e-6))
    if throughput.lines:
        throughput.legend(frameon=False, fontsize="small", labelcolor=_INK)
    figure.suptitle(f"Connection {number}, {direction.replace('_', ' ')}", color=_INK, x=0.01, ha="left")
    return figure


def _of(table: Table, connection: int) -> Iterator[dict[str, Any]]:
    return (row for row in table.rows() if row["connection"] == connection)


def _series(
    table: Table, connection: int, direction: document.Direction, start: datetime.datetime
) -> dict[int, list[dict[str, Any]]]:
    """Return the intervals of a direction by subflow; `at` is in seconds since the connection's start."""
    series: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in _of(table, connection):
        if row["direction"] == direction:
            series[row["subflow"]].append(row | {"at": _since(start, row["time"])})
    return series


def _choose(analysis: Analysis, connection: int | None) -> dict[str, Any]:
    """Return the row of a connection, by default of the MPTCP connection that carried most."""
    if connection is None:
        return max(analysis.connections.rows(), key=_importance)
    for row in analysis.connections.rows():
        if row["connection"] == connection:
            return row
    raise LookupError(
        f"expected the id of a connection, such as in the column connection of `.connections`, got {connection!r}"
    )


def _importance(connection: dict[str, Any]) -> tuple[bool, int]:
    return connection["version"] is not None, sum(connection[f"bytes_{way}"] for way in _DIRECTIONS)


def _since(start: datetime.datetime, time: datetime.datetime) -> float:
    return (time - start).total_seconds()


def _name(subflow: dict[str, Any]) -> str:
    return f"{subflow['subflow']}: {subflow['src_address']} → {subflow['dst_address']}"


def _steps(rows: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """A step line, zero in missing intervals."""
    times: list[float] = []
    rates: list[float] = []
    for row in rows:
        begin, end = row["at"], row["at"] + row["interval_s"]
        # Half an interval of tolerance, since times are rounded to microseconds.
        if times and begin - times[-1] > row["interval_s"] / 2:
            times += [times[-1], begin]
            rates += [0.0, 0.0]
        times += [begin, end]
        rates += [row["throughput_bps"] / 1e6] * 2
    return [max(time, 0.0) for time in times], rates


def _draw_rtt(axes: Axes, rows: list[dict[str, Any]], style: dict[str, Any]) -> None:
    run: list[dict[str, Any]] = []
    for row in [*(row for row in rows if row["rtt_samples"]), None]:
        if run and (row is None or row["at"] - run[-1]["at"] > _GAP_INTERVALS * row["interval_s"]):
            times = [each["at"] + each["interval_s"] / 2 for each in run]
            mean, low, high = (
                [each[f"rtt_{part}_s"] * 1e3 for each in run] for part in ("mean", "min", "max")
            )
            axes.plot(times, mean, linewidth=1.5, marker="." if len(run) == 1 else None, **style)
            axes.fill_between(times, low, high, color=style["color"], alpha=0.15, linewidth=0)
            run = []
        if row is not None:
            run.append(row)


def _label(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize="medium", color=_INK)
    axes.set_ylabel(unit, color=_SOFT)
    axes.set_ylim(bottom=0)
    axes.grid(color=_RULE, linewidth=0.8)
    axes.tick_params(colors=_SOFT, length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
