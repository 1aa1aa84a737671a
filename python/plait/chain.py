"""Policies and their chains, as `plait.policy` composes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from plait import _toml
from plait.selector import ANY, Selector

Actor = str | Mapping[str, object]
"""An actor as in a policy's TOML (docs/guide/policies.md): `"record"`, `{"rate_limit": {"rate": "4mbit"}}`."""


@dataclass(frozen=True)
class Chain:
    """What is done with the packets that a selector chooses."""

    name: str
    """1 to 32 letters, digits, hyphens or underscores; no other chain of its policy has it."""
    hook: Literal["ingress", "egress"]
    """Packets that come in by an interface, or that leave by it."""
    select: Selector | str = ANY
    actors: Sequence[Actor] = ()
    """In this order, 8 at most."""
    interfaces: Sequence[str] = ("*",)
    """Names, `"trusted"`, `"untrusted"`, or `"*"`: every one but loopback."""
    priority: int = 100
    """Lower first."""

    def document(self) -> dict[str, object]:
        """It as a table of a policy's TOML."""
        return {
            "name": self.name,
            "hook": self.hook,
            "interfaces": list(self.interfaces),
            "priority": self.priority,
            "select": str(self.select),
            "actors": list(self.actors),
        }


@dataclass(frozen=True)
class Policy:
    """Chains that are loaded and removed together."""

    name: str
    """1 to 32 letters, digits, hyphens or underscores."""
    chains: Sequence[Chain]
    custom: Mapping[str, str | os.PathLike[str]] = field(default_factory=dict)
    """Custom selectors and actors: names and files, C sources or compiled objects."""

    def text(self) -> str:
        """It as TOML, which `plait policy load` takes, too."""
        custom = {name: {"file": os.path.abspath(file)} for name, file in self.custom.items()}
        document: dict[str, object] = {"name": self.name, "custom": custom} if custom else {"name": self.name}
        return _toml.dumps(document | {"chains": [chain.document() for chain in self.chains]})
