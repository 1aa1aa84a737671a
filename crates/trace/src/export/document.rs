//! The JSON document of an analysis (`plait analyze --json`, `analysis.json`).
//!
//! These structs are the document's definition: `docs/reference/schema/analysis.schema.json` is generated from them and
//! from their doc comments. Times are in seconds since 1970, durations in the unit of their name; connections and
//! subflows count from 1. Fields may be added.

use std::net::SocketAddr;

use plait_wire::capture::Timestamp;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::direction::Direction;
use crate::external_metrics::ExternalMetric;

pub use crate::connection::RttSource;
pub use crate::exposure::Exposure;
pub use crate::read::Skipped;
pub use crate::sender_stats::{Checksums, Volume, Window};

/// What captures contain: their connections and subflows. docs/guide/analyze.md defines what is counted.
///
/// Only the schema is derived from this struct; [`JsonWriter`](super::JsonWriter) writes the document piece by piece.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Analysis {
    /// In the order in which they ended.
    pub connections: Vec<Connection>,
    #[serde(flatten)]
    #[expect(missing_docs, reason = "its fields are part of this object")]
    pub totals: Totals,
}

/// An MPTCP connection with all of its subflows, or a plain TCP connection.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Connection {
    /// Counts from 1 in the order in which connections were first seen.
    #[schemars(range(min = 1))]
    pub id: u64,
    /// MPTCP version; null for plain TCP.
    #[schemars(range(max = 1))]
    pub version: Option<u8>,
    /// Whether its opening was not captured: version, client and server may then be guesses.
    pub partial: bool,
    /// Whether it was dropped before it ended, to bound memory.
    pub evicted: bool,
    /// Why it uses plain TCP although MPTCP was requested.
    pub fallback: Option<&'static str>,
    /// The client's token (RFC 8684), hexadecimal; null if unknown.
    #[schemars(regex(pattern = "^[0-9a-f]{8}$"))]
    pub token_client: Option<String>,
    /// The server's token, likewise.
    #[schemars(regex(pattern = "^[0-9a-f]{8}$"))]
    pub token_server: Option<String>,
    /// Time of its first captured packet.
    #[schemars(with = "f64")]
    pub start: Time,
    /// From its first to its last captured packet.
    #[schemars(range(min = 0.0))]
    pub duration_s: f64,
    /// Payload bytes, all copies.
    pub bytes: PerDirection<u64>,
    /// Payload bytes, each byte of the stream once.
    pub new_bytes: PerDirection<u64>,
    /// From the first packet until everything sent was acknowledged; null if it was not, or if the opening was not captured.
    pub completion_s: PerDirection<Option<f64>>,
    /// Bytes carried by all subflows as a multiple of those of the best one; null if nothing was sent.
    pub aggregation_benefit: PerDirection<Option<f64>>,
    /// Data sent again on another subflow, both directions together.
    pub reinjected: Volume,
    /// In the order in which they were first seen.
    #[schemars(length(min = 1))]
    pub subflows: Vec<Subflow>,
    /// Paths that fell silent while they were needed.
    pub failovers: Vec<Failover>,
    /// MPTCP signals; the first 10,000.
    pub events: Vec<Event>,
    /// Events beyond the first 10,000.
    pub events_dropped: u64,
}

/// A TCP connection that carries a connection or a part of one.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Subflow {
    /// The connection's client in this subflow, `ADDRESS:PORT`.
    #[schemars(with = "String")]
    pub src: SocketAddr,
    /// The connection's server in this subflow.
    #[schemars(with = "String")]
    pub dst: SocketAddr,
    /// Whether it was opened with MP_JOIN.
    pub joined: bool,
    /// Whether the peer accepted it; otherwise it is an attempt.
    pub accepted: bool,
    /// Whether the HMACs of its join are valid; null where that is unknown.
    pub authentic: Option<bool>,
    /// Whether a side requested backup priority, at its opening or with the last MP_PRIO.
    pub backup: bool,
    /// Time of its first captured packet.
    #[schemars(with = "f64")]
    pub start: Time,
    /// From its first to its last captured packet.
    #[schemars(range(min = 0.0))]
    pub duration_s: f64,
    /// Round-trip time of the three-way handshake; null if it was not captured or was retransmitted.
    pub syn_rtt_ms: Option<f64>,
    /// How it ended.
    pub close: Close,
    /// Payload bytes, all copies.
    pub bytes: PerDirection<u64>,
    /// Both directions together.
    pub retransmitted: Volume,
    /// Both directions together.
    pub reinjected: Volume,
    /// Round-trip times of the path, measured with the data of the direction that carried more, or else of the other; null
    /// if the captures do not show them.
    pub rtt_ms: Option<DurationStats>,
    /// What each side sent.
    pub directions: PerDirection<DirectionStats>,
}

/// What one side sent in a subflow. New, repeated, unmapped and reinjected bytes add up to `bytes`.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DirectionStats {
    /// Packets, with and without payload.
    pub packets: u64,
    /// Payload bytes, all copies.
    pub bytes: u64,
    /// Share of the connection's bytes in this direction; null if there are none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub share: Option<f64>,
    /// Bytes that no subflow had carried before: the goodput.
    pub new_bytes: u64,
    /// Bytes of the stream that this subflow had carried before.
    pub repeated_bytes: u64,
    /// Bytes that no DSS mapping covers.
    pub unmapped_bytes: u64,
    /// Data that another subflow had carried before and this one had not.
    pub reinjected: Volume,
    /// Data sent again by TCP sequence number.
    pub retransmitted: Volume,
    /// Retransmitted bytes that had already been acknowledged.
    pub duplicate_bytes: u64,
    /// Data captured after data with higher sequence numbers, and not seen before.
    pub out_of_order: Volume,
    /// Round-trip times of the path, measured with this data; null if the capture was taken between the ends, or where is
    /// unknown.
    pub rtt_ms: Option<DurationStats>,
    /// `acks`: measured at the sender, from segments to the acknowledgements that cover them. `timestamps`: measured at the
    /// receiver, from acknowledgements to the data that they allowed to be sent.
    pub rtt_source: Option<RttSource>,
    /// From segments to the acknowledgements that cover them at the place of the capture, wherever that is.
    pub ack_rtt_ms: Option<DurationStats>,
    /// The same by TCP timestamps.
    pub ack_rtt_timestamps_ms: Option<DurationStats>,
    /// Interarrival jitter (RFC 3550 6.4.1) at the capture nearest the receiver, by TCP timestamps; null if that is at the
    /// sender, or without timestamps.
    pub jitter_ms: Option<Jitter>,
    /// Times between consecutive packets with data, likewise. Their standard deviation is the jitter of a flow that is sent
    /// periodically.
    pub interarrival_ms: Option<Interarrival>,
    /// Head-of-line blocking: how long its data waited for earlier data of another subflow.
    pub head_of_line_ms: Option<DurationStats>,
    /// Receive windows that this side announced; null if the window scale is unknown.
    pub window: Option<Window>,
    /// DSS checksums that could be verified; null if there were none.
    pub checksums: Option<Checksums>,
    /// How much of the stream crossed this subflow.
    pub exposure: Exposure,
}

/// Distribution of durations, in milliseconds.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DurationStats {
    /// Number of samples.
    #[schemars(range(min = 1))]
    pub samples: u64,
    /// Arithmetic mean.
    #[schemars(range(min = 0.0))]
    pub mean: f64,
    /// Population standard deviation.
    #[schemars(range(min = 0.0))]
    pub stddev: f64,
    /// Minimum.
    #[schemars(range(min = 0.0))]
    pub min: f64,
    /// Median, at most 0.8 % too high.
    #[schemars(range(min = 0.0))]
    pub p50: f64,
    /// 95th percentile, at most 0.8 % too high.
    #[schemars(range(min = 0.0))]
    pub p95: f64,
    /// Maximum.
    #[schemars(range(min = 0.0))]
    pub max: f64,
}

/// Interarrival jitter (RFC 3550 6.4.1), in milliseconds.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Jitter {
    /// Number of packets after the first.
    #[schemars(range(min = 1))]
    pub samples: u64,
    /// Mean over all packets.
    #[schemars(range(min = 0.0))]
    pub mean: f64,
    /// Maximum over all packets.
    #[schemars(range(min = 0.0))]
    pub max: f64,
    /// After the last packet.
    #[schemars(range(min = 0.0))]
    pub last: f64,
}

/// Times between arrivals, in milliseconds.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Interarrival {
    /// Number of packets after the first.
    #[schemars(range(min = 1))]
    pub samples: u64,
    /// Arithmetic mean.
    #[schemars(range(min = 0.0))]
    pub mean: f64,
    /// Population standard deviation.
    #[schemars(range(min = 0.0))]
    pub stddev: f64,
    /// Minimum.
    #[schemars(range(min = 0.0))]
    pub min: f64,
    /// Maximum.
    #[schemars(range(min = 0.0))]
    pub max: f64,
}

/// How a subflow ended.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Close {
    /// `open`: not within the capture.
    #[schemars(extend("enum" = ["open", "half_closed", "fin", "reset", "fastclose"]))]
    pub kind: &'static str,
    /// The direction in which the side that closed it sends.
    pub by: Option<Direction>,
    /// Reason code of MP_TCPRST (RFC 8684 table 2).
    pub reason: Option<u8>,
}

/// A path that fell silent while it was needed, and how the connection went on.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Failover {
    /// The silent path, `ADDRESS -> ADDRESS`.
    pub path: String,
    /// The subflow on it, counting from 1.
    #[schemars(range(min = 1))]
    pub subflow: usize,
    /// The direction whose data was delayed.
    pub direction: Direction,
    /// Last packet from the path's far side before the silence.
    #[schemars(with = "f64")]
    pub from: Time,
    /// First packet after it; null if the captures end before.
    #[schemars(with = "Option<f64>")]
    pub to: Option<Time>,
    /// When data crossed the path again; null if the captures end before.
    #[schemars(with = "Option<f64>")]
    pub resumed: Option<Time>,
    /// Longest time in which the receiving application got nothing; null if unknown.
    #[schemars(range(min = 0.0))]
    pub stall_s: Option<f64>,
    /// The path that took over; null if none did.
    pub taken_over_by: Option<String>,
    /// The subflow that took over, counting from 1.
    #[schemars(range(min = 1))]
    pub taken_over_by_subflow: Option<usize>,
    /// Data of the silent subflow that others sent again.
    pub reinjected: Volume,
}

/// An MPTCP signal.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Event {
    /// When it was captured.
    #[schemars(with = "f64")]
    pub time: Time,
    /// The subflow on which it was sent, counting from 1.
    #[schemars(range(min = 1))]
    pub subflow: usize,
    /// The direction in which its sender sends.
    pub direction: Direction,
    /// The MPTCP option.
    #[schemars(extend("enum" = [
        "add_addr", "add_addr_echo", "remove_addr", "mp_prio", "mp_fail", "mp_fastclose", "mp_tcprst"
    ]))]
    pub event: &'static str,
    /// Address identifiers; present only where the signal has them, like all fields below.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub address_ids: Vec<u8>,
    /// `ADDRESS`, or `ADDRESS:PORT` where the signal names a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether its HMAC is valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentic: Option<bool>,
    /// Whether the subflow becomes a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<bool>,
    /// Reason code of MP_TCPRST (RFC 8684 table 2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<u8>,
    /// Data sequence number, hexadecimal.
    #[schemars(regex(pattern = "^[0-9a-f]{16}$"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_seq: Option<String>,
}

/// What was read besides connections.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Totals {
    /// Packets in all captures.
    pub packets: u64,
    /// Packets that were not counted, by reason.
    pub skipped: Skipped,
    /// Payload bytes that no DSS mapping covers, but those before the first byte of a subflow.
    pub unmapped_bytes: u64,
    /// Joins that named no known connection, or one with too many subflows, and were not accepted.
    pub unanswered_joins: u64,
    /// Connections dropped before they ended, because too many were alive. What they sent later counts as another connection,
    /// which is partial.
    pub evicted_connections: u64,
    /// Connections whose opening was not captured.
    pub partial_connections: u64,
    /// Captures that are damaged; they were read up to the damage.
    pub damaged: Vec<DamagedCapture>,
    /// What other tools measured during the capture, if their output was given.
    pub external_metrics: Vec<ExternalMetric>,
}

/// A capture that could not be read to its end.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DamagedCapture {
    /// Its file name.
    pub capture: String,
    /// What is wrong with it.
    pub error: String,
}

/// A time to the nanosecond; in the document, seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl Time {
    /// Seconds since 1970, to some 200 ns.
    pub fn seconds(self) -> f64 {
        self.0.0 as f64 / 1e9
    }

    /// Seconds since another time, negative before it.
    pub fn seconds_since(self, other: Self) -> f64 {
        (i128::from(self.0.0) - i128::from(other.0.0)) as f64 / 1e9
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.seconds())
    }
}

/// A value for each direction.
#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
#[schemars(rename = "PerDirection_{T}")]
#[expect(missing_docs, reason = "the names of the fields are the directions")]
pub struct PerDirection<T> {
    pub client_to_server: T,
    pub server_to_client: T,
}

impl<T> PerDirection<T> {
    /// Calls `value` once for each direction.
    pub fn from_fn(mut value: impl FnMut(Direction) -> T) -> Self {
        let client_to_server = value(Direction::ClientToServer);
        Self { client_to_server, server_to_client: value(Direction::ServerToClient) }
    }

    /// The value of a direction.
    pub fn in_direction(&self, direction: Direction) -> &T {
        match direction {
            Direction::ClientToServer => &self.client_to_server,
            Direction::ServerToClient => &self.server_to_client,
        }
    }
}
