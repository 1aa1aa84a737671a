"""Coupled congestion control for the subflows of MPTCP connections, like `plait cc`.

>>> from plait import cc
>>> cc.use("lia")
>>> for connection in cc.connections():
...     print(connection.token, [subflow.cwnd for subflow in connection.subflows])
>>> cc.unload("lia")

Connections and unnamed namespaces are those of the calling process. Everything here needs root.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Literal

from plait import _command, _document
from plait._command import Error

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
    "load",
    "unload",
    "use",
]

Name = Literal["ewtcp", "coupled", "lia", "olia", "balia"]


@dataclass(frozen=True)
class ControlGroup:
    """A control group for which an algorithm is enabled."""

    path: str | None
    """From the root of the hierarchy; None if the group no longer exists."""


@dataclass(frozen=True)
class Namespace:
    """A network namespace for which an algorithm is enabled."""

    name: str | None
    """As `ip netns` names it, if it has a name there."""
    inode: int


@dataclass(frozen=True)
class Algorithm:
    """An algorithm."""

    name: str
    kernel_name: str
    """Its name in the kernel once it is loaded; programs select it by this name (`TCP_CONGESTION`)."""
    description: str
    loaded: bool
    used_by: list[ControlGroup | Namespace]


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
    return [
        Algorithm(**{**each, "used_by": [_user(**user) for user in each["used_by"]]})
        for each in _ask("list")["algorithms"]
    ]


def load(name: Name) -> bool:
    """Register an algorithm with the kernel, until it is unloaded. False if it already was."""
    return _ask("load", name)["new"]


def use(name: Name, *, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None) -> None:
    """Enable an algorithm for new connections of a control group or a network namespace; loads it if needed."""
    _ask("use", name, *_place(cgroup, netns))


def disable(*, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None) -> None:
    """Undo `use`; existing connections keep their algorithm."""
    _ask("disable", *_place(cgroup, netns))


def unload(name: Name) -> int:
    """Disable an algorithm everywhere and unregister it; the number of sockets that keep using it until they
    are closed."""
    (unloaded,) = _ask("unload", name)["unloaded"]
    return unloaded["sockets"]


def connections() -> list[Connection]:
    """The MPTCP connections of this network namespace."""
    found: list[Connection] = _document.read(list[Connection], _ask("show")["connections"])
    return found


def _ask(*words: str) -> dict:
    return json.loads(_command.run("cc", *words, "--json"))


def _place(cgroup: str | os.PathLike[str] | None, netns: str | None) -> list[str]:
    if cgroup is not None and netns is not None:
        raise ValueError("expected a control group or a network namespace, got both")
    if cgroup is not None:
        return ["--cgroup", os.fspath(cgroup)]
    return ["--netns", netns] if netns is not None else []


def _user(kind: str, **of: object) -> ControlGroup | Namespace:
    return ControlGroup(**of) if kind == "cgroup" else Namespace(**of)
