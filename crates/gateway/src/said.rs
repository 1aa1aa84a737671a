//! What a gateway says once, and not for every connection.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use plait_proto::sealed::{Level, MAX_PATHS};
use tokio::net::TcpStream;
use tracing::{debug, info, warn};

use crate::negotiation::Unprotected;

/// So much is remembered of each kind; what comes after that is not said.
const MAX_REMEMBERED: usize = 1024;

/// What was said.
#[derive(Default)]
pub(crate) struct Said {
    plain: Remembered<IpAddr>,
    level: Remembered<IpAddr>,
    unwitnessed: Remembered<(String, IpAddr)>,
    too_many_paths: AtomicBool,
    no_trusted_path: AtomicBool,
    stream_of_module: AtomicBool,
}

impl Said {
    /// Connections with the peer are carried plain although a mode was wanted.
    pub(crate) fn plain(&self, peer: IpAddr, reason: Unprotected) {
        let why = match reason {
            Unprotected::Off => return,
            Unprotected::Silent => "the peer does not speak plait",
            Unprotected::NoCommonMode => "the peer offers no mode in common",
            Unprotected::Fallback => "the connection fell back to TCP",
        };
        if self.plain.is_new(peer) {
            warn!("connections with {peer} are carried PLAIN: {why} (--require refuses them)");
        }
    }

    /// A connection reached this level; said when it is less than it could be, until it is not.
    pub(crate) fn level(&self, far: &TcpStream, level: Level) {
        let Ok(peer) = far.peer_addr() else { return };
        let peer = peer.ip().to_canonical();
        if level.is_full() {
            self.level.forget(&peer);
        } else if self.level.is_new(peer) {
            warn!(
                "connections with {peer} are sealed by {level} paths: whoever is active on those that witness can read \
                 them (--require=all-paths refuses them)"
            );
        }
    }

    /// There is no witness by this interface; said until there is one.
    pub(crate) fn no_witness(&self, interface: &str, peer: IpAddr, reason: &str) {
        if self.unwitnessed.is_new((interface.to_owned(), peer)) {
            warn!("no connection with {peer} by {interface}, which witnesses no other therefore: {reason}");
        } else {
            debug!("{interface} does not witness a connection with {peer}: {reason}");
        }
    }

    /// There is a witness by this interface.
    pub(crate) fn witness(&self, interface: &str, peer: IpAddr) {
        if self.unwitnessed.forget(&(interface.to_owned(), peer)) {
            info!("{interface} witnesses connections with {peer} again");
        }
    }

    /// There are more paths than a session has.
    pub(crate) fn too_many_paths(&self, configured: usize) {
        if !self.too_many_paths.swap(true, Ordering::Relaxed) {
            warn!(
                "{configured} paths are configured, and {MAX_PATHS} are counted: beside the main one the first {} \
                 interfaces that lead to the peer, as `plait paths` lists them, witness",
                MAX_PATHS - 1
            );
        }
    }

    /// A peer has no mode in common with the kernel module's `stream`.
    pub(crate) fn stream_of_module(&self) {
        if !self.stream_of_module.swap(true, Ordering::Relaxed) {
            warn!("mode stream of the kernel module is not that of gateways: use --mode xor64 with them");
        }
    }

    /// Connections begin by no path that was called trusted.
    pub(crate) fn no_trusted_path(&self) {
        if !self.no_trusted_path.swap(true, Ordering::Relaxed) {
            warn!("no trusted path is named (--trusted IFACE): the first flight goes where routing sends it");
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
    /// Whether this is to be said, since it was not before.
    fn is_new(&self, what: T) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.len() < MAX_REMEMBERED && said.insert(what)
    }

    /// It may be said again; whether it was.
    fn forget(&self, what: &T) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_are_said_once_until_they_are_over_and_within_bounds() {
        let said = Remembered::default();
        assert!(said.is_new(1) && !said.is_new(1) && said.is_new(2));
        assert!(said.forget(&1) && !said.forget(&1));
        assert!(said.is_new(1));
        (0..2000).for_each(|number| {
            said.is_new(number);
        });
        assert!(!said.is_new(5000), "what is kept is bounded");
    }
}
