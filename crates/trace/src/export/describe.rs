//! Converts the results of an analysis to documents.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use plait_wire::mptcp::Version;

use super::document::{
    Checksums, Close, Connection, DamagedCapture, DirectionStats, DurationStats, Event, Failover,
    Interarrival, Jitter, PerDirection, Skipped, Subflow, Time, Totals,
};
use crate::connection::{self, Fallback, Protocol};
use crate::direction::Direction;
use crate::event::EventKind;
use crate::moments::Moments;
use crate::sender_stats::SenderStats;

impl From<&crate::read::Totals> for Totals {
    fn from(totals: &crate::read::Totals) -> Self {
        Self {
            packets: totals.packets,
            skipped: totals.skipped,
            unmapped_bytes: totals.unmapped,
            unanswered_joins: totals.unanswered_joins,
            evicted_connections: totals.evicted_connections,
            partial_connections: totals.partial_connections,
            damaged: totals.damaged.iter().map(DamagedCapture::from).collect(),
            external_metrics: Vec::new(),
        }
    }
}

impl From<&crate::read::DamagedCapture> for DamagedCapture {
    fn from(damaged: &crate::read::DamagedCapture) -> Self {
        Self { capture: damaged.path.clone(), error: damaged.error.to_string() }
    }
}

impl From<&connection::Connection> for Connection {
    fn from(connection: &connection::Connection) -> Self {
        let subflows = &connection.subflows;
        let total = PerDirection::from_fn(|direction| sum(connection, direction, |stats| stats.bytes));
        let start = subflows.iter().map(|subflow| subflow.first_seen).min().unwrap_or_default();
        let end = subflows.iter().map(|subflow| subflow.last_seen).max().unwrap_or_default();
        let token = |direction| connection.token(direction).map(|token| token.to_string());
        let reinjected = PerDirection::from_fn(|direction| {
            subflows.iter().map(move |subflow| subflow.sent(direction).reinjected)
        });
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
            start: Time(start),
            duration_s: end.since(start).unwrap_or_default().as_secs_f64(),
            new_bytes: PerDirection::from_fn(|direction| sum(connection, direction, |stats| stats.new)),
            completion_s: PerDirection::from_fn(|direction| {
                connection.completion(direction).map(|time| time.as_secs_f64())
            }),
            aggregation_benefit: PerDirection::from_fn(|direction| connection.aggregation_benefit(direction)),
            reinjected: reinjected.client_to_server.chain(reinjected.server_to_client).sum(),
            subflows: (0..subflows.len()).map(|index| Subflow::new(connection, index, &total)).collect(),
            bytes: total,
            failovers: connection
                .failovers
                .iter()
                .map(|failover| Failover::new(failover, connection))
                .collect(),
            events: connection.events.iter().map(Event::from).collect(),
            events_dropped: connection.events_dropped,
        }
    }
}

fn sum(connection: &connection::Connection, direction: Direction, part: fn(&SenderStats) -> u64) -> u64 {
    connection.subflows.iter().map(|subflow| part(subflow.sent(direction))).sum()
}

impl Subflow {
    fn new(connection: &connection::Connection, index: usize, total: &PerDirection<u64>) -> Self {
        let subflow = &connection.subflows[index];
        let [forward, reverse] = Direction::BOTH.map(|way| subflow.sent(way));
        let more = match forward.bytes > reverse.bytes {
            true => Direction::ClientToServer,
            false => Direction::ServerToClient,
        };
        let rtt = subflow.rtt(more).or_else(|| subflow.rtt(more.reverse()));
        Self {
            src: subflow.client,
            dst: subflow.server,
            joined: subflow.joined,
            accepted: subflow.accepted,
            authentic: subflow.authentic,
            backup: subflow.backup,
            start: Time(subflow.first_seen),
            duration_s: subflow.last_seen.since(subflow.first_seen).unwrap_or_default().as_secs_f64(),
            syn_rtt_ms: subflow.syn_rtt.map(milliseconds),
            close: Close::from(subflow.close),
            bytes: PerDirection { client_to_server: forward.bytes, server_to_client: reverse.bytes },
            retransmitted: [forward.retransmitted, reverse.retransmitted].into_iter().sum(),
            reinjected: [forward.reinjected, reverse.reinjected].into_iter().sum(),
            rtt_ms: rtt.and_then(|rtt| duration_stats(rtt.times)),
            directions: PerDirection::from_fn(|way| {
                DirectionStats::new(connection, index, way, *total.in_direction(way))
            }),
        }
    }
}

impl DirectionStats {
    fn new(connection: &connection::Connection, index: usize, direction: Direction, total: u64) -> Self {
        let stats = connection.subflows[index].sent(direction);
        let rtt = connection.subflows[index].rtt(direction);
        let arrivals = stats.arrivals.as_ref();
        Self {
            packets: stats.packets,
            bytes: stats.bytes,
            share: (total > 0).then(|| stats.bytes as f64 / total as f64),
            new_bytes: stats.new,
            repeated_bytes: stats.repeated,
            unmapped_bytes: stats.unmapped,
            reinjected: stats.reinjected,
            retransmitted: stats.retransmitted,
            duplicate_bytes: stats.duplicate,
            out_of_order: stats.out_of_order,
            rtt_ms: rtt.and_then(|rtt| duration_stats(rtt.times)),
            rtt_source: rtt.map(|rtt| rtt.source),
            ack_rtt_ms: duration_stats(&stats.ack_rtt),
            ack_rtt_timestamps_ms: duration_stats(&stats.ack_rtt_timestamps),
            jitter_ms: arrivals.and_then(|arrivals| arrivals.jitter.as_ref()).map(Jitter::from),
            interarrival_ms: arrivals.and_then(|arrivals| interarrival(&arrivals.interarrival)),
            head_of_line_ms: connection.stream(direction).head_of_line(index).and_then(duration_stats),
            window: stats.window,
            checksums: Some(stats.checksums).filter(|checksums| *checksums != Checksums::default()),
            exposure: connection.exposure(direction, index),
        }
    }
}

fn duration_stats(stats: &crate::duration_stats::DurationStats) -> Option<DurationStats> {
    Some(DurationStats {
        samples: stats.count(),
        mean: milliseconds(stats.mean()?),
        stddev: milliseconds(stats.stddev()?),
        min: milliseconds(stats.min()?),
        p50: milliseconds(stats.quantile(0.5)?),
        p95: milliseconds(stats.quantile(0.95)?),
        max: milliseconds(stats.max()?),
    })
}

impl From<&crate::arrivals::Jitter> for Jitter {
    fn from(jitter: &crate::arrivals::Jitter) -> Self {
        Self {
            samples: jitter.samples(),
            mean: milliseconds(jitter.mean()),
            max: milliseconds(jitter.max()),
            last: milliseconds(jitter.last()),
        }
    }
}

fn interarrival(times: &Moments) -> Option<Interarrival> {
    Some(Interarrival {
        samples: times.count(),
        mean: milliseconds(times.mean()?),
        stddev: milliseconds(times.stddev()?),
        min: milliseconds(times.min()?),
        max: milliseconds(times.max()?),
    })
}

impl From<connection::Close> for Close {
    fn from(close: connection::Close) -> Self {
        let (kind, by, reason) = match close {
            connection::Close::Open => ("open", None, None),
            connection::Close::HalfClosed(by) => ("half_closed", Some(by), None),
            connection::Close::Fin => ("fin", None, None),
            connection::Close::Reset { by, reason } => ("reset", Some(by), reason),
            connection::Close::FastClose(by) => ("fastclose", Some(by), None),
        };
        Self { kind, by, reason }
    }
}

impl Failover {
    fn new(failover: &crate::failover::Failover, connection: &connection::Connection) -> Self {
        let path = |subflow: usize| {
            let subflow = &connection.subflows[subflow];
            format!("{} -> {}", subflow.client.ip(), subflow.server.ip())
        };
        Self {
            path: path(failover.subflow),
            subflow: failover.subflow + 1,
            direction: failover.direction,
            from: Time(failover.from),
            to: failover.to.map(Time),
            resumed: failover.resumed.map(Time),
            stall_s: failover.stall.map(|stall| stall.as_secs_f64()),
            taken_over_by: failover.taken_over_by.map(path),
            taken_over_by_subflow: failover.taken_over_by.map(|subflow| subflow + 1),
            reinjected: failover.reinjected,
        }
    }
}

impl From<&crate::event::Event> for Event {
    fn from(event: &crate::event::Event) -> Self {
        let mut found = Self {
            time: Time(event.time),
            subflow: event.subflow + 1,
            direction: event.sender,
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
        let Self { not_ip, not_tcp, fragments, malformed, duplicate } = self;
        write!(
            f,
            "of which {not_ip} not IP, {not_tcp} not TCP, {fragments} later fragments, {malformed} malformed"
        )?;
        if *duplicate > 0 {
            write!(f, ", {duplicate} duplicates from another capture")?;
        }
        Ok(())
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}
