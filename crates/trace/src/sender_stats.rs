//! Statistics of what one side sent in a subflow.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::arrivals::Arrivals;
use crate::duration_stats::DurationStats;

/// What one side sent in one subflow, counted where it was captured. Packets that were merged by the network card count as
/// one; bytes are payload bytes, whether or not the capture contains them.
///
/// New, reinjected, repeated and unmapped bytes add up to [`bytes`](Self::bytes).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SenderStats {
    /// Packets, with and without payload.
    pub packets: u64,
    /// Payload bytes, all copies.
    pub bytes: u64,
    /// Bytes of the connection's stream that no subflow had carried before: the goodput.
    pub new: u64,
    /// Bytes of the stream that another subflow had carried before and this one had not (RFC 8684 3.3.6).
    pub reinjected: Volume,
    /// Bytes of the stream that this subflow had carried before.
    pub repeated: u64,
    /// Bytes that no DSS mapping covers.
    pub unmapped: u64,
    /// Those of them before the first byte of the subflow, which the receiver discards: keepalives, or what measures a path.
    pub discarded: u64,
    /// By TCP sequence number: bytes sent before in this subflow, or acknowledged before.
    pub retransmitted: Volume,
    /// Retransmitted bytes that had been acknowledged before: the receiver got them twice.
    pub duplicate: u64,
    /// By TCP sequence number: data captured after later data of this subflow, and not seen before: reordered, or
    /// retransmitted after a loss on the way to the capture.
    pub out_of_order: Volume,
    /// From a segment to the acknowledgement that covers it, where both passed the capture, except for segments that were
    /// retransmitted or wait for a retransmission (Karn and Partridge 1987). The round trip of the path only at the sender:
    /// [`Subflow::rtt`](crate::Subflow::rtt).
    pub ack_rtt: DurationStats,
    /// From the first segment with a timestamp to the first acknowledgement that echoes it (RFC 7323 4), likewise; empty if
    /// the option is not used.
    pub ack_rtt_timestamps: DurationStats,
    /// From an acknowledgement to the data that it allowed to be sent, by timestamps, where both passed the capture: the
    /// round trip of the path only at the receiver.
    pub(crate) echo_rtt: DurationStats,
    /// The shortest time from a timestamp to its echo by this side, whatever caused the echo.
    pub(crate) echo_min: Option<Duration>,
    /// The arrivals of this side's data at the capture nearest the receiver; `None` if that is at the sender.
    pub arrivals: Option<Arrivals>,
    /// The receive windows that this side announced, in bytes; `None` if the window scale was not captured.
    pub window: Option<Window>,
    /// DSS checksums (RFC 8684 3.3.1) of mappings that were captured completely.
    pub checksums: Checksums,
}

/// Receive windows that a side announced, in bytes.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Smallest.
    pub min: u64,
    /// Largest.
    pub max: u64,
    /// Last.
    pub last: u64,
}

impl Window {
    /// Adds an announcement.
    pub(crate) fn after(before: Option<Self>, announced: u64) -> Self {
        let Self { min, max, .. } =
            before.unwrap_or(Self { min: announced, max: announced, last: announced });
        Self { min: min.min(announced), max: max.max(announced), last: announced }
    }
}

/// DSS checksums that could be verified.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Checksums {
    /// Those that match their data.
    pub valid: u64,
    /// Those that do not: the data was modified on the way, or captured before the checksum was filled in.
    pub invalid: u64,
}

/// A number of segments and the bytes in them.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Volume {
    /// Segments.
    pub segments: u64,
    /// Payload bytes.
    pub bytes: u64,
}

impl Volume {
    /// Adds a segment of which `bytes` count, if any do.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.segments += u64::from(bytes > 0);
        self.bytes += bytes;
    }
}

impl std::iter::Sum for Volume {
    fn sum<I: Iterator<Item = Self>>(volumes: I) -> Self {
        volumes.fold(Self::default(), |sum, volume| Self {
            segments: sum.segments + volume.segments,
            bytes: sum.bytes + volume.bytes,
        })
    }
}
