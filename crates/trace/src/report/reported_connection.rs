//! Connections that are part of the report.

use std::cmp::Reverse;

use serde::Serialize;

use super::series::ConnectionSeries;
use crate::export::document::Connection;

/// Maximum number of subflows, events and failovers of a connection.
pub(super) const MAX_PARTS: usize = 250;

/// A connection that is part of the report.
#[derive(Debug)]
pub(super) struct ReportedConnection {
    pub(super) connection: Connection,
    pub(super) series: ConnectionSeries,
    pub(super) omitted: OmittedParts,
}

/// Number of parts of a connection beyond [`MAX_PARTS`].
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct OmittedParts {
    subflows: usize,
    events: usize,
    failovers: usize,
}

/// Connections that are not part of the report.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct OmittedConnections {
    connections: u64,
    bytes: u64,
}

impl ReportedConnection {
    pub(super) fn new(connection: &Connection, series: ConnectionSeries) -> Self {
        let mut connection = connection.clone();
        let omitted = OmittedParts {
            subflows: truncate(&mut connection.subflows),
            events: truncate(&mut connection.events),
            failovers: truncate(&mut connection.failovers),
        };
        Self { connection, series, omitted }
    }
}

impl OmittedConnections {
    pub(super) fn count(&mut self, connection: &Connection) {
        self.connections += 1;
        self.bytes += total_bytes(connection);
    }
}

/// Sorts connections: MPTCP after plain TCP, then by bytes; of equal ones, the earlier is more important.
pub(super) fn importance(connection: &Connection) -> (bool, u64, Reverse<u64>) {
    (connection.version.is_some(), total_bytes(connection), Reverse(connection.id))
}

fn total_bytes(connection: &Connection) -> u64 {
    connection.bytes.client_to_server + connection.bytes.server_to_client
}

/// Drops the parts beyond [`MAX_PARTS`] and returns their number.
fn truncate<T>(parts: &mut Vec<T>) -> usize {
    let omitted = parts.len().saturating_sub(MAX_PARTS);
    parts.truncate(MAX_PARTS);
    parts.shrink_to_fit();
    omitted
}
