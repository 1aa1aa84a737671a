//! Counters of connections by outcome, shared by everything that decides about a connection.

use std::sync::atomic::{AtomicU64, Ordering};

use plait_proto::option::Mode;

use crate::report::Counts;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    protected: AtomicU64,
    plain: AtomicU64,
    refused: AtomicU64,
    rejected_identity: AtomicU64,
}

impl Counters {
    /// A connection is carried in this mode.
    pub(crate) fn carried(&self, mode: Mode) {
        let counter = if mode == Mode::Off { &self.plain } else { &self.protected };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was refused.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was refused because the peer failed or refused to authenticate.
    pub(crate) fn rejected_identity(&self) {
        self.refused();
        self.rejected_identity.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> Counts {
        Counts {
            protected: self.protected.load(Ordering::Relaxed),
            plain: self.plain.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            rejected_identity: self.rejected_identity.load(Ordering::Relaxed),
        }
    }
}
