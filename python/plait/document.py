"""The types of the document of an analysis, `plait.Analysis.to_dict`; docs/reference/schema/analysis.schema.json describes each field.

Times are seconds since 1970, durations are in the unit of their names, subflows count from 1. Later versions may add
fields.
"""

from __future__ import annotations

from typing import Generic, Literal, TypedDict, TypeVar

T = TypeVar("T")

Direction = Literal["client_to_server", "server_to_client"]


class PerDirection(TypedDict, Generic[T]):
    """A value for each direction."""

    client_to_server: T
    server_to_client: T


class Volume(TypedDict):
    """A number of segments and the bytes in them."""

    segments: int
    bytes: int


class DurationStats(TypedDict):
    """Distribution of durations, in milliseconds."""

    samples: int
    mean: float
    stddev: float
    min: float
    p50: float
    p95: float
    max: float


class Jitter(TypedDict):
    """Interarrival jitter (RFC 3550 6.4.1), in milliseconds."""

    samples: int
    mean: float
    max: float
    last: float


class Interarrival(TypedDict):
    """Times between arrivals, in milliseconds."""

    samples: int
    mean: float
    stddev: float
    min: float
    max: float


class Window(TypedDict):
    """Receive windows that a side announced, in bytes."""

    min: int
    max: int
    last: int


class Checksums(TypedDict):
    """DSS checksums that could be verified."""

    valid: int
    invalid: int


class Exposure(TypedDict):
    """How much of a stream crossed a subflow."""

    bytes: int
    fraction: float
    longest_run: int
    runs: int


class DirectionStats(TypedDict):
    """What one side sent in a subflow."""

    packets: int
    bytes: int
    share: float | None
    new_bytes: int
    repeated_bytes: int
    unmapped_bytes: int
    reinjected: Volume
    retransmitted: Volume
    duplicate_bytes: int
    out_of_order: Volume
    rtt_ms: DurationStats | None
    rtt_source: Literal["acks", "timestamps"] | None
    ack_rtt_ms: DurationStats | None
    ack_rtt_timestamps_ms: DurationStats | None
    jitter_ms: Jitter | None
    interarrival_ms: Interarrival | None
    head_of_line_ms: DurationStats | None
    window: Window | None
    checksums: Checksums | None
    exposure: Exposure


class Close(TypedDict):
    """How a subflow ended."""

    kind: Literal["open", "half_closed", "fin", "reset", "fastclose"]
    by: Direction | None
    reason: int | None


class Subflow(TypedDict):
    """A TCP connection that carries a connection or a part of one."""

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
    bytes: PerDirection[int]
    retransmitted: Volume
    reinjected: Volume
    rtt_ms: DurationStats | None
    directions: PerDirection[DirectionStats]


# Functional syntax, because `from` is a keyword.
_From = TypedDict("_From", {"from": float})


class Failover(_From):
    """A path that fell silent while it was needed, and how the connection went on."""

    path: str
    subflow: int
    direction: Direction
    to: float | None
    resumed: float | None
    stall_s: float | None
    taken_over_by: str | None
    taken_over_by_subflow: int | None
    reinjected: Volume


class _EventBase(TypedDict):
    time: float
    subflow: int
    direction: Direction
    event: Literal[
        "add_addr", "add_addr_echo", "remove_addr", "mp_prio", "mp_fail", "mp_fastclose", "mp_tcprst"
    ]


class Event(_EventBase, total=False):
    """An MPTCP signal; optional fields are present only where the signal has them."""

    address_ids: list[int]
    address: str
    authentic: bool
    backup: bool
    reason: int
    data_seq: str


class Connection(TypedDict):
    """An MPTCP connection with all of its subflows, or a plain TCP connection."""

    id: int
    version: Literal[0, 1] | None
    partial: bool
    evicted: bool
    fallback: str | None
    token_client: str | None
    token_server: str | None
    start: float
    duration_s: float
    bytes: PerDirection[int]
    new_bytes: PerDirection[int]
    completion_s: PerDirection[float | None]
    aggregation_benefit: PerDirection[float | None]
    reinjected: Volume
    subflows: list[Subflow]
    failovers: list[Failover]
    events: list[Event]
    events_dropped: int


class Skipped(TypedDict):
    """Packets that were not counted, by reason."""

    not_ip: int
    not_tcp: int
    fragments: int
    malformed: int
    duplicate: int


class DamagedCapture(TypedDict):
    """A capture that could not be read to its end."""

    capture: str
    error: str


class ExternalMetric(TypedDict):
    """A time series of another tool: pairs of seconds since 1970 and value."""

    source: Literal["iperf3", "ss", "nstat", "plait"]
    subject: str
    metric: str
    unit: Literal["Mb/s", "ms", "B", "segments", ""]
    points: list[list[float]]


class Totals(TypedDict):
    """What was read besides connections."""

    packets: int
    skipped: Skipped
    unmapped_bytes: int
    unanswered_joins: int
    evicted_connections: int
    partial_connections: int
    damaged: list[DamagedCapture]
    external_metrics: list[ExternalMetric]


class Analysis(Totals):
    """The contents of captures. Connections come in the order in which they ended."""

    schema_version: int
    connections: list[Connection]
