"""The types of what `plait.analyze` returns; docs/reference/json.md says what each field means.

Times are seconds since 1970, durations are in the unit of their names, subflows are counted from 1. Later versions may
add fields.
"""

from __future__ import annotations

from typing import Generic, Literal, TypedDict, TypeVar

T = TypeVar("T")

Direction = Literal["client_to_server", "server_to_client"]


class Both(TypedDict, Generic[T]):
    """One for each direction."""

    client_to_server: T
    server_to_client: T


class Counted(TypedDict):
    """Segments, and bytes in them."""

    segments: int
    bytes: int


class Times(TypedDict):
    """How times are spread, in milliseconds."""

    samples: int
    mean: float
    stddev: float
    min: float
    p50: float
    p95: float
    max: float


class Window(TypedDict):
    """The receive windows that a side announced, in bytes."""

    min: int
    max: int
    last: int


class Checksums(TypedDict):
    """DSS checksums."""

    right: int
    wrong: int


class Exposure(TypedDict):
    """How much of a stream crossed a subflow."""

    bytes: int
    fraction: float
    longest_run: int
    runs: int


class Sent(TypedDict):
    """What one side sent in a subflow."""

    packets: int
    bytes: int
    share: float | None
    new_bytes: int
    repeated_bytes: int
    unmapped_bytes: int
    reinjected: Counted
    retransmitted: Counted
    duplicate_bytes: int
    out_of_order: Counted
    rtt_ms: Times | None
    rtt_timestamps_ms: Times | None
    head_of_line_ms: Times | None
    window: Window | None
    checksums: Checksums | None
    exposure: Exposure


class Close(TypedDict):
    """How a subflow ended."""

    how: Literal["open", "half_closed", "fin", "reset", "fastclose"]
    by: Direction | None
    reason: int | None


class Subflow(TypedDict):
    """A TCP connection that carries a connection, or a part of one."""

    src: str
    dst: str
    joined: bool
    accepted: bool
    authentic: bool | None
    backup: bool
    start: float
    duration_s: float
    syn_rtt_ms: float | None
    close: Close
    bytes: Both[int]
    retransmitted: Counted
    reinjected: Counted
    rtt_ms: Times | None
    directions: Both[Sent]


# In this form because `from` is a keyword.
_From = TypedDict("_From", {"from": float})


class Failover(_From):
    """A path that fell silent, and what the connection did about it."""

    path: str
    subflow: int
    direction: Direction
    to: float | None
    carried_again: float | None
    stall_s: float | None
    taken_over_by: str | None
    taken_over_by_subflow: int | None
    reinjected: Counted


class _Signalled(TypedDict):
    time: float
    subflow: int
    direction: Direction
    event: Literal[
        "add_addr", "add_addr_echo", "remove_addr", "mp_prio", "mp_fail", "mp_fastclose", "mp_tcprst"
    ]


class Event(_Signalled, total=False):
    """Something that a side signalled, with what the signal has."""

    address_ids: list[int]
    address: str
    authentic: bool
    backup: bool
    reason: int
    data_seq: str


class Connection(TypedDict):
    """A connection with all its subflows."""

    id: int
    version: Literal[0, 1] | None
    partial: bool
    evicted: bool
    fallback: str | None
    token_client: str | None
    token_server: str | None
    start: float
    duration_s: float
    bytes: Both[int]
    new_bytes: Both[int]
    completion_s: Both[float | None]
    aggregation_benefit: Both[float | None]
    reinjected: Counted
    subflows: list[Subflow]
    failovers: list[Failover]
    events: list[Event]
    events_dropped: int


class Skipped(TypedDict):
    """Packets that count nowhere, by reason."""

    not_ip: int
    not_tcp: int
    fragments: int
    malformed: int
    other_side: int


class Damaged(TypedDict):
    """A capture that could not be read to its end."""

    capture: str
    error: str


class Companion(TypedDict):
    """A figure that another tool measured, over time: pairs of seconds since 1970 and value."""

    source: Literal["iperf3", "ss", "nstat", "plait"]
    of: str
    figure: str
    unit: Literal["Mb/s", "ms", "B", "segments", ""]
    points: list[list[float]]


class Analysis(TypedDict):
    """What captures say. Connections come in the order in which they ended."""

    connections: list[Connection]
    packets: int
    skipped: Skipped
    unmapped_bytes: int
    unanswered_joins: int
    damaged: list[Damaged]
    companions: list[Companion]
