"""Which packets a chain is for: selectors of `plait.policy`, combined by `&`, `|` and `~`."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce

Ports = int | tuple[int, int]
"""One port, or the first and the last of several."""

# How close the outermost word of a text binds.
_OR, _AND, _ONE = range(3)


class Selector:
    """Which packets: the text of a selector as in a policy's TOML (docs/guide/policies.md)."""

    def __init__(self, text: str, _binds: int = _OR) -> None:
        self.text = text
        self._binds = _binds

    def __and__(self, other: Selector) -> Selector:
        return Selector(f"{self._inside(_AND)} and {other._inside(_AND)}", _AND)

    def __or__(self, other: Selector) -> Selector:
        return Selector(f"{self._inside(_OR)} or {other._inside(_OR)}", _OR)

    def __invert__(self) -> Selector:
        return Selector(f"not {self._inside(_ONE)}", _ONE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Selector({self.text!r})"

    def _inside(self, binds: int) -> str:
        return self.text if self._binds >= binds else f"({self.text})"


ANY = Selector("any", _ONE)
"""Every packet."""


def any_of(selectors: Iterable[Selector]) -> Selector:
    """Packets that one at least chooses; no packet, if there are no selectors."""
    several = list(selectors)
    return reduce(operator.or_, several) if several else ~ANY


def all_of(selectors: Iterable[Selector]) -> Selector:
    """Packets that all choose; every packet, if there are no selectors."""
    several = list(selectors)
    return reduce(operator.and_, several) if several else ANY


def packet(*kinds: str) -> Selector:
    """Packets that are or carry one of these: `"syn"`, `"data"`, `"mp_join"`, ..."""
    return _call("packet", *kinds)


def src(prefix: str, ports: Ports | None = None) -> Selector:
    """Packets that come from there."""
    return _call("src", prefix, _ports(ports))


def dst(prefix: str, ports: Ports | None = None) -> Selector:
    """Packets that go there."""
    return _call("dst", prefix, _ports(ports))


def ip_pair(source: str, destination: str) -> Selector:
    """Packets from one prefix to another."""
    return _call("ip_pair", source, destination)


def subflow(
    src: str | None = None, dst: str | None = None, sport: Ports | None = None, dport: Ports | None = None
) -> Selector:
    """Packets of subflows between these ends, in this direction; what is not given is open."""
    given = {"src": src, "dst": dst, "sport": _ports(sport), "dport": _ports(dport)}
    return _call("subflow", *(f"{name} = {value}" for name, value in given.items() if value))


def data_sequence(first: int, last: int) -> Selector:
    """Packets that carry data from the first to the last of these sequence numbers of the connection."""
    return _call("sequence", f"data = {first}-{last}")


def subflow_sequence(first: int, last: int) -> Selector:
    """Packets with a sequence number of TCP from the first to the last."""
    return _call("sequence", f"subflow = {first}-{last}")


def connection(token: str) -> Selector:
    """Packets of the connection with this token at this host, eight hexadecimal digits as in views."""
    return _call("connection", f"0x{token.removeprefix('0x')}")


def path(name: str) -> Selector:
    """Packets that come in or leave by this interface, or by the `"trusted"` or `"untrusted"` ones."""
    return _call("path", name)


def size(first: str, end: str = "") -> Selector:
    """Packets of subflows that have carried at least that much, and less than the end: `size("100kB")`."""
    return _call("size", f"{first}-{end}")


def connection_size(first: str, end: str = "") -> Selector:
    """Packets of connections that have carried at least that much, in both directions, and less than the end."""
    return _call("connection_size", f"{first}-{end}")


def mark(value: int, mask: int | None = None) -> Selector:
    """Packets with this mark, in the bits of the mask. Egress only."""
    return _call("mark", f"{value:#x}" if mask is None else f"{value:#x}/{mask:#x}")


def cgroup(path: str) -> Selector:
    """Packets of programs in this control group. Egress only."""
    return _call("cgroup", path)


def custom(name: str) -> Selector:
    """Packets that a custom selector matches, which the policy lists in `custom`."""
    return Selector(name, _ONE)


def _call(name: str, *arguments: str) -> Selector:
    return Selector(f"{name}({', '.join(filter(None, arguments))})", _ONE)


def _ports(ports: Ports | None) -> str:
    if ports is None:
        return ""
    return str(ports) if isinstance(ports, int) else f"{ports[0]}-{ports[1]}"
