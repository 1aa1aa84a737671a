"""Coupled congestion control for the subflows of MPTCP connections: what `plait cc` does.

>>> from plait import cc
>>> cc.use("lia")
>>> for connection in cc.connections():
...     print(connection.token, [subflow.cwnd for subflow in connection.subflows])
>>> cc.unload("lia")

Connections, and namespaces that are not named, are those of the calling process. All of it takes root.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Literal

from plait import _command
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
    "leave",
    "load",
    "unload",
    "use",
]

Name = Literal["ewtcp", "coupled", "lia", "olia", "balia"]


@dataclass(frozen=True)
class ControlGroup:
    """A control group that uses an algorithm."""

    path: str | None
    """From the root of the hierarchy; None if the group is gone."""


@dataclass(frozen=True)
class Namespace:
    """A network namespace that uses an algorithm."""

    name: str | None
    """As `ip netns` names it, if it has a name there."""
    inode: int


@dataclass(frozen=True)
class Algorithm:
    """An algorithm."""

    name: str
    kernel_name: str
    """What the kernel calls it, once it is loaded; programs select it by that (`TCP_CONGESTION`)."""
    description: str
    loaded: bool
    used_by: list[ControlGroup | Namespace]


@dataclass(frozen=True)
class Subflow:
    """A subflow, and what congestion control makes of it."""

    local: str
    remote: str
    congestion_control: str
    """By the kernel's name."""
    cwnd: int
    """Segments."""
    ssthresh: int | None
    """Segments; None before the first loss."""
    rtt_ms: float | None
    """Smoothed; None before it was measured."""
    increase: float | None
    """What the window gains in a round trip in congestion avoidance, where reno gains 1; None if the algorithm is another."""


@dataclass(frozen=True)
class Connection:
    """An MPTCP connection."""

    token: str
    algorithms: list[str]
    """By the kernel's names: one, or several if another was chosen while it was open."""
    subflows: list[Subflow]


def algorithms() -> list[Algorithm]:
    """The algorithms that there are, loaded or not."""
    return [
        Algorithm(**{**each, "used_by": [_user(**user) for user in each["used_by"]]})
        for each in _ask("list")["algorithms"]
    ]


def load(name: Name) -> bool:
    """Makes an algorithm known to the kernel, until it is unloaded. False: it was."""
    return _ask("load", name)["new"]


def use(name: Name, *, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None) -> None:
    """Lets new connections of a control group or a network namespace use an algorithm, and loads it if need be."""
    _ask("use", name, *_place(cgroup, netns))


def leave(*, cgroup: str | os.PathLike[str] | None = None, netns: str | None = None) -> None:
    """Ends what `use` began; connections that there are go on as they are."""
    _ask("leave", *_place(cgroup, netns))


def unload(name: Name) -> int:
    """Takes an algorithm back from the kernel, and from who uses it: how many sockets go on with it until they are closed."""
    (unloaded,) = _ask("unload", name)["unloaded"]
    return unloaded["sockets"]


def connections() -> list[Connection]:
    """The MPTCP connections of this network namespace."""
    return [
        Connection(**{**each, "subflows": [Subflow(**subflow) for subflow in each["subflows"]]})
        for each in _ask("show")["connections"]
    ]


def _ask(*words: str) -> dict:
    return json.loads(_command.ask("cc", *words, "--json"))


def _place(cgroup: str | os.PathLike[str] | None, netns: str | None) -> list[str]:
    if cgroup is not None and netns is not None:
        raise ValueError("expected a control group or a network namespace, found both")
    if cgroup is not None:
        return ["--cgroup", os.fspath(cgroup)]
    return ["--netns", netns] if netns is not None else []


def _user(kind: str, **of: object) -> ControlGroup | Namespace:
    return ControlGroup(**of) if kind == "cgroup" else Namespace(**of)
