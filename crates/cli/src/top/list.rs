//! What the user sees of a view: its order, what passes the filter, and what was before.

use std::collections::{HashMap, HashSet, VecDeque};

use super::table::{Column, connection_cell, subflow_cell};
use super::view::{ConnectionView, SubflowView, View};

/// By what connections are sorted, and their subflows among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Rate,
    Rtt,
    Retransmissions,
    Bytes,
    Token,
}

impl Order {
    pub(super) const ALL: [(Order, char, &'static str); 5] = [
        (Order::Rate, 'r', "rate"),
        (Order::Rtt, 't', "RTT"),
        (Order::Retransmissions, 'x', "retransmissions"),
        (Order::Bytes, 'b', "bytes"),
        (Order::Token, 'c', "connection"),
    ];

    pub(super) fn name(self) -> &'static str {
        Order::ALL.iter().find(|(order, ..)| *order == self).map_or("", |(.., name)| name)
    }

    /// Greater comes first.
    fn of_connection(self, view: &ConnectionView) -> f64 {
        match self {
            Order::Rate => view.sent_bps + view.received_bps,
            Order::Rtt => view.greatest_rtt().into(),
            Order::Retransmissions => view.retransmissions() as f64,
            Order::Bytes => view.subflows.iter().map(bytes).sum(),
            Order::Token => -f64::from(view.token.0),
        }
    }

    fn of_subflow(self, view: &SubflowView) -> f64 {
        match self {
            Order::Rate => view.sent_bps + view.received_bps,
            Order::Rtt => view.subflow.tcp.rtt_us.into(),
            Order::Retransmissions => view.subflow.tcp.retransmissions.into(),
            Order::Bytes => bytes(view),
            Order::Token => 0.0,
        }
    }
}

fn bytes(view: &SubflowView) -> f64 {
    let carried = plait_linux::diag::Carried::by(&view.subflow);
    (carried.bytes_sent + carried.bytes_received) as f64
}

/// The list and how it is looked at.
#[derive(Debug)]
pub(super) struct List {
    pub(super) view: View,
    pub(super) order: Order,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) typing: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// Rows scrolled past.
    pub(super) offset: usize,
    /// Bits per second of each subflow in both directions, the latest last.
    history: HashMap<u64, VecDeque<f64>>,
}

/// A row of the list.
#[derive(Clone, Copy, Debug)]
pub(super) enum Row<'a> {
    Connection(&'a ConnectionView),
    /// With the greatest rate in the history of any subflow of its connection.
    Subflow(&'a SubflowView, f64),
}

impl List {
    pub(super) fn new(view: View) -> List {
        List {
            view,
            order: Order::Rate,
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            help: false,
            offset: 0,
            history: HashMap::new(),
        }
    }

    /// Shows a newer view.
    pub(super) fn update(&mut self, view: View) {
        let subflows = view.connections.iter().flat_map(|connection| &connection.subflows);
        let present: HashSet<u64> = subflows.clone().map(|view| view.subflow.id).collect();
        self.history.retain(|id, _| present.contains(id));
        for view in subflows {
            let history = self.history.entry(view.subflow.id).or_default();
            history.push_back(view.sent_bps + view.received_bps);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
        self.view = view;
    }

    /// The rows in their order.
    pub(super) fn rows(&self) -> Vec<Row<'_>> {
        let sign = if self.reversed { -1.0 } else { 1.0 };
        let wanted = self.filter.to_lowercase();
        let matches = |cell: String| cell.to_lowercase().contains(&wanted);
        let mut connections: Vec<&ConnectionView> = self.view.connections.iter().collect();
        connections.sort_by(|a, b| {
            (sign * self.order.of_connection(b)).total_cmp(&(sign * self.order.of_connection(a)))
        });
        let mut rows = Vec::new();
        for connection in connections {
            let whole = wanted.is_empty()
                || Column::ALL.iter().any(|column| matches(connection_cell(connection, *column)));
            let fits = |view: &SubflowView| {
                whole || Column::ALL.iter().any(|column| matches(subflow_cell(view, *column)))
            };
            let mut subflows: Vec<&SubflowView> =
                connection.subflows.iter().filter(|view| fits(view)).collect();
            if subflows.is_empty() && !whole {
                continue;
            }
            subflows.sort_by(|a, b| {
                (sign * self.order.of_subflow(b)).total_cmp(&(sign * self.order.of_subflow(a)))
            });
            let histories = subflows.iter().flat_map(|view| self.history(view.subflow.id));
            let greatest = histories.fold(0.0, f64::max);
            rows.push(Row::Connection(connection));
            rows.extend(subflows.into_iter().map(|view| Row::Subflow(view, greatest)));
        }
        rows
    }

    /// What a subflow carried at the last samples, bits per second.
    pub(super) fn history(&self, id: u64) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.history.get(&id).into_iter().flatten().copied()
    }
}

/// Samples remembered: as many as the widest screen shows.
const HISTORY: usize = 60;
