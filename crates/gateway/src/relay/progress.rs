//! How many application bytes have crossed a connection.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Bytes written to the network.
    pub(crate) sent: ByteCounter,
    /// Bytes read from the network.
    pub(crate) received: ByteCounter,
    /// Mode `sealed`: key updates that gave this end new keys.
    pub(crate) key_updates: AtomicU64,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct ByteCounter {
    bytes: AtomicU64,
    first: Notify,
}

impl ByteCounter {
    pub(crate) fn add(&self, bytes: usize) {
        if bytes > 0 && self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) == 0 {
            self.first.notify_one();
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits for the first byte. Only one task can wait for it, once.
    pub(crate) async fn first_byte(&self) {
        self.first.notified().await;
    }
}
