//! The table of MPTCP signals.

use super::{ConnectionRows, Table};
use crate::export::document::{Connection, Event};

/// One row per MPTCP signal.
#[derive(Debug)]
pub enum EventTable {}

type Column = super::Column<EventTable>;

/// An event, and the connection's id.
type EventRow<'a> = (u64, &'a Event);

impl Table for EventTable {
    const NAME: &'static str = "events";
    const ROW: &'static str = "an MPTCP signal; of each connection the first 10,000";
    type Row<'a> = EventRow<'a>;

    fn columns() -> Vec<Column> {
        vec![
            Column::new("connection", "The connection's id.", |it| it.0),
            Column::new("subflow", "The number of the subflow on which it was sent.", |it| it.1.subflow),
            Column::new("direction", "The direction in which its sender sends.", |it| it.1.direction),
            Column::new("time", "When it was captured.", |it| it.1.time),
            Column::new(
                "event",
                "`add_addr`, `add_addr_echo`, `remove_addr`, `mp_prio`, `mp_fail`, `mp_fastclose` or `mp_tcprst`.",
                |it| it.1.event,
            ),
            Column::new(
                "address_ids",
                "Address identifiers, separated by spaces; null, like all further columns, where the signal has none.",
                |it| address_ids(&it.1.address_ids),
            ),
            Column::new("address", "`ADDRESS`, or `ADDRESS:PORT` where the signal names a port.", |it| {
                it.1.address.clone()
            }),
            Column::new("authentic", "Whether its HMAC is valid.", |it| it.1.authentic),
            Column::new("backup", "Whether the subflow becomes a backup.", |it| it.1.backup),
            Column::new("reason", "Reason code of MP_TCPRST (RFC 8684 table 2).", |it| it.1.reason),
            Column::new("data_seq", "Data sequence number, hexadecimal.", |it| it.1.data_seq.clone()),
        ]
    }
}

impl ConnectionRows for EventTable {
    fn rows(connection: &Connection) -> impl Iterator<Item = EventRow<'_>> {
        connection.events.iter().map(|event| (connection.id, event))
    }
}

fn address_ids(ids: &[u8]) -> Option<String> {
    let ids: Vec<_> = ids.iter().map(u8::to_string).collect();
    (!ids.is_empty()).then(|| ids.join(" "))
}
