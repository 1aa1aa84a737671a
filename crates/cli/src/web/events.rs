//! What happened to connections, by the difference of two updates.

use std::collections::{BTreeMap, HashMap, VecDeque};

use plait_linux::mptcp::Token;
use serde::Serialize;

use super::update::{Connection, Subflow, Update};

/// Events that a page gets when it is opened.
const MAX_REMEMBERED: usize = 200;

/// Events of one update; further ones are not shown.
const MAX_AT_ONCE: usize = 50;

/// The share of a connection's bytes of a subflow whose end is a failover.
const MAIN_SHARE: f64 = 0.2;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Event {
    /// Seconds since 1970.
    time: f64,
    kind: EventKind,
    token: Token,
    program: Option<String>,
    remote: Option<String>,
    /// The path concerned; absent for a connection.
    path: Option<String>,
    /// A failover: the paths that are left.
    to: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum EventKind {
    ConnectionOpened,
    ConnectionClosed,
    SubflowOpened,
    SubflowClosed,
    /// A subflow that carried much closed or fell silent, and others are left.
    Failover,
    /// A path does not answer.
    Silent,
    /// A path answers again.
    Answers,
}

/// The connections of the last update, and the last events.
#[derive(Debug, Default)]
pub(super) struct Events {
    known: Option<BTreeMap<u32, Known>>,
    last: VecDeque<Event>,
}

#[derive(Debug)]
struct Known {
    connection: Connection,
    subflows: HashMap<u64, KnownSubflow>,
}

#[derive(Clone, Debug)]
struct KnownSubflow {
    path: String,
    silent: bool,
    /// The last share of an update in which the connection carried anything.
    share: f64,
}

impl Events {
    /// Those of a new update. The first update has none: what it shows was there before.
    pub(super) fn of(&mut self, update: &Update) -> Vec<Event> {
        let before = self.known.take();
        let mut events = Vec::new();
        let mut known = BTreeMap::new();
        for now in &update.connections {
            let old = before.as_ref().and_then(|before| before.get(&now.token.0));
            // The remains of one that has ended: what it was is known from before, if at all.
            if now.remote.is_none() {
                continue;
            }
            let event = |kind, path, to| Event::new(update.time, kind, now, path, to);
            match old {
                Some(old) => {
                    events.extend(old.changes(now).map(|(kind, path, to)| event(kind, Some(path), to)));
                }
                None if before.is_some() => events.push(event(EventKind::ConnectionOpened, None, Vec::new())),
                None => {}
            }
            let subflows = now.subflows.iter().filter(|subflow| !subflow.closed);
            let subflows = subflows.map(|subflow| (subflow.id, KnownSubflow::new(subflow, old))).collect();
            let mut connection = now.clone();
            // A program that has ended has no name any more.
            connection.program = connection.program.or_else(|| old?.connection.program.clone());
            known.insert(now.token.0, Known { connection, subflows });
        }
        for (token, old) in before.into_iter().flatten() {
            if !known.contains_key(&token) {
                let closed = EventKind::ConnectionClosed;
                events.push(Event::new(update.time, closed, &old.connection, None, Vec::new()));
            }
        }
        self.known = Some(known);
        events.truncate(MAX_AT_ONCE);
        self.last.extend(events.iter().cloned());
        self.last.drain(..self.last.len().saturating_sub(MAX_REMEMBERED));
        events
    }

    /// The last ones, oldest first.
    pub(super) fn last(&self) -> Vec<Event> {
        self.last.iter().cloned().collect()
    }
}

impl Known {
    /// What happened to its subflows: the path concerned, and those that are left after a failover.
    fn changes<'a>(&'a self, now: &'a Connection) -> impl Iterator<Item = (EventKind, &'a str, Vec<String>)> {
        let left = |without: u64| -> Vec<String> {
            let others =
                now.subflows.iter().filter(|other| other.id != without && !other.closed && !other.silent);
            let mut paths: Vec<String> = others.map(|other| other.path.clone()).collect();
            paths.sort_unstable();
            paths.dedup();
            paths
        };
        let of_present = now.subflows.iter().filter(|subflow| !subflow.closed).filter_map(move |subflow| {
            let path = subflow.path.as_str();
            match self.subflows.get(&subflow.id) {
                None => Some((EventKind::SubflowOpened, path, Vec::new())),
                Some(before) if subflow.silent && !before.silent => match left(subflow.id) {
                    left if before.share >= MAIN_SHARE && !left.is_empty() => {
                        Some((EventKind::Failover, path, left))
                    }
                    _ => Some((EventKind::Silent, path, Vec::new())),
                },
                Some(before) if !subflow.silent && before.silent => {
                    Some((EventKind::Answers, path, Vec::new()))
                }
                Some(_) => None,
            }
        });
        let is_open = |id: u64| now.subflows.iter().any(|subflow| subflow.id == id && !subflow.closed);
        let ended = self.subflows.iter().filter(move |(id, _)| !is_open(**id));
        let of_ended = ended.map(move |(id, before)| match left(*id) {
            left if before.share >= MAIN_SHARE && !before.silent && !left.is_empty() => {
                (EventKind::Failover, before.path.as_str(), left)
            }
            _ => (EventKind::SubflowClosed, before.path.as_str(), Vec::new()),
        });
        of_present.chain(of_ended)
    }
}

impl KnownSubflow {
    fn new(subflow: &Subflow, old: Option<&Known>) -> KnownSubflow {
        let before = old.and_then(|old| old.subflows.get(&subflow.id)).map_or(0.0, |before| before.share);
        // A silent subflow carries nothing; what counts is what it carried before.
        let share = if subflow.silent { None } else { subflow.share };
        KnownSubflow { path: subflow.path.clone(), silent: subflow.silent, share: share.unwrap_or(before) }
    }
}

impl Event {
    fn new(time: f64, kind: EventKind, of: &Connection, path: Option<&str>, to: Vec<String>) -> Event {
        Event {
            time,
            kind,
            token: of.token,
            program: of.program.clone(),
            remote: of.remote.map(|remote| remote.to_string()),
            path: path.map(str::to_owned),
            to,
        }
    }
}
