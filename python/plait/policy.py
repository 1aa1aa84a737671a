"""Policies: rules for the packets of Multipath TCP connections on this host.

>>> from plait import policy
>>> from plait.policy import Chain, Policy, dst, packet
>>> slow = Chain("slow", "egress", packet("mptcp") & ~dst("10.0.0.0/8"), [{"rate_limit": {"rate": "4mbit"}}])
>>> with policy.loaded(Policy("calm", [slow])):
...     policy.statistics()["calm"]["slow"].packets

A controller decides repeatedly, from a view of the connections:

>>> class Calm:
...     interval = 0.1
...
...     def tick(self, view):
...         return [policy.Pace(subflow, "1mbit") for subflow in view.subflows if subflow.rtt_us > 200_000]
>>> policy.run(Calm())

Everything applies to the network namespace of the calling thread. Everything except `check` needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plait import _document, _plait
from plait._plait import InvalidPolicy
from plait._plait import PolicyError as Error
from plait._plait import PolicyReplaced as Replaced
from plait.chain import Actor, Chain, CustomProgram, Policy
from plait.control import (
    Action,
    Backup,
    Connection,
    Controller,
    Create,
    Flow,
    FlowDirection,
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
    "ChainCounters",
    "Connection",
    "Controller",
    "Counters",
    "Create",
    "CustomProgram",
    "Error",
    "Event",
    "Flow",
    "FlowDirection",
    "InvalidPolicy",
    "Limit",
    "Loaded",
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
    "policies",
    "run",
    "size",
    "src",
    "statistics",
    "subflow",
    "subflow_sequence",
    "unload",
]

Source = Policy | str | os.PathLike[str]
"""A policy, or a TOML file that contains one."""


def check(source: Source) -> None:
    """Raise `InvalidPolicy` with all errors if a policy is invalid. Needs no privileges."""
    _plait.check_policy(*_text(source))


def load(source: Source, *, replace: bool = False) -> None:
    """Load a policy in addition to the others. It stays loaded when this program exits.

    With `replace`, it replaces a loaded policy of the same name atomically: a packet meets either all old or
    all new chains. Raises `InvalidPolicy` or `Error`; nothing has changed then.
    """
    _plait.load_policy(*_text(source), replace)


def unload(name: str) -> None:
    """Unload a policy. Raises `Error` if no policy of that name is loaded."""
    _plait.unload_policy(name)


@contextlib.contextmanager
def loaded(source: Source) -> Iterator[None]:
    """Load a policy for a `with` block, and unload it at its end.

    A program that is killed by SIGKILL leaves it loaded (`plait policy unload`). Raises `InvalidPolicy` or `Error`, as
    `load`; also if a policy of the same name is loaded.
    """
    text, file = _text(source)
    _plait.load_policy(text, file, False)
    try:
        yield
    finally:
        _plait.unload_policy(tomllib.loads(text)["name"])


@dataclass(frozen=True)
class Loaded:
    """A loaded policy."""

    name: str
    text: str
    """The policy as TOML."""
    remaining: float | None
    """Seconds until it expires, if a controller loaded it."""
    absent: list[str]
    """Interfaces and control groups that it refers to and that do not exist: it has no effect there."""


def policies() -> list[Loaded]:
    """Return the loaded policies."""
    found: list[Loaded] = _document.read(list[Loaded], json.loads(_plait.loaded_policies()))
    return found


@dataclass(frozen=True)
class Counters:
    """Counters of an actor."""

    packets: int
    bytes: int
    """From the IP header."""
    hits: int
    """Packets on which the actor took effect."""
    errors: int
    """Packets on which the actor failed."""
    nanoseconds: int
    """Processing time, if measured (`plait policy stats --timing`)."""


@dataclass(frozen=True)
class ChainCounters(Counters):
    """Packets that a chain's selector matched, and the actors applied to them."""

    actors: list[tuple[str, Counters]]
    """Names and counters of the actors, in order."""


def statistics() -> dict[str, dict[str, ChainCounters]]:
    """Return the counters of the chains of all loaded policies, by policy and chain."""

    def counters(chain: dict[str, Any]) -> ChainCounters:
        actors = [(actor["name"], _document.read(Counters, actor)) for actor in chain["actors"]]
        return ChainCounters(**vars(_document.read(Counters, chain)), actors=actors)

    policies = json.loads(_plait.policy_statistics())["policies"]
    return {
        policy["name"]: {chain["name"]: counters(chain) for chain in policy["chains"]} for policy in policies
    }


def flows() -> list[Flow]:
    """Return the subflows recorded in the packet path, including forwarded ones.

    They are recorded while a policy that needs it is loaded, such as one with the actor `record`.
    """
    found: list[Flow] = _document.read(list[Flow], json.loads(_plait.policy_flows()))
    return found


@dataclass(frozen=True)
class Event:
    """An event reported by an actor."""

    event: str
    """`"connection"` (the actor get_connection), `"subflow"` (get_subflow), `"withheld"`, `"custom"`,
    `"matched"`, ..."""
    time: float
    """Seconds of the clock of `time.monotonic`."""
    hook: str
    interface: int
    """The interface index."""
    local: str
    """The end on this host; for a forwarded subflow, the end whose packets leave through this host."""
    remote: str
    token: str | None
    """The token of the connection on this host, if known."""
    kinds: list[str]
    """The kinds of the packet, as in the selector `packet`."""
    sequence: int
    acknowledgment: int
    payload: int
    """Payload length in bytes."""
    data_sequence: int | None
    details: dict[str, Any]
    """Fields specific to the kind of event (docs/guide/policies.md)."""
    _keys: tuple[bytes, bytes | None] | None = field(default=None, repr=False, compare=False)

    def keys(self) -> tuple[bytes, bytes | None] | None:
        """Return the keys of initiator and responder, as far as the packet contains them, if the actor is
        configured to report them: `{"get_connection": {"keys": True}}`. They are secrets: they permit joining
        the connection."""
        return self._keys


def events(timeout: float | None = None, *, trace: bool = False) -> Iterator[Event]:
    """Iterate over events of loaded policies, until there is none for `timeout` seconds.

    With `trace`, each packet that a chain matches is an event too. Only one reader per host is possible;
    raises `Error` if there is another.
    """
    reader = _plait.Events(trace)
    return _events(reader, timeout)


def _events(reader: _plait.Events, timeout: float | None) -> Iterator[Event]:
    known = {name for name in Event.__dataclass_fields__ if name not in ("details", "_keys")}
    try:
        while (event := reader.next(timeout)) is not None:
            document = json.loads(event[0])
            moment = document.pop("time")
            document["time"] = moment["secs"] + moment["nanos"] / 1e9
            details = {name: document.pop(name) for name in document.keys() - known}
            yield Event(**document, details=details, _keys=event[1])
    finally:
        reader.close()


def _text(source: Source) -> tuple[str, str]:
    """Return a policy as TOML, and its name or file for error messages."""
    if isinstance(source, Policy):
        return source.text(), source.name
    file = os.fspath(source)
    return pathlib.Path(file).read_text(), file
