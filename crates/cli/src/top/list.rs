//! The state of the list: the current snapshot, sort key, filter, scroll position, and rate history.

use std::collections::{HashMap, HashSet, VecDeque};

use super::table::{Column, connection_cell, subflow_cell};
use crate::snapshot::{ConnectionSnapshot, Snapshot, SubflowSnapshot};

/// What connections are sorted by, and the subflows of each connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SortKey {
    #[default]
    Rate,
    Rtt,
    Retransmissions,
    Bytes,
    Token,
}

impl SortKey {
    pub(super) const ALL: [(SortKey, char, &'static str); 5] = [
        (SortKey::Rate, 'r', "rate"),
        (SortKey::Rtt, 't', "RTT"),
        (SortKey::Retransmissions, 'x', "retransmissions"),
        (SortKey::Bytes, 'b', "bytes"),
        (SortKey::Token, 'c', "connection"),
    ];

    pub(super) fn name(self) -> &'static str {
        SortKey::ALL.iter().find(|(sort_key, ..)| *sort_key == self).map_or("", |(.., name)| name)
    }

    /// Higher values come first.
    fn of_connection(self, view: &ConnectionSnapshot) -> f64 {
        match self {
            SortKey::Rate => view.sent_bps + view.received_bps,
            SortKey::Rtt => view.max_rtt().into(),
            SortKey::Retransmissions => view.retransmissions() as f64,
            SortKey::Bytes => view.subflows.iter().map(bytes).sum(),
            SortKey::Token => -f64::from(view.token.0),
        }
    }

    fn of_subflow(self, view: &SubflowSnapshot) -> f64 {
        match self {
            SortKey::Rate => view.sent_bps + view.received_bps,
            SortKey::Rtt => view.subflow.tcp.rtt_us.into(),
            SortKey::Retransmissions => view.subflow.tcp.retransmissions.into(),
            SortKey::Bytes => bytes(view),
            SortKey::Token => 0.0,
        }
    }
}

fn bytes(view: &SubflowSnapshot) -> f64 {
    let carried = plait_linux::diag::Carried::by(&view.subflow);
    (carried.bytes_sent + carried.bytes_received) as f64
}

/// The list as the user sees it.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) snapshot: Snapshot,
    pub(super) sort_key: SortKey,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) typing: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// The number of rows scrolled past.
    pub(super) offset: usize,
    /// Bits per second of each subflow, both directions together, newest last.
    history: HashMap<u64, VecDeque<f64>>,
}

/// A row of the list.
#[derive(Clone, Copy, Debug)]
pub(super) enum Row<'a> {
    Connection(&'a ConnectionSnapshot),
    /// With the highest rate in the history of any subflow of its connection.
    Subflow(&'a SubflowSnapshot, f64),
}

impl List {
    pub(super) fn new(snapshot: Snapshot) -> List {
        List { snapshot, ..List::default() }
    }

    /// Replaces the snapshot with a newer one.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        let subflows = snapshot.connections.iter().flat_map(|connection| &connection.subflows);
        let present: HashSet<u64> = subflows.clone().map(|view| view.subflow.id).collect();
        self.history.retain(|id, _| present.contains(id));
        for view in subflows {
            let history = self.history.entry(view.subflow.id).or_default();
            history.push_back(view.sent_bps + view.received_bps);
            if history.len() > MAX_HISTORY {
                history.pop_front();
            }
        }
        self.snapshot = snapshot;
    }

    /// The rows that match the filter, sorted.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let sign = if self.reversed { -1.0 } else { 1.0 };
        let wanted = self.filter.to_lowercase();
        let matches = |cell: String| cell.to_lowercase().contains(&wanted);
        let mut connections: Vec<&ConnectionSnapshot> = self.snapshot.connections.iter().collect();
        connections.sort_by(|a, b| {
            (sign * self.sort_key.of_connection(b)).total_cmp(&(sign * self.sort_key.of_connection(a)))
        });
        let mut rows = Vec::new();
        for connection in connections {
            let whole = wanted.is_empty()
                || Column::ALL.iter().any(|column| matches(connection_cell(connection, *column)));
            let fits = |view: &SubflowSnapshot| {
                whole || Column::ALL.iter().any(|column| matches(subflow_cell(view, *column)))
            };
            let mut subflows: Vec<&SubflowSnapshot> =
                connection.subflows.iter().filter(|view| fits(view)).collect();
            if subflows.is_empty() && !whole {
                continue;
            }
            subflows.sort_by(|a, b| {
                (sign * self.sort_key.of_subflow(b)).total_cmp(&(sign * self.sort_key.of_subflow(a)))
            });
            let histories = subflows.iter().flat_map(|view| self.history(view.subflow.id));
            let max_rate = histories.fold(0.0, f64::max);
            rows.push(Row::Connection(connection));
            rows.extend(subflows.into_iter().map(|view| Row::Subflow(view, max_rate)));
        }
        rows
    }

    /// The rate of a subflow at recent samples, in bits per second, newest last.
    pub(super) fn history(&self, id: u64) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.history.get(&id).into_iter().flatten().copied()
    }
}

/// How many samples are remembered: as many as the widest column shows.
const MAX_HISTORY: usize = 60;
