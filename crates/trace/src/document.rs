//! What was found, as the JSON documents say it (docs/reference/json.md): times in seconds since 1970, durations as the names
//! of their fields say, counts from 1.

mod describe;

use std::net::SocketAddr;

use serde::Serialize;

use crate::Direction;
use crate::companion::Companion;

/// A connection.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Connection {
    pub id: u64,
    pub version: Option<u8>,
    pub partial: bool,
    pub evicted: bool,
    pub fallback: Option<&'static str>,
    pub token_client: Option<String>,
    pub token_server: Option<String>,
    pub start: f64,
    pub duration_s: f64,
    pub bytes: Both<u64>,
    pub new_bytes: Both<u64>,
    pub completion_s: Both<Option<f64>>,
    pub aggregation_benefit: Both<Option<f64>>,
    pub reinjected: Counted,
    pub subflows: Vec<Subflow>,
    pub failovers: Vec<Failover>,
    pub events: Vec<Event>,
    pub events_dropped: u64,
}

/// One of its subflows.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Subflow {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub joined: bool,
    pub accepted: bool,
    pub authentic: Option<bool>,
    pub backup: bool,
    pub start: f64,
    pub duration_s: f64,
    pub syn_rtt_ms: Option<f64>,
    pub close: Closed,
    pub bytes: Both<u64>,
    pub retransmitted: Counted,
    pub reinjected: Counted,
    /// Of the direction that carried more.
    pub rtt_ms: Option<Times>,
    pub directions: Both<Sent>,
}

/// What one side sent in a subflow.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Sent {
    pub packets: u64,
    pub bytes: u64,
    pub share: Option<f64>,
    pub new_bytes: u64,
    pub repeated_bytes: u64,
    pub unmapped_bytes: u64,
    pub reinjected: Counted,
    pub retransmitted: Counted,
    pub duplicate_bytes: u64,
    pub out_of_order: Counted,
    pub rtt_ms: Option<Times>,
    pub rtt_timestamps_ms: Option<Times>,
    pub head_of_line_ms: Option<Times>,
    pub window: Option<Window>,
    pub checksums: Option<Checked>,
    pub exposure: Exposure,
}

/// How much of a stream crossed a subflow or a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Exposure {
    pub bytes: u64,
    pub fraction: f64,
    pub longest_run: u64,
    pub runs: usize,
}

/// How times are spread.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Times {
    pub samples: u64,
    pub mean: f64,
    pub stddev: f64,
    pub min: f64,
    pub p50: f64,
    pub p95: f64,
    pub max: f64,
}

/// The receive windows that a side announced, in bytes.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Window {
    pub min: u64,
    pub max: u64,
    pub last: u64,
}

/// DSS checksums.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Checked {
    pub right: u64,
    pub wrong: u64,
}

/// Segments and bytes.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Counted {
    pub segments: u64,
    pub bytes: u64,
}

/// How a subflow ended.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Closed {
    pub how: &'static str,
    pub by: Option<&'static str>,
    pub reason: Option<u8>,
}

/// A path that fell silent.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Failover {
    pub path: String,
    pub subflow: usize,
    pub direction: &'static str,
    pub from: f64,
    pub to: Option<f64>,
    pub carried_again: Option<f64>,
    pub stall_s: Option<f64>,
    pub taken_over_by: Option<String>,
    pub taken_over_by_subflow: Option<usize>,
    pub reinjected: Counted,
}

/// Something that a side signalled.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Event {
    pub time: f64,
    pub subflow: usize,
    pub direction: &'static str,
    pub event: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub address_ids: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_seq: Option<String>,
}

/// What was read, behind all connections.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Totals {
    pub packets: u64,
    pub skipped: Skipped,
    pub unmapped_bytes: u64,
    pub unanswered_joins: u64,
    pub damaged: Vec<Damaged>,
    pub companions: Vec<Companion>,
}

/// Packets that count nowhere, by reason.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Skipped {
    pub not_ip: u64,
    pub not_tcp: u64,
    pub fragments: u64,
    pub malformed: u64,
    pub other_side: u64,
}

/// A capture that could not be read to its end.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Damaged {
    pub capture: String,
    pub error: String,
}

/// One for each direction.
#[derive(Clone, Copy, Debug, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Both<T> {
    pub client_to_server: T,
    pub server_to_client: T,
}

impl<T> Both<T> {
    /// One for each direction.
    pub fn of(mut value: impl FnMut(Direction) -> T) -> Self {
        let client_to_server = value(Direction::ClientToServer);
        Self { client_to_server, server_to_client: value(Direction::ServerToClient) }
    }

    /// The one of a direction.
    pub fn in_direction(&self, direction: Direction) -> &T {
        match direction {
            Direction::ClientToServer => &self.client_to_server,
            Direction::ServerToClient => &self.server_to_client,
        }
    }
}
