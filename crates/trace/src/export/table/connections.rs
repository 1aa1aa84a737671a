//! The table of connections.

use super::{ConnectionRows, Table, by_direction, per_direction};
use crate::export::document::Connection;

/// One row per connection, in the order in which they ended.
#[derive(Debug)]
pub enum ConnectionTable {}

type Column = super::Column<ConnectionTable>;

impl Table for ConnectionTable {
    const NAME: &'static str = "connections";
    const ROW: &'static str =
        "an MPTCP connection, or a plain TCP connection, in the order in which they ended";
    type Row<'a> = &'a Connection;

    fn columns() -> Vec<Column> {
        let mut columns = vec![
            Column::new(
                "connection",
                "Its id, from 1 in the order in which connections were first seen.",
                |it| it.id,
            ),
            Column::new("version", "MPTCP version; null for plain TCP.", |it| it.version),
            Column::new(
                "partial",
                "Whether its opening was not captured: version, client and server may then be guesses.",
                |it| it.partial,
            ),
            Column::new("evicted", "Whether it was dropped before it ended, to bound memory.", |it| {
                it.evicted
            }),
            Column::new("fallback", "Why it uses plain TCP although MPTCP was requested.", |it| it.fallback),
            Column::new(
                "token_client",
                "The client's token (RFC 8684), hexadecimal; null if unknown.",
                |it| it.token_client.clone(),
            ),
            Column::new("token_server", "The server's token, likewise.", |it| it.token_server.clone()),
            Column::new("src_address", "The client's address in the first subflow.", |it| {
                Some(it.subflows.first()?.src.ip())
            }),
            Column::new("src_port", "The client's port there.", |it| Some(it.subflows.first()?.src.port())),
            Column::new("dst_address", "The server's address in the first subflow.", |it| {
                Some(it.subflows.first()?.dst.ip())
            }),
            Column::new("dst_port", "The server's port there.", |it| Some(it.subflows.first()?.dst.port())),
            Column::new("start", "Time of its first captured packet.", |it| it.start),
            Column::new("duration_s", "From its first to its last captured packet.", |it| it.duration_s),
            Column::new("subflows", "Number of subflows.", |it| it.subflows.len()),
            Column::new(
                "reinjected_segments",
                "Segments sent again on another subflow, both directions together.",
                |it| it.reinjected.segments,
            ),
            Column::new("reinjected_bytes", "Bytes in these segments.", |it| it.reinjected.bytes),
            Column::new("failovers", "Number of failovers.", |it| it.failovers.len()),
            Column::new("longest_stall_s", "The longest stall of its failovers; null without one.", |it| {
                it.failovers.iter().filter_map(|failover| failover.stall_s).max_by(f64::total_cmp)
            }),
            Column::new("events", "Number of MPTCP signals in the table of events.", |it| it.events.len()),
            Column::new("events_dropped", "Number of further signals.", |it| it.events_dropped),
        ];
        columns.extend(by_direction(vec![
            per_direction::<ConnectionTable, _>("bytes", "Payload bytes, all copies.", |it, direction| *it.bytes.in_direction(direction)),
            per_direction::<ConnectionTable, _>("new_bytes", "Payload bytes, each byte of the stream once.", |it, direction| *it.new_bytes.in_direction(direction)),
            per_direction::<ConnectionTable, _>(
                "completion_s",
                "From the first packet until everything sent was acknowledged; null if it was not, or if the opening was not captured.",
                |it, direction| *it.completion_s.in_direction(direction),
            ),
            per_direction::<ConnectionTable, _>(
                "aggregation_benefit",
                "Bytes carried by all subflows as a multiple of those of the best one; null if nothing was sent.",
                |it, direction| *it.aggregation_benefit.in_direction(direction),
            ),
        ]));
        columns
    }
}

impl ConnectionRows for ConnectionTable {
    fn rows(connection: &Connection) -> impl Iterator<Item = &Connection> {
        std::iter::once(connection)
    }
}
