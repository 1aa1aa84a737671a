//! Connections that are opened, and not accepted yet.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::open::Opened;

/// An opened connection that is not accepted within this time is reset: the application has given up its socket. Should it be
/// accepted after all, it is opened again.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two checks for such connections.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A connection to be accepted.
pub(super) struct Accepting {
    since: Instant,
    pub(super) opened: Opened,
    pub(super) carried: OwnedSemaphorePermit,
    _opening: OwnedSemaphorePermit,
}

impl Accepting {
    /// `opening` and `carried`: its shares of the limits of opened and of carried connections.
    pub(super) fn new(
        opened: Opened,
        opening: OwnedSemaphorePermit,
        carried: OwnedSemaphorePermit,
    ) -> Accepting {
        Accepting { since: Instant::now(), opened, carried, _opening: opening }
    }
}

/// Opened connections, by what identifies them at the listener.
pub(super) struct OpenedConnections<K> {
    by_key: HashMap<K, Accepting>,
    by_age: VecDeque<(Instant, K)>,
}

impl<K> Default for OpenedConnections<K> {
    fn default() -> OpenedConnections<K> {
        OpenedConnections { by_key: HashMap::new(), by_age: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash> OpenedConnections<K> {
    pub(super) fn add(&mut self, key: K, accepting: Accepting) {
        self.by_age.push_back((accepting.since, key));
        self.by_key.insert(key, accepting);
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    pub(super) fn take(&mut self, key: K) -> Option<Accepting> {
        self.by_key.remove(&key)
    }

    /// Drops those that were not accepted in time.
    pub(super) fn expire(&mut self) {
        while self.by_age.front().is_some_and(|(since, _)| since.elapsed() > ACCEPT_TIMEOUT) {
            let Some((since, key)) = self.by_age.pop_front() else { return };
            // Another connection may have the same key now.
            if self.by_key.get(&key).is_some_and(|accepting| accepting.since == since) {
                self.by_key.remove(&key);
            }
        }
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        self.by_key.clear();
    }
}
