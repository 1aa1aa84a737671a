//! How the end of a connection's first flight is awaited: the kernel reports it by no event, so it is polled.

use std::time::Duration;

/// A connection whose peer has sent nothing gets further subflows once it has sent this much. One that merely waits for an
/// answer has no use for them.
pub(crate) const UPLOAD_BYTES: u64 = 256 << 10;

/// Between two checks for such an upload.
pub(crate) const UPLOAD_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Between two checks whether the first flight was acknowledged: at first, and at most.
pub(crate) const POLL_INTERVAL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Pauses that double up to a limit.
pub(crate) struct Backoff {
    pause: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { pause: first, max }
    }

    pub(crate) async fn sleep(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.max);
    }
}
