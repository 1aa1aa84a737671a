"""Coupled congestion control for the subflows of MPTCP connections, like `plait cc`.

>>> from plait import cc
>>> with cc.enabled("lia"):
...     for connection in cc.connections():
...         print(connection.token, [subflow.cwnd for subflow in connection.subflows])

Connections and unnamed namespaces are those of the calling process. Everything here needs root.
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
    "Algorithm",
    "Connection",
    "ControlGroup",
    "Error",
    "Name",
    "Namespace",
    "Subflow",
    "algorithms",
    "connections",
    "disable",
    "enabled",
    "load",
    "unload",
    "use",
]

Name = Literal["ewtcp", "coupled", "lia", "olia", "balia"]


@dataclass(frozen=True)
class Algorithm(KernelAlgorithm):
    """An algorithm."""


@dataclass(frozen=True)
class Subflow:
    """A subflow and its congestion control state."""

    local: str
    remote: str
    congestion_control: str
    """The kernel's name."""
    cwnd: int
    """Segments."""
    ssthresh: int | None
    """Segments; None before the first loss."""
    rtt_ms: float | None
    """Smoothed; None before it was measured."""
    increase: float | None
    """Segments per round trip in congestion avoidance, where reno has 1; None with another algorithm."""


@dataclass(frozen=True)
class Connection:
    """An MPTCP connection."""

    token: str
    algorithms: list[str]
    """The kernel's names: one, or several if another was enabled while the connection was open."""
    subflows: list[Subflow]


def algorithms() -> list[Algorithm]:
    """All algorithms, loaded or not."""
    return [Algorithm.read(each) for each in _ask("list")["algorithms"]]


@contextlib.contextmanager
def enabled(
    name: Name, *, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None
) -> Iterator[None]:
    """Enable an algorithm, like `use`, for the connections opened in a `with` block.

    Then what was enabled there before is enabled again, and an algorithm that the block loaded is unloaded unless it is
    enabled elsewhere by then. Connections keep it until they are closed. Raises `Error` if the command fails.
    """
    before = {each.name: each for each in algorithms()}
    previous = None
    use(name, cgroup=cgroup, netns=netns)
    try:
        previous = _enabled_before(name, before)
        yield
    finally:
        if previous is None:
            disable(cgroup=cgroup, netns=netns)
        else:
            _ask("use", previous, *target_options(cgroup, netns))
        if not before[name].loaded and not any(each.used_by for each in algorithms() if each.name == name):
            unload(name)


def _enabled_before(name: Name, before: Mapping[str, Algorithm]) -> str | None:
    """Return what was enabled before `use(name)`: another algorithm, the same one, or none."""
    (now,) = (each for each in algorithms() if each.name == name)
    added = [one for one in now.used_by if one not in before[name].used_by]
    if not added:
        return name
    return next((other for other, each in before.items() if added[0] in each.used_by), None)


def load(name: Name) -> bool:
    """Register an algorithm with the kernel, until it is unloaded. False if it already was."""
    new: bool = _ask("load", name)["new"]
    return new


def use(name: Name, *, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None) -> None:
    """Enable an algorithm for new connections of a control group or a network namespace; loads it if needed."""
    _ask("use", name, *target_options(cgroup, netns))


def disable(*, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None) -> None:
    """Undo `use`; existing connections keep their algorithm."""
    _ask("disable", *target_options(cgroup, netns))


def unload(name: Name) -> int:
    """Disable an algorithm everywhere and unregister it; the number of sockets that keep using it until they
    are closed."""
    (unloaded,) = _ask("unload", name)["unloaded"]
    sockets: int = unloaded["sockets"]
    return sockets


def connections() -> list[Connection]:
    """The MPTCP connections of this network namespace."""
    found: list[Connection] = _document.read(list[Connection], _ask("show")["connections"])
    return found


def _ask(*words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_command.run("cc", *words, "--json"))
    return answer
