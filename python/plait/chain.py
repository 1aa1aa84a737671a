"""Policies and chains."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from plait import _toml
from plait.selector import ANY, Selector

Actor = str | Mapping[str, object]
"""An actor as in a policy's TOML file (docs/guide/policies.md): `"record"`, `{"rate_limit": {"rate":
"4mbit"}}`."""


@dataclass(frozen=True)
class Chain:
    """Actors applied to the packets that a selector matches."""

    name: str
    """1 to 32 letters, digits, hyphens or underscores; unique within the policy."""
    hook: Literal["ingress", "egress"]
    """Packets received on an interface, or sent on it."""
    select: Selector | str = ANY
    actors: Sequence[Actor] = ()
    """Applied in this order; at most 8."""
    interfaces: Sequence[str] = ("*",)
    """Names, `"trusted"`, `"untrusted"`, or `"*"`: all except loopback."""
    priority: int = 100
    """Lower values come first."""

    def document(self) -> dict[str, object]:
        """Return the chain as a table of a policy's TOML file."""
        return {
            "name": self.name,
            "hook": self.hook,
            "interfaces": list(self.interfaces),
            "priority": self.priority,
            "select": str(self.select),
            "actors": list(self.actors),
        }


@dataclass(frozen=True)
class CustomProgram:
    """A custom selector or actor."""

    file: str | os.PathLike[str]
    """A C source or a compiled object."""
    function: str | None = None
    """Its name in the file; `None`: its name in the policy."""
    parameters: Sequence[int] = ()
    """Numbers that it reads with `plait_parameter()`: at most 4, from 0 to 2^63 - 1."""

    def document(self) -> dict[str, object]:
        """Return the program as a table of a policy's TOML file."""
        document: dict[str, object] = {"file": os.path.abspath(self.file)}
        if self.function is not None:
            document["function"] = self.function
        if self.parameters:
            document["parameters"] = list(self.parameters)
        return document


@dataclass(frozen=True)
class Policy:
    """Chains that are loaded and removed together."""

    name: str
    """1 to 32 letters, digits, hyphens or underscores."""
    chains: Sequence[Chain]
    custom: Mapping[str, str | os.PathLike[str] | CustomProgram] = field(default_factory=dict)
    """Custom selectors and actors by name: files, C sources or compiled objects; or `CustomProgram`."""

    def text(self) -> str:
        """Return the policy as TOML, the format of `plait policy load`."""
        custom = {
            name: (program if isinstance(program, CustomProgram) else CustomProgram(program)).document()
            for name, program in self.custom.items()
        }
        document: dict[str, object] = {"name": self.name, "custom": custom} if custom else {"name": self.name}
        return _toml.dumps(document | {"chains": [chain.document() for chain in self.chains]})
