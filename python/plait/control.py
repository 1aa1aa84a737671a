"""Controllers of `plait.policy`: the view they receive, the actions they return, and the loop that runs them."""

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
"""A string such as `"4mbit"`, or a number in bytes per second, as in views."""

_log = logging.getLogger("plait.policy")


@dataclass(frozen=True)
class Path:
    """An interface and the traffic of its subflows. Bytes count from the first view and include closed
    subflows."""

    index: int
    running: bool
    """Whether it is up and has a carrier."""
    bytes_sent: int
    """Payload, including retransmissions."""
    bytes_received: int
    send_rate: float
    """Bytes per second since the previous view."""
    receive_rate: float


@dataclass(frozen=True)
class Subflow:
    """A subflow: its addresses and TCP state. Counters run from its start.

    Values that older kernels do not report are `None`.
    """

    id: int
    """Unique until the host reboots."""
    local: str
    """Address and port on this host: `"10.0.0.1:4711"`, `"[fd00::1]:4711"`."""
    remote: str
    interface: str | None
    """`None` if no interface has its address."""
    joined: bool | None
    """Whether it was created by MP_JOIN, and is not the initial subflow."""
    backup_local: bool | None
    """Whether this host declared it a backup."""
    backup_remote: bool | None
    """Whether the peer declared it a backup."""
    local_id: int | None
    remote_id: int | None
    congestion_control: str | None
    state: str
    """`"established"`, `"syn_sent"`, ... (RFC 9293, section 3.3.2)."""
    rtt_us: int
    """Smoothed round-trip time in microseconds."""
    rtt_variance_us: int
    min_rtt_us: int | None
    rto_us: int
    cwnd: int
    """Congestion window in segments."""
    ssthresh: int | None
    mss: int
    """Maximum segment size in bytes."""
    peer_window: int | None
    """Bytes."""
    unacked: int
    """Segments sent and not yet acknowledged."""
    lost: int
    retransmissions: int
    """Segments."""
    bytes_retransmitted: int | None
    bytes_sent: int | None
    """Including retransmissions."""
    bytes_acked: int
    bytes_received: int
    bytes_not_sent: int | None
    """Bytes in the send queue that were not sent yet."""
    delivery_rate: int | None
    """The last measurement, in bytes per second."""
    pacing_rate: int | None
    """Bytes per second; `None` without pacing."""
    busy_us: int | None
    send_rate: float
    """Bytes per second since the previous view, including retransmissions; 0 in the first view."""
    receive_rate: float

    @property
    def backup(self) -> bool:
        """Whether one end declared it a backup."""
        return bool(self.backup_local or self.backup_remote)


@dataclass(frozen=True)
class Connection:
    """A connection, with its data-level counters."""

    token: str
    """The token on this host, eight hexadecimal digits, as in the selector `connection()`."""
    local: str
    """The addresses of the initial subflow."""
    remote: str
    state: str
    fallback: bool
    """Whether it fell back to TCP."""
    bytes_sent: int | None
    """Without reinjections. This and the next three: Linux 6.5 or later."""
    bytes_acked: int | None
    bytes_received: int | None
    bytes_reinjected: int | None
    bytes_unacked: int
    """Bytes written by the program and not yet acknowledged by the peer."""
    subflows: list[Subflow]

    @property
    def carried(self) -> int:
        """Bytes delivered in both directions over the current subflows."""
        return sum(subflow.bytes_acked + subflow.bytes_received for subflow in self.subflows)


@dataclass(frozen=True)
class Rtt:
    """Round-trip times in microseconds, from packets sent by this host; smoothed as in RFC 6298."""

    smoothed: int
    variance: int
    min: int


@dataclass(frozen=True)
class FlowDirection:
    """One direction of a subflow, as seen in the packet path."""

    packets: int
    """A GSO packet of several segments counts as one."""
    bytes: int
    """Payload, including retransmissions."""
    retransmitted_packets: int
    retransmitted_bytes: int
    reinjected_bytes: int
    """Payload new to this subflow that was already sent on another subflow of the connection (RFC 8684,
    section 3.3.6), or, in the received direction, already acknowledged by this host."""
    window: int | None
    """The last advertised window in bytes; `None` if its scale is unknown."""
    backup: bool
    """Whether the sender of these packets asked for the subflow to be a backup."""
    ended: bool
    """Whether it was closed by FIN or RST."""


@dataclass(frozen=True)
class Flow:
    """A subflow recorded in the packet path, of this host or forwarded by it."""

    local: str
    """Address and port of the end whose packets leave through this host."""
    remote: str
    token: str | None
    """The token of its connection on this host, if known."""
    interface: int
    """The index of the interface of the last packet."""
    joined: bool
    """Whether it joined a connection, and is not the initial subflow."""
    rtt: Rtt | None
    received: FlowDirection
    sent: FlowDirection
    pace: int | None
    """The pacing rate in bytes per second, if limited."""


@dataclass(frozen=True)
class View:
    """The MPTCP connections of this host at one time."""

    time: float
    """Seconds since 1970."""
    elapsed: float
    """Seconds since the previous view; 0 in the first."""
    paths: dict[str, Path]
    """The interfaces except loopback, by name."""
    connections: list[Connection]
    flows: list[Flow]
    """The flows, as returned by `policy.flows()`."""

    @property
    def subflows(self) -> list[Subflow]:
        """The subflows of all connections."""
        return [subflow for connection in self.connections for subflow in connection.subflows]


@dataclass(frozen=True)
class Pace:
    """Limit the rate at which this host sends on a subflow."""

    subflow: Subflow
    rate: Rate


@dataclass(frozen=True)
class Limit:
    """Limit the rate at which the peer sends on a subflow, by the advertised window."""

    subflow: Subflow
    rate: Rate


@dataclass(frozen=True)
class Backup:
    """Make a subflow a backup for both ends (MP_PRIO). It stops being one when a tick no longer returns this."""

    subflow: Subflow


@dataclass(frozen=True)
class Create:
    """Create a subflow, each time a tick returns this. For connections managed by the user-space path
    manager."""

    connection: Connection
    local: str
    """The local address."""
    remote: str
    """The remote address and port."""
    id: int
    """The address identifier of the local address, 1 to 255; 0 is that of the initial subflow."""
    interface: str | None = None
    """The outgoing interface; by default chosen by routing."""
    backup: bool = False
    remote_id: int = 0
    """The address identifier of the remote address; 0 for that of the initial subflow, or unknown."""


@dataclass(frozen=True)
class Remove:
    """Close a subflow. For connections managed by the user-space path manager."""

    connection: Connection
    subflow: Subflow


Action = Chain | Pace | Limit | Backup | Create | Remove
"""What a tick may return: a chain, a shorthand for one, or the creation or removal of a subflow."""


class Controller(Protocol):
    """A controller. The optional attribute `expiry` is the time in seconds that the actions of a tick stay in
    force if no further tick follows; the default is 3 intervals, at least 5 s."""

    interval: float
    """Seconds between ticks."""

    def tick(self, view: View) -> Iterable[Action]:
        """Return all actions for the time until the next tick; actions that are not returned again are
        undone."""


def run(controller: Controller, name: str | None = None, *, ticks: int | None = None) -> None:
    """Run a controller until it raises, this program is terminated, or `ticks` ticks are done.

    Its actions form a policy called `name`, by default the name of its class. Running another controller of
    the same name on this host replaces that policy atomically; the first controller gets `Replaced`.

    The policy is removed when this returns or raises, also on Ctrl-C and SIGTERM. If this program hangs or is
    killed, its actions expire after the controller's `expiry`: the kernel enforces that, and for backups a
    process that is started with the first one. Created and removed subflows stay as they are.

    Raises `InvalidPolicy` for invalid chains, `Error` if the host rejects them, and whatever `tick` raises.
    Errors of the path manager are logged as warnings of the logger `plait.policy`.
    """
    interval = float(controller.interval)
    if not 0.001 <= interval <= 3600:
        raise ValueError(f"expected an interval from 0.001 to 3600 seconds, got {interval}")
    expiry = getattr(controller, "expiry", None)
    name = name or type(controller).__name__
    control = _plait.Control(name, interval, expiry, _guard(name))
    with _sigterm_raises_system_exit(), contextlib.closing(control):
        due = time.monotonic()
        while ticks is None or ticks > 0:
            ticks = None if ticks is None else ticks - 1
            view: View = _document.read(View, json.loads(control.view()))
            for refused in control.apply(*_encode(controller.tick(view))):
                _log.warning("%s", refused)
            due = max(due + interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def _guard(name: str) -> list[str]:
    """Return the command of the process that cleans up after a controller that is killed."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = "import sys; sys.path.insert(0, sys.argv[1]); from plait import _plait; _plait.guard_policy(sys.argv[2])"
    # An embedded interpreter has no executable.
    return [sys.executable, "-c", program, packages, name] if sys.executable else []


def _encode(actions: Iterable[Action]) -> tuple[str, str]:
    """Encode chains as TOML and the other actions as JSON."""
    chains, others = [], []
    for action in actions:
        match action:
            case Chain():
                chains.append(action)
            case Pace(subflow, rate) | Limit(subflow, rate):
                word = type(action).__name__.lower()
                others.append({word: _subflow(subflow) | {"rate": rate_text(rate)}})
            case Backup(subflow):
                others.append({"backup": _subflow(subflow)})
            case Create(connection, local, remote, id, interface, backup, remote_id):
                given = {"local": local, "remote": remote, "id": id, "interface": interface}
                given |= {"token": connection.token, "backup": backup, "remote_id": remote_id}
                others.append({"create": given})
            case Remove(connection, subflow):
                others.append({"remove": _subflow(subflow) | {"token": connection.token}})
            case _:
                raise TypeError(f"expected a chain or another action, got {action!r}")
    # The policy's name is not used: the native code takes only its chains.
    return Policy("chains", chains).text(), json.dumps(others)


def _subflow(subflow: Subflow) -> dict[str, object]:
    return {"subflow": {"local": subflow.local, "remote": subflow.remote}}


def rate_text(rate: Rate) -> str:
    """Format a rate for an actor; a number in bytes per second becomes at least 1 bit/s."""
    return rate if isinstance(rate, str) else f"{max(1, round(rate * 8))}bit"


@contextlib.contextmanager
def _sigterm_raises_system_exit() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit`, so that `with` and `finally` blocks run, unless the program handles it
    itself."""
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
