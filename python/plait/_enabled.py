"""Congestion control algorithms and schedulers, which the kernel registers alike, and what they are enabled for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Self


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
class KernelAlgorithm:
    """What both have."""

    name: str
    kernel_name: str
    """Its name in the kernel once it is loaded; programs select it by this name (`TCP_CONGESTION`)."""
    description: str
    loaded: bool
    used_by: list[ControlGroup | Namespace]

    @classmethod
    def read(cls, document: dict[str, Any]) -> Self:
        """Return that of an element of the command's list."""
        return cls(**{**document, "used_by": [used_by(**each) for each in document["used_by"]]})


def target_options(cgroup: str | os.PathLike[str] | None, netns: str | None) -> list[str]:
    """Return the options that name a target to the command."""
    if cgroup is not None and netns is not None:
        raise ValueError("expected a control group or a network namespace, got both")
    if cgroup is not None:
        return ["--cgroup", os.fspath(cgroup)]
    return ["--netns", netns] if netns is not None else []


def used_by(kind: str, **of: Any) -> ControlGroup | Namespace:
    """Return what an algorithm is enabled for, from an element of the document's `used_by`."""
    return ControlGroup(**of) if kind == "cgroup" else Namespace(**of)
