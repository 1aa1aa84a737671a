//! Limits the handshakes that run at once with one peer, so that they do not displace each other there.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use plait_proto::sealed::Limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Peers beyond which those without a handshake are forgotten.
const MAX_IDLE_PEERS: usize = 1024;

/// Handshakes by the address of the peer.
#[derive(Default)]
pub(super) struct HandshakeLimit(Mutex<HashMap<SocketAddr, Weak<Semaphore>>>);

impl HandshakeLimit {
    /// Waits until a further handshake with this peer may begin; it ends when the permit is dropped.
    pub(super) async fn acquire(&self, peer: SocketAddr) -> OwnedSemaphorePermit {
        let permits = self.permits(peer);
        permits.acquire_owned().await.expect("the semaphore is never closed")
    }

    fn permits(&self, peer: SocketAddr) -> Arc<Semaphore> {
        let mut by_peer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if by_peer.len() >= MAX_IDLE_PEERS {
            by_peer.retain(|_, permits| permits.strong_count() > 0);
        }
        let known = by_peer.entry(peer).or_default();
        known.upgrade().unwrap_or_else(|| {
            // What a responder under load leaves to a peer.
            let new = Arc::new(Semaphore::new(Limits::default().per_network));
            *known = Arc::downgrade(&new);
            new
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_has_32_handshakes_at_once() {
        let limit = HandshakeLimit::default();
        let peer = SocketAddr::from(([192, 0, 2, 1], 443));
        let mut running = Vec::new();
        for _ in 0..32 {
            running.push(limit.acquire(peer).await);
        }
        assert_eq!(limit.permits(peer).available_permits(), 0);
        let other = limit.acquire(SocketAddr::from(([192, 0, 2, 1], 80))).await;
        running.pop();
        let _next = limit.acquire(peer).await;
        drop((running, other));
        for port in 0..2 * MAX_IDLE_PEERS as u16 {
            drop(limit.acquire(SocketAddr::from(([192, 0, 2, 2], port))).await);
        }
        assert!(limit.0.lock().expect("not poisoned").len() <= MAX_IDLE_PEERS);
        assert_eq!(limit.permits(peer).available_permits(), 31);
    }
}
