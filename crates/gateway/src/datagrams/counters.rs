//! What the datagrams of a gateway came to, since its start.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plait_proto::datagrams::{MAX_PATHS, Opener, PathId};

use crate::report::{DatagramPathReport, DatagramReport};

/// The counters of all sessions.
#[derive(Debug, Default)]
pub(crate) struct DatagramCounters {
    associations: AtomicU64,
    by_path: Mutex<BTreeMap<String, Arc<PathCounters>>>,
}

/// Those of a path.
#[derive(Debug, Default)]
pub(crate) struct PathCounters {
    sent: Counter,
    received: Counter,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Counter {
    datagrams: AtomicU64,
    bytes: AtomicU64,
}

/// An association, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedAssociation(Arc<DatagramCounters>);

/// The losses of a session's paths that were counted already.
#[derive(Debug, Default)]
pub(crate) struct CountedLosses([AtomicU64; MAX_PATHS]);

impl DatagramCounters {
    /// Counts an association.
    pub(crate) fn association(self: &Arc<Self>) -> CountedAssociation {
        self.associations.fetch_add(1, Ordering::Relaxed);
        CountedAssociation(Arc::clone(self))
    }

    /// The counters of the path with this name.
    pub(crate) fn path(&self, name: &str) -> Arc<PathCounters> {
        let mut by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_path.entry(name.to_owned()).or_default())
    }

    pub(crate) fn report(&self) -> DatagramReport {
        let by_path = self.by_path.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = by_path.iter().map(|(name, path)| (name.clone(), path.report())).collect();
        DatagramReport { associations: self.associations.load(Ordering::Relaxed), paths }
    }
}

impl Drop for CountedAssociation {
    fn drop(&mut self) {
        self.0.associations.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PathCounters {
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.add(bytes);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received.add(bytes);
    }

    fn report(&self) -> DatagramPathReport {
        let [sent, sent_bytes, received, received_bytes, lost] = [
            &self.sent.datagrams,
            &self.sent.bytes,
            &self.received.datagrams,
            &self.received.bytes,
            &self.lost,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        DatagramPathReport { sent, sent_bytes, received, received_bytes, lost }
    }
}

impl Counter {
    fn add(&self, bytes: usize) {
        self.datagrams.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl CountedLosses {
    /// Counts the packets of a path that the other end has sent and that have not arrived. Fewer are missing when one is late.
    pub(crate) fn count(&self, opener: &Opener, path: PathId, counters: &PathCounters) {
        let missing = opener.missing(path);
        let before = self.0[usize::from(path.number())].swap(missing, Ordering::Relaxed);
        counters.lost.fetch_add(missing.wrapping_sub(before), Ordering::Relaxed);
    }
}
