//! Warnings that are logged once, and not for every connection.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use plait_proto::sealed::{Level, MAX_PATHS};
use tokio::net::TcpStream;
use tracing::{debug, info, warn};

use crate::protection::PlainReason;

/// Entries remembered of each kind; once reached, nothing new is logged.
const MAX_REMEMBERED: usize = 1024;

/// The warnings logged so far.
#[derive(Default)]
pub(crate) struct WarnOnce {
    plain: Remembered<IpAddr>,
    level: Remembered<IpAddr>,
    unwitnessed: Remembered<(String, IpAddr)>,
    too_many_paths: AtomicBool,
    no_trusted_path: AtomicBool,
    stream_of_module: AtomicBool,
}

impl WarnOnce {
    /// Connections with the peer are carried unprotected although a mode is preferred.
    pub(crate) fn plain(&self, peer: IpAddr, reason: PlainReason) {
        let why = match reason {
            PlainReason::Off => return,
            PlainReason::NotNegotiated => "the peer does not speak plait",
            PlainReason::NoCommonMode => "the peer offers no common mode",
            PlainReason::Fallback => "the connection fell back to TCP",
        };
        if self.plain.insert(peer) {
            warn!("connections with {peer} are carried PLAIN: {why} (--require refuses them)");
        }
    }

    /// A connection reached this level; logged again after a full level.
    pub(crate) fn level(&self, far: &TcpStream, level: Level) {
        let Ok(peer) = far.peer_addr() else { return };
        let peer = peer.ip().to_canonical();
        if level.is_full() {
            self.level.remove(&peer);
            return;
        }
        if !self.level.insert(peer) {
            return;
        }
        if level.is_single() {
            warn!(
                "connections with {peer} are sealed (single path): an attacker active on it can read them, unless the peer's \
                 key is verified (--require=paths:2 refuses them)"
            );
        } else {
            warn!(
                "connections with {peer} are sealed by {level} paths: an attacker active on the witnessed paths can read \
                 them (--require=all-paths refuses them)"
            );
        }
    }

    /// An interface has no witness; logged again after it had one.
    pub(crate) fn no_witness(&self, interface: &str, peer: IpAddr, reason: &str) {
        if self.unwitnessed.insert((interface.to_owned(), peer)) {
            warn!("no witness connection to {peer} through {interface}: {reason}");
        } else {
            debug!("{interface} still has no witness connection to {peer}: {reason}");
        }
    }

    /// An interface has a witness.
    pub(crate) fn witness(&self, interface: &str, peer: IpAddr) {
        if self.unwitnessed.remove(&(interface.to_owned(), peer)) {
            info!("witness connections to {peer} through {interface} work again");
        }
    }

    /// More paths are configured than a session can have.
    pub(crate) fn too_many_paths(&self, configured: usize) {
        if !self.too_many_paths.swap(true, Ordering::Relaxed) {
            warn!(
                "{configured} paths are configured, but a session has at most {MAX_PATHS}: the main one, and the first {} \
                 interfaces with a route to the peer, in the order of `plait paths`",
                MAX_PATHS - 1
            );
        }
    }

    /// A peer has no mode in common with the kernel module's `stream`.
    pub(crate) fn stream_of_module(&self) {
        if !self.stream_of_module.swap(true, Ordering::Relaxed) {
            warn!(
                "the kernel module's mode stream differs from that of gateways: use --mode xor64 with them"
            );
        }
    }

    /// No interface is trusted.
    pub(crate) fn no_trusted_path(&self) {
        if !self.no_trusted_path.swap(true, Ordering::Relaxed) {
            warn!(
                "no trusted path is configured (--trusted IFACE): routing decides where the first flight goes"
            );
        }
    }
}

struct Remembered<T>(Mutex<HashSet<T>>);

impl<T> Default for Remembered<T> {
    fn default() -> Remembered<T> {
        Remembered(Mutex::default())
    }
}

impl<T: Eq + Hash> Remembered<T> {
    /// Whether it is new, and so to be logged.
    fn insert(&self, item: T) -> bool {
        let mut items = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        items.len() < MAX_REMEMBERED && items.insert(item)
    }

    /// Allows it to be logged again; returns whether it had been.
    fn remove(&self, item: &T) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_items_until_removed_and_within_bounds() {
        let remembered = Remembered::default();
        assert!(remembered.insert(1) && !remembered.insert(1) && remembered.insert(2));
        assert!(remembered.remove(&1) && !remembered.remove(&1));
        assert!(remembered.insert(1));
        (0..2000).for_each(|number| {
            remembered.insert(number);
        });
        assert!(!remembered.insert(5000), "memory is bounded");
    }
}
