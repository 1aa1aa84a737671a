//! Columns and cells of a snapshot, for both the printed table and the full-screen view.

use std::net::SocketAddr;

use plait_linux::State;
use plait_linux::diag::Closed;

use crate::escape::escape_line;
use crate::snapshot::{ConnectionSnapshot, Snapshot, SubflowSnapshot};
use crate::stdout::aligned;

/// The columns, from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    /// The token of a connection or the interface of a subflow.
    Name,
    Addresses,
    Sent,
    Received,
    Share,
    Rtt,
    Cwnd,
    Retransmissions,
    State,
}

impl Column {
    pub(super) const ALL: [Column; 9] = [
        Column::Name,
        Column::Addresses,
        Column::Sent,
        Column::Received,
        Column::Share,
        Column::Rtt,
        Column::Cwnd,
        Column::Retransmissions,
        Column::State,
    ];

    pub(super) fn heading(self) -> &'static str {
        match self {
            Column::Name => "",
            Column::Addresses => "local > remote",
            Column::Sent => "sent",
            Column::Received => "rcvd",
            Column::Share => "share",
            Column::Rtt => "rtt ms",
            Column::Cwnd => "cwnd",
            Column::Retransmissions => "retrans",
            Column::State => "state",
        }
    }

    /// Whether the column is right-aligned.
    pub(super) fn is_numeric(self) -> bool {
        !matches!(self, Column::Name | Column::Addresses | Column::State)
    }
}

/// The cell of a connection.
pub(super) fn connection_cell(connection: &ConnectionSnapshot, column: Column) -> String {
    match column {
        Column::Name => connection.token.to_string(),
        Column::Addresses => {
            let ends = connection.connection.as_ref().map(|known| addresses(known.local, known.remote));
            ends.unwrap_or_else(|| "closed".into())
        }
        Column::Sent => si(connection.sent_bps),
        Column::Received => si(connection.received_bps),
        Column::Retransmissions => connection.retransmissions().to_string(),
        Column::Share | Column::Rtt | Column::Cwnd => String::new(),
        Column::State => connection_state(connection).join(", "),
    }
}

/// The cell of a subflow.
pub(super) fn subflow_cell(view: &SubflowSnapshot, column: Column) -> String {
    let tcp = &view.subflow.tcp;
    match column {
        Column::Name => format!("  {}", escape_line(view.subflow.interface.as_deref().unwrap_or("?"))),
        Column::Addresses => addresses(view.subflow.local, view.subflow.remote),
        Column::Sent => si(view.sent_bps),
        Column::Received => si(view.received_bps),
        Column::Share => view.share.map_or("-".into(), |share| format!("{:.0} %", share * 100.0)),
        Column::Rtt => milliseconds(tcp.rtt_us),
        Column::Cwnd => tcp.cwnd.to_string(),
        Column::Retransmissions => tcp.retransmissions.to_string(),
        Column::State => subflow_state(view).join(", "),
    }
}

/// The table as text.
pub(super) fn text(snapshot: &Snapshot) -> String {
    if snapshot.connections.is_empty() {
        return "no MPTCP connection in this network namespace\n".into();
    }
    let mut rows = vec![Column::ALL.map(|column| column.heading().to_owned())];
    for connection in &snapshot.connections {
        rows.push(Column::ALL.map(|column| connection_cell(connection, column)));
        rows.extend(connection.subflows.iter().map(|s| Column::ALL.map(|column| subflow_cell(s, column))));
    }
    let left = Column::ALL.iter().enumerate().filter(|(_, column)| !column.is_numeric());
    let lines = aligned(&rows, &left.map(|(place, _)| place).collect::<Vec<_>>()).join("\n");
    format!("{lines}\n\nsent and received in bit/s, over {:.1} s\n", snapshot.interval_s)
}

fn connection_state(view: &ConnectionSnapshot) -> Vec<String> {
    let Some(connection) = &view.connection else { return Vec::new() };
    let mut states = Vec::new();
    if connection.state != State::Established {
        states.push(state(connection.state).into());
    }
    if connection.fallback {
        states.push("fell back to TCP".into());
    }
    if let Some(bytes) = connection.bytes_reinjected.filter(|bytes| *bytes > 0) {
        states.push(format!("{}B reinjected", si_before_unit(bytes as f64)));
    }
    states
}

fn subflow_state(view: &SubflowSnapshot) -> Vec<String> {
    let subflow = &view.subflow;
    let mut states = Vec::new();
    if subflow.backup() {
        states.push("backup".into());
    }
    match subflow.closed {
        None if subflow.tcp.state != State::Established => states.push(state(subflow.tcp.state).into()),
        None => {}
        Some(Closed::Final) => states.push("closed".into()),
        Some(Closed::LastSeen) => states.push("closed, final counters unknown".into()),
    }
    if let Some(scheduling) = &view.scheduling {
        states.push(scheduling.text());
    }
    if subflow.tcp.lost > 0 {
        states.push(format!("{} lost", subflow.tcp.lost));
    }
    states
}

/// The TCP state, in words.
fn state(state: State) -> &'static str {
    match state {
        State::Established => "established",
        State::SynSent => "SYN sent",
        State::SynReceived => "SYN received",
        State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck => "closing",
        State::CloseWait => "closed by peer",
        State::TimeWait | State::Closed => "closed",
        State::Listen => "listening",
    }
}

fn addresses(local: SocketAddr, remote: SocketAddr) -> String {
    format!("{local} > {remote}")
}

/// A number with its SI prefix, to precede a unit: `48.2 M`.
pub(super) fn si_before_unit(number: f64) -> String {
    let text = si(number);
    let digits = text.trim_end_matches(char::is_alphabetic);
    format!("{digits} {}", &text[digits.len()..])
}

/// A number with three digits and an SI prefix, at most five characters.
fn si(number: f64) -> String {
    let prefixes = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)];
    let (prefix, unit) = prefixes.into_iter().find(|(_, unit)| number < 999.5 * unit).unwrap_or(("T", 1e12));
    let number = number / unit;
    match number {
        _ if prefix.is_empty() => format!("{number:.0}"),
        ..9.995 => format!("{number:.2}{prefix}"),
        ..99.95 => format!("{number:.1}{prefix}"),
        _ => format!("{number:.0}{prefix}"),
    }
}

fn milliseconds(microseconds: u32) -> String {
    let milliseconds = f64::from(microseconds) / 1000.0;
    match microseconds {
        ..10_000 => format!("{milliseconds:.2}"),
        10_000..100_000 => format!("{milliseconds:.1}"),
        _ => format!("{milliseconds:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fit_five_characters() {
        let shown = [0.0, 999.4, 999.6, 1234.0, 48_200_000.0, 99_960_000.0, 2.5e9].map(si);
        assert_eq!(shown, ["0", "999", "1.00k", "1.23k", "48.2M", "100M", "2.50G"]);
    }
}
