//! The table of failovers.

use super::{ConnectionRows, Table};
use crate::export::document::{Connection, Failover};

/// One row per path that fell silent while it was needed.
#[derive(Debug)]
pub enum FailoverTable {}

type Column = super::Column<FailoverTable>;

/// A failover, and the connection's id.
type FailoverRow<'a> = (u64, &'a Failover);

impl Table for FailoverTable {
    const NAME: &'static str = "failovers";
    const ROW: &'static str = "a path that fell silent while it was needed, and how the connection went on";
    type Row<'a> = FailoverRow<'a>;

    fn columns() -> Vec<Column> {
        vec![
            Column::new("connection", "The connection's id.", |it| it.0),
            Column::new("subflow", "The number of the subflow on the silent path.", |it| it.1.subflow),
            Column::new("direction", "The direction whose data was delayed.", |it| it.1.direction),
            Column::new("path", "The silent path, `ADDRESS -> ADDRESS`.", |it| it.1.path.clone()),
            Column::new("silent_from", "Last packet from the path's far side before the silence.", |it| {
                it.1.from
            }),
            Column::new("silent_until", "First packet after it; null if the captures end before.", |it| {
                it.1.to
            }),
            Column::new(
                "resumed",
                "When data crossed the path again; null if the captures end before.",
                |it| it.1.resumed,
            ),
            Column::new(
                "stall_s",
                "Longest time in which the receiving application got nothing; null if unknown.",
                |it| it.1.stall_s,
            ),
            Column::new("taken_over_by", "The path that took over; null if none did.", |it| {
                it.1.taken_over_by.clone()
            }),
            Column::new("taken_over_by_subflow", "The number of the subflow that took over.", |it| {
                it.1.taken_over_by_subflow
            }),
            Column::new(
                "reinjected_segments",
                "Segments with data of the silent subflow that others sent again.",
                |it| it.1.reinjected.segments,
            ),
            Column::new("reinjected_bytes", "Bytes of such data.", |it| it.1.reinjected.bytes),
        ]
    }
}

impl ConnectionRows for FailoverTable {
    fn rows(connection: &Connection) -> impl Iterator<Item = FailoverRow<'_>> {
        connection.failovers.iter().map(|failover| (connection.id, failover))
    }
}
