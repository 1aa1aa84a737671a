"""Policies: what becomes of the packets of Multipath TCP connections on this host.

>>> from plait import policy
>>> from plait.policy import Chain, Policy, dst, packet
>>> slow = Chain("slow", "egress", packet("mptcp") & ~dst("10.0.0.0/8"), [{"rate_limit": {"rate": "4mbit"}}])
>>> policy.load(Policy("calm", [slow]))
>>> policy.statistics()["calm"]["slow"].packets
>>> policy.unload("calm")

A controller says again and again what shall hold, from what it sees of the connections:

>>> class Calm:
...     interval = 0.1
...
...     def tick(self, view):
...         return [policy.Pace(subflow, "1mbit") for subflow in view.subflows if subflow.rtt_us > 200_000]
>>> policy.run(Calm())

Everything concerns the network namespace of the calling thread, and all but `check` takes root.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plait import _document, _plait
from plait._plait import PolicyError as Error
from plait._plait import PolicyMistake as Mistake
from plait._plait import PolicyReplaced as Replaced
from plait.chain import Actor, Chain, Policy
from plait.control import (
    Action,
    Backup,
    Connection,
    Controller,
    Create,
    Flow,
    Half,
    Limit,
    Pace,
    Path,
    Remove,
    Rtt,
    Subflow,
    View,
    run,
)
from plait.selector import (
    ANY,
    Selector,
    all_of,
    any_of,
    cgroup,
    connection,
    connection_size,
    custom,
    data_sequence,
    dst,
    ip_pair,
    mark,
    packet,
    path,
    size,
    src,
    subflow,
    subflow_sequence,
)

__all__ = [
    "ANY",
    "Action",
    "Actor",
    "Backup",
    "Chain",
    "Connection",
    "Controller",
    "Count",
    "Counted",
    "Create",
    "Error",
    "Event",
    "Flow",
    "Half",
    "Limit",
    "Loaded",
    "Mistake",
    "Pace",
    "Path",
    "Policy",
    "Remove",
    "Replaced",
    "Rtt",
    "Selector",
    "Subflow",
    "View",
    "all_of",
    "any_of",
    "cgroup",
    "check",
    "connection",
    "connection_size",
    "custom",
    "data_sequence",
    "dst",
    "events",
    "flows",
    "ip_pair",
    "load",
    "loaded",
    "mark",
    "packet",
    "path",
    "run",
    "size",
    "src",
    "statistics",
    "subflow",
    "subflow_sequence",
    "unload",
]

Source = Policy | str | os.PathLike[str]
"""A policy, or a TOML file with one."""


def check(source: Source) -> None:
    """Raises `Mistake` if a policy cannot be, with all that is wrong. Takes no privileges."""
    _plait.check_policy(*_text(source))


def load(source: Source, *, replace: bool = False) -> None:
    """Loads a policy beside the others; it stays until it is unloaded, also when this program ends.

    With `replace`, it takes the place of the loaded one of its name, if there is one: a packet meets all chains of the
    one or all of the other. Raises `Mistake` or `Error`; then nothing has changed.
    """
    _plait.load_policy(*_text(source), replace)


def unload(name: str) -> None:
    """Removes a policy. Raises `Error` if none of that name is loaded."""
    _plait.unload_policy(name)


@dataclass(frozen=True)
class Loaded:
    """A loaded policy."""

    name: str
    text: str
    """As TOML."""
    remaining: float | None
    """For how many more seconds it acts, if a controller loaded it."""
    absent: list[str]
    """Interfaces and control groups that it names and that are not there: what it asks for there does not hold."""


def loaded() -> list[Loaded]:
    """The loaded policies."""
    policies: list[Loaded] = _document.read(list[Loaded], json.loads(_plait.loaded_policies()))
    return policies


@dataclass(frozen=True)
class Count:
    """Packets that an actor was asked for."""

    packets: int
    bytes: int
    """From the IP header on."""
    hits: int
    """With which the actor did what it is for."""
    errors: int
    """With which it could not do what it should."""
    nanoseconds: int
    """Time spent, as far as it was measured (`plait policy stats --timing`)."""


@dataclass(frozen=True)
class Counted(Count):
    """Packets that a chain's selector chose, and what became of them."""

    actors: list[tuple[str, Count]]
    """Actors by name, in the order in which they act."""


def statistics() -> dict[str, dict[str, Counted]]:
    """What each chain of each loaded policy has counted."""

    def counted(chain: dict[str, Any]) -> Counted:
        actors = [(actor["name"], _document.read(Count, actor)) for actor in chain["actors"]]
        return Counted(**vars(_document.read(Count, chain)), actors=actors)

    policies = json.loads(_plait.policy_statistics())["policies"]
    return {
        policy["name"]: {chain["name"]: counted(chain) for chain in policy["chains"]} for policy in policies
    }


def flows() -> list[Flow]:
    """The subflows that the packet path remembers, those that this host forwards included.

    There are some while a policy is loaded that asks for it, as by the actor `record`.
    """
    found: list[Flow] = _document.read(list[Flow], json.loads(_plait.policy_flows()))
    return found


@dataclass(frozen=True)
class Event:
    """Something that happened to a packet."""

    event: str
    """`"connection"` (the actor get_connection), `"subflow"` (get_subflow), `"withheld"`, `"custom"`, `"matched"`, ..."""
    time: float
    """Seconds, by the clock of `time.monotonic`."""
    hook: str
    interface: int
    """Index."""
    local: str
    """This host's end; of a forwarded subflow, the one from which packets go out here."""
    remote: str
    token: str | None
    """Of the connection at this host, if it is known."""
    kinds: list[str]
    """What the packet is and carries."""
    sequence: int
    acknowledgment: int
    payload: int
    """Bytes."""
    data_sequence: int | None
    details: dict[str, Any]
    """What else there is to such an event (docs/guide/policies.md)."""
    _keys: tuple[bytes, bytes | None] | None = field(default=None, repr=False, compare=False)

    def keys(self) -> tuple[bytes, bytes | None] | None:
        """The keys of the connection, of who began it and of the other end, as far as the packet told them and the actor
        was asked: `{"get_connection": {"keys": True}}`. They are secrets: who has them can join the connection."""
        return self._keys


def events(timeout: float | None = None, *, trace: bool = False) -> Iterator[Event]:
    """What loaded policies tell from now on, until nothing has been told for so many seconds.

    With `trace`, each packet that some chain chose is an event, too. One reader at a time can be on a host. Raises
    `Error` if another is.
    """
    reader = _plait.Events(trace)
    return _events(reader, timeout)


def _events(reader: _plait.Events, timeout: float | None) -> Iterator[Event]:
    known = {name for name in Event.__dataclass_fields__ if name not in ("details", "_keys")}
    try:
        while (told := reader.next(timeout)) is not None:
            document = json.loads(told[0])
            moment = document.pop("time")
            document["time"] = moment["secs"] + moment["nanos"] / 1e9
            details = {name: document.pop(name) for name in document.keys() - known}
            yield Event(**document, details=details, _keys=told[1])
    finally:
        reader.close()


def _text(source: Source) -> tuple[str, str]:
    """A policy as TOML, and the name of its file."""
    if isinstance(source, Policy):
        return source.text(), source.name
    file = os.fspath(source)
    return pathlib.Path(file).read_text(), file
