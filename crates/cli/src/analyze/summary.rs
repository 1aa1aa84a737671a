//! What was found, as the JSON document says it (docs/json.md).

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use plait_trace::{Close, Connections, Direction, EventKind, Protocol, RoundTrips, Tally, Volume};
use plait_wire::capture::Timestamp;
use plait_wire::mptcp::Version;
use serde::Serialize;

/// The whole document.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) connections: Vec<Connection>,
    pub(super) packets: u64,
    pub(super) skipped: Skipped,
    /// Payload of no known place in any stream.
    pub(super) unmapped_bytes: u64,
    pub(super) damaged: Vec<Damaged>,
}

#[derive(Serialize)]
pub(super) struct Skipped {
    not_ip: u64,
    not_tcp: u64,
    fragments: u64,
    malformed: u64,
}

#[derive(Serialize)]
pub(super) struct Damaged {
    pub(super) capture: String,
    pub(super) error: String,
}

#[derive(Serialize)]
pub(super) struct Connection {
    pub(super) id: usize,
    pub(super) version: Option<u8>,
    pub(super) partial: bool,
    pub(super) fallback: Option<&'static str>,
    token_client: Option<String>,
    token_server: Option<String>,
    start: f64,
    pub(super) duration_s: f64,
    pub(super) bytes: Both<u64>,
    pub(super) new_bytes: Both<u64>,
    pub(super) reinjected: Counted,
    pub(super) subflows: Vec<Subflow>,
    pub(super) events: Vec<Event>,
    events_dropped: u64,
}

#[derive(Serialize)]
pub(super) struct Subflow {
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) joined: bool,
    pub(super) accepted: bool,
    pub(super) backup: bool,
    start: f64,
    duration_s: f64,
    pub(super) syn_rtt_ms: Option<f64>,
    pub(super) close: Closed,
    bytes: Both<u64>,
    retransmitted: Counted,
    reinjected: Counted,
    /// Of the direction that carried more.
    rtt_ms: Option<Rtt>,
    pub(super) directions: Both<Sent>,
}

#[derive(Serialize)]
pub(super) struct Sent {
    packets: u64,
    pub(super) bytes: u64,
    /// Of the connection's bytes in this direction; nothing of nothing.
    pub(super) share: Option<f64>,
    new_bytes: u64,
    repeated_bytes: u64,
    unmapped_bytes: u64,
    pub(super) reinjected: Counted,
    pub(super) retransmitted: Counted,
    duplicate_bytes: u64,
    out_of_order: Counted,
    pub(super) rtt_ms: Option<Rtt>,
    rtt_timestamps_ms: Option<Rtt>,
    pub(super) exposure: Exposure,
}

#[derive(Serialize)]
pub(super) struct Exposure {
    bytes: u64,
    pub(super) fraction: f64,
    longest_run: u64,
    runs: usize,
}

#[derive(Clone, Serialize)]
pub(super) struct Rtt {
    samples: u64,
    pub(super) mean: f64,
    pub(super) stddev: f64,
    min: f64,
    pub(super) p50: f64,
    pub(super) p95: f64,
    max: f64,
}

#[derive(Serialize)]
pub(super) struct Counted {
    pub(super) segments: u64,
    pub(super) bytes: u64,
}

#[derive(Serialize)]
pub(super) struct Closed {
    pub(super) how: &'static str,
    pub(super) by: Option<&'static str>,
    pub(super) reason: Option<u8>,
}

#[derive(Serialize)]
pub(super) struct Event {
    pub(super) time: f64,
    pub(super) subflow: usize,
    pub(super) direction: &'static str,
    pub(super) event: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) address_ids: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<u8>,
}

#[derive(Serialize)]
pub(super) struct Both<T> {
    pub(super) client_to_server: T,
    pub(super) server_to_client: T,
}

impl<T> Both<T> {
    fn of(mut value: impl FnMut(Direction) -> T) -> Self {
        let client_to_server = value(Direction::ClientToServer);
        Self { client_to_server, server_to_client: value(Direction::ServerToClient) }
    }
}

/// A direction, as JSON and CSV name it.
pub(super) fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::ClientToServer => "client_to_server",
        Direction::ServerToClient => "server_to_client",
    }
}

impl Summary {
    pub(super) fn of(found: &Connections) -> Self {
        let capture = |id| found.paths().find(|(path, _)| *path == id).map(|(_, path)| path.name.clone());
        let plait_trace::Skipped { not_ip, not_tcp, fragments, malformed } = found.skipped;
        Self {
            connections: found
                .connections
                .iter()
                .zip(1..)
                .map(|(connection, id)| Connection::of(connection, id))
                .collect(),
            packets: found.packets,
            skipped: Skipped { not_ip, not_tcp, fragments, malformed },
            unmapped_bytes: found.unmapped,
            damaged: found
                .cut
                .iter()
                .map(|cut| Damaged {
                    capture: capture(cut.path).unwrap_or_default(),
                    error: cut.error.to_string(),
                })
                .collect(),
        }
    }
}

impl Connection {
    fn of(connection: &plait_trace::Connection, id: usize) -> Self {
        let subflows = &connection.subflows;
        let total = Both::of(|direction| sum(connection, direction, |tally| tally.bytes));
        let start = subflows.iter().map(|subflow| subflow.first_seen).min().unwrap_or_default();
        let end = subflows.iter().map(|subflow| subflow.last_seen).max().unwrap_or_default();
        let token = |direction| connection.token(direction).map(|token| format!("{:08x}", token.0));
        let zero = subflows.iter().map(|subflow| subflow.sent(Direction::ClientToServer).reinjected);
        let other = subflows.iter().map(|subflow| subflow.sent(Direction::ServerToClient).reinjected);
        Self {
            id,
            version: match connection.protocol {
                Protocol::Mptcp(Version::V0) => Some(0),
                Protocol::Mptcp(Version::V1) => Some(1),
                Protocol::Tcp => None,
            },
            partial: connection.partial,
            fallback: connection.fell_back.then_some("no MP_CAPABLE in the SYN/ACK"),
            token_client: token(Direction::ClientToServer),
            token_server: token(Direction::ServerToClient),
            start: seconds(start),
            duration_s: duration(start, end),
            reinjected: zero.chain(other).collect(),
            subflows: (0..subflows.len()).map(|index| Subflow::of(connection, index, &total)).collect(),
            new_bytes: Both::of(|direction| sum(connection, direction, |tally| tally.new)),
            bytes: total,
            events: connection.events.iter().map(Event::of).collect(),
            events_dropped: connection.events_dropped,
        }
    }
}

fn sum(connection: &plait_trace::Connection, direction: Direction, part: fn(&Tally) -> u64) -> u64 {
    connection.subflows.iter().map(|subflow| part(subflow.sent(direction))).sum()
}

impl Subflow {
    fn of(connection: &plait_trace::Connection, index: usize, total: &Both<u64>) -> Self {
        let subflow = &connection.subflows[index];
        let [there, back] =
            [Direction::ClientToServer, Direction::ServerToClient].map(|way| subflow.sent(way));
        let more = if there.bytes > back.bytes { there } else { back };
        Self {
            src: subflow.client,
            dst: subflow.server,
            joined: subflow.joined,
            accepted: subflow.accepted,
            backup: subflow.backup,
            start: seconds(subflow.first_seen),
            duration_s: duration(subflow.first_seen, subflow.last_seen),
            syn_rtt_ms: subflow.syn_rtt.map(milliseconds),
            close: Closed::of(subflow.close),
            bytes: Both { client_to_server: there.bytes, server_to_client: back.bytes },
            retransmitted: [there.retransmitted, back.retransmitted].into_iter().collect(),
            reinjected: [there.reinjected, back.reinjected].into_iter().collect(),
            rtt_ms: Rtt::of(&more.round_trips),
            directions: Both {
                client_to_server: Sent::of(
                    connection,
                    index,
                    Direction::ClientToServer,
                    total.client_to_server,
                ),
                server_to_client: Sent::of(
                    connection,
                    index,
                    Direction::ServerToClient,
                    total.server_to_client,
                ),
            },
        }
    }
}

impl Sent {
    fn of(connection: &plait_trace::Connection, index: usize, direction: Direction, total: u64) -> Self {
        let tally = connection.subflows[index].sent(direction);
        let plait_trace::Exposure { bytes, fraction, longest_run, runs } =
            connection.exposure(direction, index);
        Self {
            packets: tally.packets,
            bytes: tally.bytes,
            share: (total > 0).then(|| tally.bytes as f64 / total as f64),
            new_bytes: tally.new,
            repeated_bytes: tally.repeated,
            unmapped_bytes: tally.unmapped,
            reinjected: tally.reinjected.into(),
            retransmitted: tally.retransmitted.into(),
            duplicate_bytes: tally.duplicate,
            out_of_order: tally.out_of_order.into(),
            rtt_ms: Rtt::of(&tally.round_trips),
            rtt_timestamps_ms: Rtt::of(&tally.round_trips_by_timestamps),
            exposure: Exposure { bytes, fraction, longest_run, runs },
        }
    }
}

impl Rtt {
    fn of(trips: &RoundTrips) -> Option<Self> {
        Some(Self {
            samples: trips.count(),
            mean: milliseconds(trips.mean()?),
            stddev: milliseconds(trips.sigma()?),
            min: milliseconds(trips.min()?),
            p50: milliseconds(trips.quantile(0.5)?),
            p95: milliseconds(trips.quantile(0.95)?),
            max: milliseconds(trips.max()?),
        })
    }
}

impl From<Volume> for Counted {
    fn from(Volume { segments, bytes }: Volume) -> Self {
        Self { segments, bytes }
    }
}

impl FromIterator<Volume> for Counted {
    fn from_iter<T: IntoIterator<Item = Volume>>(volumes: T) -> Self {
        let mut sum = Volume::default();
        volumes.into_iter().for_each(|volume| sum += volume);
        sum.into()
    }
}

impl Closed {
    fn of(close: Close) -> Self {
        let (how, by, reason) = match close {
            Close::Open => ("open", None, None),
            Close::HalfClosed(by) => ("half_closed", Some(by), None),
            Close::Fin => ("fin", None, None),
            Close::Reset { by, reason } => ("reset", Some(by), reason),
            Close::FastClose(by) => ("fastclose", Some(by), None),
        };
        Self { how, by: by.map(name), reason }
    }
}

impl Event {
    fn of(event: &plait_trace::Event) -> Self {
        let mut found = Self {
            time: seconds(event.time),
            subflow: event.subflow + 1,
            direction: name(event.sender),
            event: "",
            address_ids: Vec::new(),
            address: None,
            backup: None,
            reason: None,
        };
        found.event = match &event.kind {
            EventKind::AddAddress { id, address, port, echo } => {
                found.address_ids = vec![id.0];
                found.address = Some(match port {
                    Some(port) => SocketAddr::new(*address, *port).to_string(),
                    None => address.to_string(),
                });
                if *echo { "add_addr_echo" } else { "add_addr" }
            }
            EventKind::RemoveAddress(ids) => {
                found.address_ids = ids.iter().map(|id| id.0).collect();
                "remove_addr"
            }
            EventKind::Priority { backup, id } => {
                found.backup = Some(*backup);
                found.address_ids = id.iter().map(|id| id.0).collect();
                "mp_prio"
            }
            EventKind::Fail(_) => "mp_fail",
            EventKind::FastClose => "mp_fastclose",
            EventKind::Reset { reason } => {
                found.reason = Some(*reason);
                "mp_tcprst"
            }
        };
        found
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { not_ip, not_tcp, fragments, malformed } = self;
        write!(
            f,
            "of which {not_ip} are not IP, {not_tcp} not TCP, {fragments} later fragments, {malformed} malformed"
        )
    }
}

fn seconds(time: Timestamp) -> f64 {
    time.0 as f64 / 1e9
}

fn duration(start: Timestamp, end: Timestamp) -> f64 {
    end.since(start).unwrap_or_default().as_secs_f64()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}
