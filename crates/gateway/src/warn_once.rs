//! Warnings that are logged once, or for each peer at a limited rate, and not for every connection.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plait_proto::close_reason::CloseReason;
use plait_proto::option::Mode;
use plait_proto::sealed::{Level, MAX_PATHS, peer_network};
use tokio::net::TcpStream;
use tracing::{debug, info, warn};

use crate::handshake::FailureReason;
use crate::protection::{PlainReason, different_modes};
use crate::rate_limit::RateLimit;
use crate::relay::RelayError;

const MINUTE: Duration = Duration::from_secs(60);

/// A state of connections with a peer is logged again after this long.
const STATE_INTERVAL: Duration = Duration::from_secs(3600);

/// Failed handshakes and changes of state of a peer that are logged as warnings in a minute.
const WARNINGS_PER_MINUTE: u32 = 5;

/// The warnings logged so far.
pub(crate) struct WarnOnce {
    failure: RateLimit<IpAddr>,
    invalid_record: RateLimit<IpAddr>,
    changes: RateLimit<IpAddr>,
    plain: RateLimit<IpAddr>,
    reset: RateLimit<IpAddr>,
    level: RateLimit<IpAddr>,
    unwitnessed: RateLimit<(String, IpAddr)>,
    too_many_paths: AtomicBool,
    no_trusted_path: AtomicBool,
    stream_of_module: AtomicBool,
}

impl Default for WarnOnce {
    fn default() -> WarnOnce {
        WarnOnce {
            failure: RateLimit::new(WARNINGS_PER_MINUTE, MINUTE),
            invalid_record: RateLimit::new(WARNINGS_PER_MINUTE, MINUTE),
            changes: RateLimit::new(WARNINGS_PER_MINUTE, MINUTE),
            plain: RateLimit::new(1, STATE_INTERVAL),
            reset: RateLimit::new(1, STATE_INTERVAL),
            level: RateLimit::new(1, STATE_INTERVAL),
            unwitnessed: RateLimit::new(1, STATE_INTERVAL),
            too_many_paths: AtomicBool::default(),
            no_trusted_path: AtomicBool::default(),
            stream_of_module: AtomicBool::default(),
        }
    }
}

impl WarnOnce {
    /// A handshake with a peer failed, whose main connection leaves through the `interface`, if that is known.
    pub(crate) fn handshake_failure(
        &self,
        peer: SocketAddr,
        interface: Option<&str>,
        reason: FailureReason,
        error: &dyn Display,
    ) {
        let address = peer.ip().to_canonical();
        let path = match interface {
            Some(name) => format!("the path through {name}"),
            None => format!("the path to {address}"),
        };
        let meaning = reason.meaning(&path);
        warn_at_limited_rate(&self.failure, address, &format!("{peer}: refused: {error}; {meaning}"));
    }

    /// A connection in mode `sealed` was reset because of an invalid record or a failed key update.
    pub(crate) fn invalid_record(&self, peer: SocketAddr, error: &RelayError) {
        let meaning = match error {
            RelayError::Record(_) => "; somebody on a path may be modifying the traffic",
            _ => "",
        };
        warn_at_limited_rate(&self.invalid_record, peer.ip(), &format!("{peer}: reset: {error}{meaning}"));
    }

    /// The peer's gateway ended a connection, and told why, in a record or, not authenticated, in a TCP option.
    pub(crate) fn ended_by_peer(&self, peer: SocketAddr, reason: CloseReason, is_authenticated: bool) {
        let doubt = if is_authenticated {
            String::new()
        } else {
            let path = format!("the path to {}", peer.ip());
            format!("; {}", FailureReason::RefusedByPeer.meaning(&path))
        };
        warn_at_limited_rate(
            &self.failure,
            peer.ip(),
            &format!("{peer}: its gateway ended the connection: {reason}{doubt}"),
        );
    }

    /// The peer reset an unprotected connection before it had sent a byte. `mode`: that of this gateway.
    pub(crate) fn reset_at_start(&self, peer: SocketAddr, mode: Mode) {
        if self.reset.admit(peer_network(peer.ip())).is_some() {
            warn!(
                "{peer} reset an unprotected connection before it sent anything: its service may be down, or if plait runs \
                 there, it may require a mode, which its log tells (the mode of this gateway is '{mode}')"
            );
        }
    }

    /// Connections with the peer are carried unprotected although a mode is preferred; logged again after a protected one.
    /// `mode`: that of this gateway.
    pub(crate) fn plain(&self, peer: IpAddr, mode: Mode, reason: PlainReason) {
        let why = match reason {
            PlainReason::Off => return,
            PlainReason::NotNegotiated => "the peer does not speak plait, or its mode is off".to_owned(),
            PlainReason::NoCommonMode(of_peer) => {
                format!("{}: use the same --mode on both ends", different_modes(mode, of_peer))
            }
            PlainReason::Fallback => "the connection fell back to TCP".to_owned(),
        };
        if self.has_changed(&self.plain, peer) {
            warn!("connections with {peer} are carried PLAIN: {why} (--require refuses them)");
        }
    }

    /// A connection with the peer is protected.
    pub(crate) fn protected(&self, peer: IpAddr) {
        self.plain.forget(&peer_network(peer));
    }

    /// A connection reached this level; logged again after a full level.
    pub(crate) fn level(&self, far: &TcpStream, level: Level) {
        let Ok(peer) = far.peer_addr() else { return };
        let peer = peer.ip().to_canonical();
        if level.is_full() {
            self.level.forget(&peer_network(peer));
            return;
        }
        if !self.has_changed(&self.level, peer) {
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

    /// Whether to log a peer's state. A peer that alternates between two does not fill the log.
    fn has_changed(&self, state: &RateLimit<IpAddr>, peer: IpAddr) -> bool {
        let peer = peer_network(peer);
        state.admit(peer).is_some() && self.changes.admit(peer).is_some()
    }

    /// An interface has no witness; logged again after it had one.
    pub(crate) fn no_witness(&self, interface: &str, peer: IpAddr, reason: &str) {
        if self.unwitnessed.admit((interface.to_owned(), peer)).is_some() {
            warn!("no witness connection to {peer} through {interface}: {reason}");
        } else {
            debug!("{interface} still has no witness connection to {peer}: {reason}");
        }
    }

    /// An interface has a witness.
    pub(crate) fn witness(&self, interface: &str, peer: IpAddr) {
        if self.unwitnessed.forget(&(interface.to_owned(), peer)) {
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

/// Logs a failure of a peer: as a warning if the limit admits it, with the number of those that it did not admit before.
fn warn_at_limited_rate(limit: &RateLimit<IpAddr>, peer: IpAddr, text: &str) {
    match limit.admit(peer_network(peer)) {
        Some(0) => warn!("{text}"),
        Some(more) => warn!("{text} (and {more} more failures before)"),
        None => debug!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_connections_are_logged_again_after_a_protected_one_at_a_limited_rate() {
        let (warnings, peer) = (WarnOnce::default(), IpAddr::from([192, 0, 2, 1]));
        assert!(warnings.has_changed(&warnings.plain, peer));
        assert!(!warnings.has_changed(&warnings.plain, peer));
        let again = (0..100).filter(|_| {
            warnings.protected(peer);
            warnings.has_changed(&warnings.plain, peer)
        });
        assert_eq!(again.count(), WARNINGS_PER_MINUTE as usize - 1);
    }
}
