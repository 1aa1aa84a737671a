//! Counters of connections by outcome, shared by everything that decides about a connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use plait_proto::option::Mode;

use crate::handshake::FailureReason;
use crate::report::Counts;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    accepted: AtomicU64,
    protected: AtomicU64,
    plain: AtomicU64,
    /// Of `protected`: reset because of an invalid record.
    invalid_records: AtomicU64,
    /// By reason, in the order of [`FailureReason::ALL`].
    failures: [AtomicU64; FailureReason::ALL.len()],
}

impl Counters {
    /// A listener has accepted a connection.
    pub(crate) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// How many connections the listeners have accepted.
    pub(crate) fn accepted_connections(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// A connection is carried in this mode.
    pub(crate) fn carried(&self, mode: Mode) {
        let counter = if mode == Mode::Off { &self.plain } else { &self.protected };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was refused.
    pub(crate) fn refused(&self, reason: FailureReason) {
        self.failures[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A connection in mode `sealed` was reset because of an invalid record or a failed key update.
    pub(crate) fn invalid_record(&self) {
        self.invalid_records.fetch_add(1, Ordering::Relaxed);
    }

    /// Refused connections by reason.
    pub(crate) fn failures(&self) -> BTreeMap<FailureReason, u64> {
        let count = |reason: FailureReason| self.failures[reason as usize].load(Ordering::Relaxed);
        FailureReason::ALL.iter().map(|&reason| (reason, count(reason))).collect()
    }

    /// Without the key updates, which connections count.
    pub(crate) fn report(&self) -> Counts {
        let failures = self.failures();
        Counts {
            protected: self.protected.load(Ordering::Relaxed),
            plain: self.plain.load(Ordering::Relaxed),
            invalid_records: self.invalid_records.load(Ordering::Relaxed),
            key_updates: 0,
            refused: failures.values().sum(),
            rejected_identity: failures[&FailureReason::Identity],
        }
    }
}
