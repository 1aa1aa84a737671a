//! Samples all connections at each interval, and sends what has changed to the open pages.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use plait_gateway::{GatewayStatus, Report, Roles};
use plait_linux::diag::Sockets;
use serde::Serialize;
use tokio::sync::broadcast;

use super::captures::Captures;
use super::events::{Event, Events};
use super::update::{Path, Update};
use crate::programs::{Programs, application_inode};
use crate::snapshot::{Snapshot, Snapshots};

/// Updates whose rates a page gets when it is opened.
const MAX_HISTORY: usize = 120;

/// Updates that wait for a page which does not read.
const MAX_UNREAD: usize = 16;

/// An update as JSON.
pub(super) type Document = Arc<str>;

/// The updates of this host, taken by a thread of their own.
pub(super) struct Sampler {
    recent: Arc<Mutex<Recent>>,
}

/// What a page gets.
pub(super) struct Subscription {
    /// What happened before the last update, as JSON.
    pub(super) past: String,
    /// The last update.
    pub(super) last: Option<Document>,
    /// Those from now on. They have rates and events that no later one repeats.
    pub(super) updates: broadcast::Receiver<Document>,
}

/// The last updates.
struct Recent {
    past: Past,
    last: Option<(PathRates, Document)>,
    updates: broadcast::Sender<Document>,
}

/// What happened before the last update.
#[derive(Debug, Default, Serialize)]
struct Past {
    paths: VecDeque<PathRates>,
    events: Vec<Event>,
}

/// The rates of all paths at one time.
#[derive(Debug, Serialize)]
struct PathRates {
    /// Seconds since 1970.
    time: f64,
    paths: Vec<PathRate>,
}

#[derive(Debug, Serialize)]
struct PathRate {
    name: String,
    sent_bps: f64,
    received_bps: f64,
    rtt_ms: Option<f64>,
}

impl Sampler {
    /// Starts in the network namespace of the calling thread. The thread ends with the process.
    pub(super) fn start(
        roles: Roles,
        interval: Duration,
        captures: Arc<Captures>,
    ) -> anyhow::Result<Sampler> {
        let mut source = Source {
            snapshots: Snapshots::start()?,
            sockets: Sockets::open().ok(),
            programs: Programs::default(),
            events: Events::default(),
            roles,
            captures,
        };
        let recent =
            Recent { past: Past::default(), last: None, updates: broadcast::Sender::new(MAX_UNREAD) };
        let recent = Arc::new(Mutex::new(recent));
        source.take(&recent)?;
        let published = Arc::clone(&recent);
        let sample = move || {
            loop {
                thread::sleep(interval);
                if let Err(error) = source.take(&published) {
                    tracing::warn!("{error:#}");
                }
            }
        };
        thread::Builder::new().name("sampler".into()).spawn(sample).context("cannot start a thread")?;
        Ok(Sampler { recent })
    }

    /// What happened before, and the updates from now on.
    pub(super) fn subscribe(&self) -> anyhow::Result<Subscription> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Subscription {
            past: serde_json::to_string(&recent.past)?,
            last: recent.last.as_ref().map(|(_, update)| Arc::clone(update)),
            updates: recent.updates.subscribe(),
        })
    }
}

impl Recent {
    /// Sends an update to the open pages. `before` are the events of all others.
    fn publish(&mut self, update: &Update, before: Vec<Event>) -> anyhow::Result<()> {
        let document = Document::from(serde_json::to_string(update).context("cannot write the update")?);
        if let Some((rates, _)) = self.last.replace((PathRates::of(update), Arc::clone(&document))) {
            self.past.paths.push_back(rates);
            if self.past.paths.len() > MAX_HISTORY {
                self.past.paths.pop_front();
            }
        }
        self.past.events = before;
        // It fails while no page is open.
        let _ = self.updates.send(document);
        Ok(())
    }
}

/// What updates are made from.
struct Source {
    snapshots: Snapshots,
    /// `None` if the kernel does not answer queries of sockets.
    sockets: Option<Sockets>,
    programs: Programs,
    events: Events,
    roles: Roles,
    captures: Arc<Captures>,
}

impl Source {
    /// Takes and publishes an update.
    fn take(&mut self, recent: &Mutex<Recent>) -> anyhow::Result<()> {
        let snapshot = self.snapshots.take()?;
        let reports = GatewayStatus::query().unwrap_or_default().reports;
        let programs = self.program_names(&snapshot, &reports);
        // None while the file that gateways write cannot be read.
        let quotas = self.roles.quotas_by_interface().unwrap_or_default();
        let roles = self.roles.by_interface();
        let mut update = Update::new(&snapshot, &reports, &roles, &quotas, self.captures.state());
        for connection in &mut update.connections {
            connection.program = programs.get(&connection.token.0).cloned();
        }
        let before = self.events.last();
        update.events = self.events.of(&update);
        update.shorten();
        recent.lock().unwrap_or_else(PoisonError::into_inner).publish(&update, before)
    }

    /// The program of each connection by its token: of those of a gateway, the one that the gateway works for.
    fn program_names(&mut self, snapshot: &Snapshot, reports: &[Report]) -> HashMap<u32, String> {
        let mut applications = HashMap::new();
        for report in reports.iter().filter(|report| report.command != "serve") {
            for connection in &report.connections {
                if let Some(token) = &connection.token {
                    applications.insert(token.as_str(), (connection.application, report.listen.as_slice()));
                }
            }
        }
        let named = snapshot.connections.iter().filter_map(|connection| {
            let application = applications.get(connection.token.to_string().as_str()).copied();
            let inode = match application {
                Some((application, listen)) => {
                    self.sockets.as_mut().and_then(|sockets| application_inode(sockets, application, listen))
                }
                None => connection.connection.as_ref().map(|connection| connection.inode),
            };
            Some((connection.token.0, self.programs.name(inode?)?))
        });
        named.collect()
    }
}

impl PathRates {
    fn of(update: &Update) -> PathRates {
        let rate = |path: &Path| PathRate {
            name: path.name.clone(),
            sent_bps: path.sent_bps,
            received_bps: path.received_bps,
            rtt_ms: path.rtt_ms,
        };
        PathRates { time: update.time, paths: update.paths.iter().map(rate).collect() }
    }
}
