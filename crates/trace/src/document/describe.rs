//! From what the analysis keeps to what documents say.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::Version;

use super::{
    Both, Checked, Closed, Connection, Counted, Damaged, Event, Exposure, Failover, Sent, Skipped, Subflow,
    Times, Totals, Window,
};
use crate::{Close, Direction, EventKind, Fallback, Protocol, Tally, Volume};

impl Direction {
    /// As documents name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientToServer => "client_to_server",
            Self::ServerToClient => "server_to_client",
        }
    }
}

impl Totals {
    /// What is to be said of captures besides their connections.
    pub fn of(totals: &crate::Totals) -> Self {
        let crate::Skipped { not_ip, not_tcp, fragments, malformed, other_side } = totals.skipped;
        Self {
            packets: totals.packets,
            skipped: Skipped { not_ip, not_tcp, fragments, malformed, other_side },
            unmapped_bytes: totals.unmapped,
            unanswered_joins: totals.unanswered_joins,
            damaged: totals
                .cut
                .iter()
                .map(|cut| Damaged { capture: cut.path.clone(), error: cut.error.to_string() })
                .collect(),
            companions: Vec::new(),
        }
    }
}

impl Connection {
    /// What is to be said of a connection.
    pub fn of(connection: &crate::Connection) -> Self {
        let subflows = &connection.subflows;
        let total = Both::of(|direction| sum(connection, direction, |tally| tally.bytes));
        let start = subflows.iter().map(|subflow| subflow.first_seen).min().unwrap_or_default();
        let end = subflows.iter().map(|subflow| subflow.last_seen).max().unwrap_or_default();
        let token = |direction| connection.token(direction).map(|token| token.to_string());
        let reinjected =
            Both::of(|direction| subflows.iter().map(move |subflow| subflow.sent(direction).reinjected));
        Self {
            id: connection.id,
            version: match connection.protocol {
                Protocol::Mptcp(Version::V0) => Some(0),
                Protocol::Mptcp(Version::V1) => Some(1),
                Protocol::Tcp => None,
            },
            partial: connection.partial,
            evicted: connection.evicted,
            fallback: connection.fallback.map(Fallback::text),
            token_client: token(Direction::ClientToServer),
            token_server: token(Direction::ServerToClient),
            start: seconds(start),
            duration_s: end.since(start).unwrap_or_default().as_secs_f64(),
            new_bytes: Both::of(|direction| sum(connection, direction, |tally| tally.new)),
            completion_s: Both::of(|direction| {
                connection.completion(direction).map(|time| time.as_secs_f64())
            }),
            aggregation_benefit: Both::of(|direction| connection.aggregation_benefit(direction)),
            reinjected: reinjected.client_to_server.chain(reinjected.server_to_client).collect(),
            subflows: (0..subflows.len()).map(|index| Subflow::of(connection, index, &total)).collect(),
            bytes: total,
            failovers: connection
                .failovers
                .iter()
                .map(|failover| Failover::of(failover, connection))
                .collect(),
            events: connection.events.iter().map(Event::of).collect(),
            events_dropped: connection.events_dropped,
        }
    }
}

fn sum(connection: &crate::Connection, direction: Direction, part: fn(&Tally) -> u64) -> u64 {
    connection.subflows.iter().map(|subflow| part(subflow.sent(direction))).sum()
}

impl Subflow {
    fn of(connection: &crate::Connection, index: usize, total: &Both<u64>) -> Self {
        let subflow = &connection.subflows[index];
        let [there, back] =
            [Direction::ClientToServer, Direction::ServerToClient].map(|way| subflow.sent(way));
        let more = if there.bytes > back.bytes { there } else { back };
        Self {
            src: subflow.client,
            dst: subflow.server,
            joined: subflow.joined,
            accepted: subflow.accepted,
            authentic: subflow.authentic,
            backup: subflow.backup,
            start: seconds(subflow.first_seen),
            duration_s: subflow.last_seen.since(subflow.first_seen).unwrap_or_default().as_secs_f64(),
            syn_rtt_ms: subflow.syn_rtt.map(milliseconds),
            close: Closed::of(subflow.close),
            bytes: Both { client_to_server: there.bytes, server_to_client: back.bytes },
            retransmitted: [there.retransmitted, back.retransmitted].into_iter().collect(),
            reinjected: [there.reinjected, back.reinjected].into_iter().collect(),
            rtt_ms: Times::of(&more.round_trips),
            directions: Both::of(|way| Sent::of(connection, index, way, *total.in_direction(way))),
        }
    }
}

impl Sent {
    fn of(connection: &crate::Connection, index: usize, direction: Direction, total: u64) -> Self {
        let tally = connection.subflows[index].sent(direction);
        let crate::Checksums { right, wrong } = tally.checksums;
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
            rtt_ms: Times::of(&tally.round_trips),
            rtt_timestamps_ms: Times::of(&tally.round_trips_by_timestamps),
            head_of_line_ms: connection.stream(direction).head_of_line(index).and_then(Times::of),
            window: tally.window.map(|crate::Window { min, max, last }| Window { min, max, last }),
            checksums: (right + wrong > 0).then_some(Checked { right, wrong }),
            exposure: connection.exposure(direction, index).into(),
        }
    }
}

impl Times {
    fn of(times: &crate::Times) -> Option<Self> {
        Some(Self {
            samples: times.count(),
            mean: milliseconds(times.mean()?),
            stddev: milliseconds(times.sigma()?),
            min: milliseconds(times.min()?),
            p50: milliseconds(times.quantile(0.5)?),
            p95: milliseconds(times.quantile(0.95)?),
            max: milliseconds(times.max()?),
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
        Self { how, by: by.map(Direction::name), reason }
    }
}

impl Failover {
    fn of(failover: &crate::Failover, connection: &crate::Connection) -> Self {
        let path = |subflow: usize| {
            let subflow = &connection.subflows[subflow];
            format!("{} -> {}", subflow.client.ip(), subflow.server.ip())
        };
        Self {
            path: path(failover.subflow),
            subflow: failover.subflow + 1,
            direction: failover.direction.name(),
            from: seconds(failover.from),
            to: failover.to.map(seconds),
            carried_again: failover.carried_again.map(seconds),
            stall_s: failover.stall.map(|stall| stall.as_secs_f64()),
            taken_over_by: failover.taken_over_by.map(path),
            taken_over_by_subflow: failover.taken_over_by.map(|subflow| subflow + 1),
            reinjected: failover.reinjected.into(),
        }
    }
}

impl Event {
    fn of(event: &crate::Event) -> Self {
        let mut found = Self {
            time: seconds(event.time),
            subflow: event.subflow + 1,
            direction: event.sender.name(),
            event: "",
            address_ids: Vec::new(),
            address: None,
            authentic: None,
            backup: None,
            reason: None,
            data_seq: None,
        };
        found.event = match &event.kind {
            EventKind::AddAddress { id, address, port, echo, authentic } => {
                found.address_ids = vec![id.0];
                found.address = Some(match port {
                    Some(port) => SocketAddr::new(*address, *port).to_string(),
                    None => address.to_string(),
                });
                found.authentic = *authentic;
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
            EventKind::Fail(data_seq) => {
                found.data_seq = Some(format!("{:016x}", data_seq.0));
                "mp_fail"
            }
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
        let Self { not_ip, not_tcp, fragments, malformed, other_side } = self;
        write!(
            f,
            "of which {not_ip} are not IP, {not_tcp} not TCP, {fragments} later fragments, {malformed} malformed"
        )?;
        if *other_side > 0 {
            write!(f, ", {other_side} in another capture too")?;
        }
        Ok(())
    }
}

fn seconds(time: Timestamp) -> f64 {
    time.0 as f64 / 1e9
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

impl From<crate::Exposure> for Exposure {
    fn from(exposure: crate::Exposure) -> Self {
        let crate::Exposure { bytes, fraction, longest_run, runs } = exposure;
        Self { bytes, fraction, longest_run, runs }
    }
}
