//! How many application bytes have crossed a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::meter::Meter;

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Bytes written to the network.
    pub(crate) sent: ByteCounter,
    /// Bytes read from the network.
    pub(crate) received: ByteCounter,
    /// Whether a record has arrived in part, and its rest is waited for, not the application.
    pub(crate) waits_for_rest: AtomicBool,
    /// Mode `sealed`.
    pub(crate) key_updates: KeyUpdateCounter,
    /// Limits the bytes of this connection and others together.
    pub(crate) meter: Option<Arc<Meter>>,
}

impl Progress {
    /// Waits until more bytes may be carried than these.
    pub(super) async fn throttle(&self, bytes: usize) {
        if let Some(meter) = self.meter.as_ref().filter(|_| bytes > 0) {
            meter.carried(bytes).await;
        }
    }

    /// Completes when bytes are carried after this call.
    pub(crate) fn moved(&self) -> impl Future<Output = ()> + Send {
        let (sent, received) = (self.sent.moved.notified(), self.received.moved.notified());
        async {
            tokio::select! {
                () = sent => {}
                () = received => {}
            }
        }
    }
}

/// Key updates that gave this end new keys.
#[derive(Debug, Default)]
pub(crate) struct KeyUpdateCounter {
    of_connection: AtomicU64,
    of_gateway: Arc<AtomicU64>,
}

impl KeyUpdateCounter {
    /// Of a new connection of the gateway that this counter counts for.
    pub(crate) fn new(of_gateway: &Arc<AtomicU64>) -> KeyUpdateCounter {
        KeyUpdateCounter { of_connection: AtomicU64::default(), of_gateway: Arc::clone(of_gateway) }
    }

    /// Those of the connection.
    pub(crate) fn total(&self) -> u64 {
        self.of_connection.load(Ordering::Relaxed)
    }

    /// So many were completed by now. Returns whether they are more than before.
    pub(crate) fn completed(&self, completed: u64) -> bool {
        let before = self.of_connection.swap(completed, Ordering::Relaxed);
        self.of_gateway.fetch_add(completed - before, Ordering::Relaxed);
        completed != before
    }
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct ByteCounter {
    bytes: AtomicU64,
    first: Notify,
    moved: Notify,
}

impl ByteCounter {
    pub(crate) fn add(&self, bytes: usize) {
        if bytes > 0 {
            if self.bytes.fetch_add(bytes as u64, Ordering::Relaxed) == 0 {
                self.first.notify_one();
            }
            self.moved.notify_waiters();
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
