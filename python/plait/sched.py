"""Schedulers of MPTCP connections, like `plait sched`: which subflows carry data. A program can be the controller.

>>> from plait import sched
>>> with sched.enabled("weighted", {"wlan0": 1, "lte0": 1}):
...     while True:
...         for connection in sched.connections():
...             rates = {subflow.interface: subflow.sent_bps for subflow in connection.subflows}
...         sched.load("weighted", {"wlan0": 3, "lte0": 1})

What programs set takes effect in connections that exist, too. Connections and unnamed namespaces are those of the calling
process. Everything here needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plait import _command, _document
from plait._command import Error
from plait._enabled import ControlGroup, KernelAlgorithm, Namespace, target_options

__all__ = [
    "Connection",
    "ControlGroup",
    "Error",
    "Namespace",
    "Scheduler",
    "Steering",
    "Subflow",
    "connections",
    "disable",
    "enabled",
    "load",
    "schedulers",
    "unload",
    "use",
]

Paths = Mapping[str, int | str]
"""By interface, or by the address of either end of a subflow: its weight, tier or rank, from 1 to 1000, also with the highest rate
of a subflow as text: `"2@4mbit"`. Other keys, such as `rate`, are options of the scheduler: see `plait sched`."""


@dataclass(frozen=True)
class Scheduler(KernelAlgorithm):
    """A scheduler."""


@dataclass(frozen=True)
class Steering:
    """What a scheduler has decided for a subflow."""

    scheduler: str
    state: Literal["open", "limited", "closed", "measuring"]
    reason: str | None
    """Why; None before the first decision."""
    limit_bps: int | None
    """The rate of a limited subflow."""
    rate_bps: int | None
    """The rate of its path, as it was measured last."""


@dataclass(frozen=True)
class Subflow:
    """A subflow of this host, over the time between two looks."""

    local: str
    remote: str
    interface: str | None
    sent_bps: float
    """Retransmissions included."""
    received_bps: float
    retransmitted_bps: float
    rtt_us: int
    """Smoothed."""
    min_rtt_us: int | None
    cwnd: int
    """Segments."""
    unacked: int
    """Segments sent and not acknowledged."""
    bytes_acked: int
    scheduling: Steering | None
    """None if no scheduler of plait steers it."""


@dataclass(frozen=True)
class Connection:
    """An MPTCP connection."""

    token: str
    sent_bps: float
    received_bps: float
    subflows: list[Subflow]


def schedulers() -> list[Scheduler]:
    """All schedulers, loaded or not."""
    return [Scheduler.read(each) for each in _ask("list")["schedulers"]]


@contextlib.contextmanager
def enabled(
    name: str,
    paths: Paths | None = None,
    *,
    cgroup: str | os.PathLike[str] | None = None,
    netns: str | None = None,
) -> Iterator[None]:
    """Enable a scheduler, like `use`, for the connections opened in a `with` block, and `disable` it at its end.

    A scheduler that the block loaded is then unloaded. Connections keep it until they are closed. Raises `Error` if the command
    fails.
    """
    was_loaded = any(each.loaded for each in schedulers() if each.name == name)
    use(name, paths, cgroup=cgroup, netns=netns)
    try:
        yield
    finally:
        disable(cgroup=cgroup, netns=netns)
        if not was_loaded:
            unload(name)


def load(name: str, paths: Paths | None = None) -> None:
    """Register a scheduler with the kernel, until it is unloaded. If it is loaded, its options are replaced, for the connections that
    have it, too."""
    _ask("load", _text(name, paths))


def use(
    name: str,
    paths: Paths | None = None,
    *,
    cgroup: str | os.PathLike[str] | None = None,
    netns: str | None = None,
) -> None:
    """Enable a scheduler for what new connections of a control group or a network namespace send; loads it as `load` does."""
    _ask("use", _text(name, paths), *target_options(cgroup, netns))


def disable(*, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None) -> None:
    """Undo `use`; existing connections keep their scheduler."""
    _ask("disable", *target_options(cgroup, netns))


def unload(name: str) -> int:
    """Disable a scheduler everywhere and unregister it; the number of sockets that keep using it until they are closed."""
    (unloaded,) = _ask("unload", name)["unloaded"]
    sockets: int = unloaded["sockets"]
    return sockets


def connections(interval: float = 1.0) -> list[Connection]:
    """Look twice, `interval` seconds apart (0.1 or more), at the MPTCP connections of this network namespace; those that are open
    then."""
    words = ("top", "--once", "--json", "--interval", f"{round(interval * 1000)}ms")
    document = json.loads(_command.run(*words))
    is_open = [each for each in document["connections"] if each["connection"] is not None]
    found: list[Connection] = _document.read(list[Connection], is_open)
    return found


def _text(name: str, paths: Paths | None) -> str:
    options = ",".join(f"{path}={number}" for path, number in (paths or {}).items())
    return f"{name}:{options}" if options else name


def _ask(*words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_command.run("sched", *words, "--json"))
    return answer
