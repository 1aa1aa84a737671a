//! Types shared by the modules of the assembly.

use plait_wire::Segment;
use plait_wire::capture::Timestamp;
use plait_wire::tcp::Flags;

use crate::connection::Connection;
use crate::interval::Interval;
use crate::path::PathId;
use crate::stream_event::StreamEvent;

/// Where and when a segment was captured.
#[derive(Clone, Copy)]
pub(crate) struct Observation {
    pub(crate) path: PathId,
    pub(crate) time: Timestamp,
}

/// A result that can no longer change.
pub(crate) enum Finished {
    Interval(Interval),
    Stream(StreamEvent),
    Connection(Box<Connection>),
}

/// Counters that belong to no connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AssemblyTotals {
    pub(crate) unmapped: u64,
    pub(crate) payload_dropped: u64,
    pub(crate) unanswered_joins: u64,
    pub(crate) evicted_connections: u64,
    pub(crate) partial_connections: u64,
    pub(crate) duplicate: u64,
}

/// How many bytes of data a segment carries: the payload of a reset is a diagnostic message (RFC 9293 3.5.3).
pub(crate) fn data_length(segment: &Segment<'_>) -> u64 {
    if segment.tcp.flags().contains(Flags::RST) { 0 } else { segment.payload_len.into() }
}
