"""Controllers of `plait.policy`: what they see, what they may say, and the loop that they run in."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from plait import _document, _plait
from plait.chain import Chain, Policy

Rate = str | float
"""A text such as `"4mbit"`, or a number: bytes per second, as in views."""

_log = logging.getLogger("plait.policy")


@dataclass(frozen=True)
class Path:
    """An interface, and what subflows over it carried. Bytes count from the first view, those of ended subflows too."""

    index: int
    running: bool
    """It is switched on and has a carrier."""
    bytes_sent: int
    """Payload, retransmissions included."""
    bytes_received: int
    send_rate: float
    """Bytes per second since the view before."""
    receive_rate: float


@dataclass(frozen=True)
class Subflow:
    """A subflow: where it goes, and what TCP says of it. Counters run from its beginning.

    What older kernels do not tell is `None`.
    """

    id: int
    """No other one since the host started has it."""
    local: str
    """Address and port of this host: `"10.0.0.1:4711"`, `"[fd00::1]:4711"`."""
    remote: str
    interface: str | None
    """`None` if no interface has its address now."""
    joined: bool | None
    """Made by MP_JOIN: not the one that the connection began on."""
    backup_local: bool | None
    """This host wants it as a backup."""
    backup_remote: bool | None
    """The peer does."""
    local_id: int | None
    remote_id: int | None
    congestion_control: str | None
    state: str
    """`"established"`, `"syn_sent"`, ... (RFC 9293, section 3.3.2)."""
    rtt_us: int
    """Smoothed round-trip time, microseconds."""
    rtt_variance_us: int
    min_rtt_us: int | None
    rto_us: int
    cwnd: int
    """Congestion window, segments."""
    ssthresh: int | None
    mss: int
    """Bytes of a segment."""
    peer_window: int | None
    """Bytes."""
    unacked: int
    """Segments sent and not yet acknowledged."""
    lost: int
    retransmissions: int
    """Segments."""
    bytes_retransmitted: int | None
    bytes_sent: int | None
    """Retransmissions included."""
    bytes_acked: int
    bytes_received: int
    bytes_not_sent: int | None
    """Written to it and not yet sent."""
    delivery_rate: int | None
    """The last one, bytes per second."""
    pacing_rate: int | None
    """Bytes per second; `None`: not paced."""
    busy_us: int | None
    send_rate: float
    """Bytes per second since the view before, retransmissions included; 0 in the first view."""
    receive_rate: float

    @property
    def backup(self) -> bool:
        """One end wants it as a backup."""
        return bool(self.backup_local or self.backup_remote)


@dataclass(frozen=True)
class Connection:
    """A connection, with the figures of its data level."""

    token: str
    """At this host, eight hexadecimal digits: what `connection()` selects."""
    local: str
    """Ends of the initial subflow."""
    remote: str
    state: str
    fallback: bool
    """It has fallen back to TCP."""
    bytes_sent: int | None
    """Without reinjections. This and the next three: from kernel 6.5 on."""
    bytes_acked: int | None
    bytes_received: int | None
    bytes_reinjected: int | None
    bytes_unacked: int
    """Written by the program and not yet acknowledged by the peer."""
    subflows: list[Subflow]

    @property
    def carried(self) -> int:
        """Bytes that have arrived, in both directions, over the subflows that there are."""
        return sum(subflow.bytes_acked + subflow.bytes_received for subflow in self.subflows)


@dataclass(frozen=True)
class Rtt:
    """Of packets sent here and acknowledged by the peer, microseconds, smoothed as in RFC 6298."""

    smoothed: int
    variance: int
    min: int


@dataclass(frozen=True)
class Half:
    """One direction of a subflow, as the packet path saw it."""

    packets: int
    """Segments that are sent as one are one."""
    bytes: int
    """Payload, retransmissions included."""
    retransmitted_packets: int
    retransmitted_bytes: int
    reinjected_bytes: int
    """Payload new to this subflow: sent, if another one of the connection had carried it before (RFC 8684, section 3.3.6);
    received, if this host had acknowledged it before."""
    window: int | None
    """The last one offered, bytes; `None`: its scale is not known."""
    backup: bool
    """Whose packets these are asked to be sent to here as a backup only."""
    ended: bool
    """By FIN or RST."""


@dataclass(frozen=True)
class Flow:
    """A subflow that the packet path remembers, of this host or forwarded by it."""

    local: str
    """Address and port of the end from which packets go out here."""
    remote: str
    token: str | None
    """Of its connection at this host, if it is known."""
    interface: int
    """Index of the one by which the last packet came or left."""
    joined: bool
    """It joined a connection, and did not begin one."""
    rtt: Rtt | None
    received: Half
    sent: Half
    pace: int | None
    """Bytes per second that it is held to."""


@dataclass(frozen=True)
class View:
    """This host's MPTCP connections at one moment."""

    time: float
    """Seconds since 1970."""
    elapsed: float
    """Seconds since the view before; 0 in the first."""
    paths: dict[str, Path]
    """The interfaces other than loopback, by name."""
    connections: list[Connection]
    flows: list[Flow]
    """What `policy.flows()` gives."""

    @property
    def subflows(self) -> list[Subflow]:
        """Those of all connections."""
        return [subflow for connection in self.connections for subflow in connection.subflows]


@dataclass(frozen=True)
class Pace:
    """This host sends no faster on a subflow."""

    subflow: Subflow
    rate: Rate


@dataclass(frozen=True)
class Limit:
    """The peer is let send no faster on a subflow, by the window that it is offered."""

    subflow: Subflow
    rate: Rate


@dataclass(frozen=True)
class Backup:
    """Both ends take a subflow as a backup (MP_PRIO). When it is no longer said, they are told that it is none."""

    subflow: Subflow


@dataclass(frozen=True)
class Create:
    """A subflow is made, each time that this is said; of connections that user space manages."""

    connection: Connection
    local: str
    """The address of this host that it is from."""
    remote: str
    """Address and port that it is to."""
    id: int
    """Of the local address, 1 to 255; 0 is that of the initial subflow."""
    interface: str | None = None
    """By which it leaves; else routing decides."""
    backup: bool = False
    remote_id: int = 0
    """Of the peer's address; 0: that of the initial subflow, or unknown."""


@dataclass(frozen=True)
class Remove:
    """A subflow ends; of a connection that user space manages."""

    connection: Connection
    subflow: Subflow


Action = Chain | Pace | Limit | Backup | Create | Remove
"""What a tick may say: a chain that holds, a shorthand for one, or a subflow that is made or ended."""


class Controller(Protocol):
    """What decides. It may also have `expiry`: for how many seconds what a tick said holds if no other follows,
    instead of 3 intervals and 5 s at least."""

    interval: float
    """Seconds from one tick to the next."""

    def tick(self, view: View) -> Iterable[Action]:
        """What shall hold until the next tick: all of it, as what is not said again is taken back."""


def run(controller: Controller, name: str | None = None, *, ticks: int | None = None) -> None:
    """Gives a controller its ticks, until it raises, this program is ended, or so many ticks are done.

    What it says is a policy of the controller's name, or of that of its class. Whoever runs one of the same name on this
    host replaces that one, in one step; the other gets `Replaced`.

    The policy is removed when this ends, also by an exception, Ctrl-C, or SIGTERM. If this program hangs or is killed,
    what it set ends after the controller's `expiry`: the kernel sees to that, and of backups a process that is started
    with the first. Subflows that were made or ended stay so.

    Raises `Mistake` for chains that cannot be, `Error` for what the host refuses, and what `tick` raises. What the path
    manager refuses is a warning of the logger `plait.policy`.
    """
    interval = float(controller.interval)
    if not 0.001 <= interval <= 3600:
        raise ValueError(f"expected an interval from 0.001 to 3600 seconds, found {interval}")
    expiry = getattr(controller, "expiry", None)
    name = name or type(controller).__name__
    control = _plait.Control(name, interval, expiry, _guard(name))
    with _sigterm_is_exit(), contextlib.closing(control):
        due = time.monotonic()
        while ticks is None or ticks > 0:
            ticks = None if ticks is None else ticks - 1
            view: View = _document.read(View, json.loads(control.view()))
            for refused in control.apply(*_asked(controller.tick(view))):
                _log.warning("%s", refused)
            due = max(due + interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def _guard(name: str) -> list[str]:
    """The command of the process that takes back what stays of a controller that is killed."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = "import sys; sys.path.insert(0, sys.argv[1]); from plait import _plait; _plait.guard_policy(sys.argv[2])"
    # An interpreter that is part of another program cannot be started by itself.
    return [sys.executable, "-c", program, packages, name] if sys.executable else []


def _asked(actions: Iterable[Action]) -> tuple[str, str]:
    """The chains as TOML, and the other actions as JSON."""
    chains, others = [], []
    for action in actions:
        match action:
            case Chain():
                chains.append(action)
            case Pace(subflow, rate) | Limit(subflow, rate):
                word = type(action).__name__.lower()
                others.append({word: _ends(subflow) | {"rate": rate_text(rate)}})
            case Backup(subflow):
                others.append({"backup": _ends(subflow)})
            case Create(connection, local, remote, id, interface, backup, remote_id):
                given = {"local": local, "remote": remote, "id": id, "interface": interface}
                given |= {"token": connection.token, "backup": backup, "remote_id": remote_id}
                others.append({"create": given})
            case Remove(connection, subflow):
                others.append({"remove": _ends(subflow) | {"token": connection.token}})
            case _:
                raise TypeError(f"expected a chain or another action, found {action!r}")
    # The name is not theirs: whatever stands here is only read, not loaded.
    return Policy("chains", chains).text(), json.dumps(others)


def _ends(subflow: Subflow) -> dict[str, object]:
    return {"local": subflow.local, "remote": subflow.remote}


def rate_text(rate: Rate) -> str:
    """A rate as actors have it; of a number of bytes per second, at least 1 bit/s."""
    return rate if isinstance(rate, str) else f"{max(1, round(rate * 8))}bit"


@contextlib.contextmanager
def _sigterm_is_exit() -> Iterator[None]:
    """SIGTERM leaves `with` blocks and `finally`s, unless the program has its own way with it."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
