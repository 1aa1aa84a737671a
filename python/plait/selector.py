"""Selectors of `plait.policy`: which packets a chain applies to, combined with `&`, `|` and `~`."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce

Ports = int | tuple[int, int]
"""A port, or the first and last port of a range."""

# The precedence of the outermost operator of a selector's text.
_OR, _AND, _ATOM = range(3)


class Selector:
    """A selector, by its text as in a policy's TOML file (docs/guide/policies.md)."""

    def __init__(self, text: str, _precedence: int = _OR) -> None:
        self.text = text
        self._precedence = _precedence

    def __and__(self, other: Selector) -> Selector:
        return Selector(f"{self._operand(_AND)} and {other._operand(_AND)}", _AND)

    def __or__(self, other: Selector) -> Selector:
        return Selector(f"{self._operand(_OR)} or {other._operand(_OR)}", _OR)

    def __invert__(self) -> Selector:
        return Selector(f"not {self._operand(_ATOM)}", _ATOM)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def _operand(self, precedence: int) -> str:
        return self.text if self._precedence >= precedence else f"({self.text})"


ANY = Selector("any", _ATOM)
"""Every packet."""


def any_of(selectors: Iterable[Selector]) -> Selector:
    """Packets that at least one selector matches; no packets if there are no selectors."""
    several = list(selectors)
    return reduce(operator.or_, several) if several else ~ANY


def all_of(selectors: Iterable[Selector]) -> Selector:
    """Packets that all selectors match; every packet if there are no selectors."""
    several = list(selectors)
    return reduce(operator.and_, several) if several else ANY


def packet(*kinds: str) -> Selector:
    """Packets of one of these kinds: `"syn"`, `"data"`, `"mp_join"`, ..."""
    return _call("packet", *kinds)


def src(prefix: str, ports: Ports | None = None) -> Selector:
    """Packets from these addresses and ports."""
    return _call("src", prefix, _ports(ports))


def dst(prefix: str, ports: Ports | None = None) -> Selector:
    """Packets to these addresses and ports."""
    return _call("dst", prefix, _ports(ports))


def ip_pair(source: str, destination: str) -> Selector:
    """Packets from one prefix to another."""
    return _call("ip_pair", source, destination)


def subflow(
    src: str | None = None, dst: str | None = None, sport: Ports | None = None, dport: Ports | None = None
) -> Selector:
    """Packets of subflows in this direction; omitted parts match anything."""
    given = {"src": src, "dst": dst, "sport": _ports(sport), "dport": _ports(dport)}
    return _call("subflow", *(f"{name} = {value}" for name, value in given.items() if value))


def data_sequence(first: int, last: int) -> Selector:
    """Packets with data in this range of the connection's data sequence numbers."""
    return _call("sequence", f"data = {first}-{last}")


def subflow_sequence(first: int, last: int) -> Selector:
    """Packets in this range of TCP sequence numbers."""
    return _call("sequence", f"subflow = {first}-{last}")


def connection(token: str) -> Selector:
    """Packets of the connection with this token on this host, eight hexadecimal digits."""
    return _call("connection", f"0x{token.removeprefix('0x')}")


def path(name: str) -> Selector:
    """Packets received or sent on this interface, or on the `"trusted"` or `"untrusted"` ones."""
    return _call("path", name)


def size(first: str, end: str = "") -> Selector:
    """Packets of subflows that have carried at least `first` and less than `end`: `size("100kB")`."""
    return _call("size", f"{first}-{end}")


def connection_size(first: str, end: str = "") -> Selector:
    """Packets of connections that have carried at least `first` and less than `end`, both directions
    together."""
    return _call("connection_size", f"{first}-{end}")


def mark(value: int, mask: int | None = None) -> Selector:
    """Packets with this mark, under a mask. Egress only."""
    return _call("mark", f"{value:#x}" if mask is None else f"{value:#x}/{mask:#x}")


def cgroup(path: str) -> Selector:
    """Packets of programs in this control group. Egress only."""
    return _call("cgroup", path)


def custom(name: str) -> Selector:
    """Packets that a custom selector matches, which the policy lists in `custom`."""
    return Selector(name, _ATOM)


def _call(name: str, *arguments: str) -> Selector:
    return Selector(f"{name}({', '.join(filter(None, arguments))})", _ATOM)


def _ports(ports: Ports | None) -> str:
    if ports is None:
        return ""
    return str(ports) if isinstance(ports, int) else f"{ports[0]}-{ports[1]}"
