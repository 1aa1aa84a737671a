//! Memory after a peak of connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use plait_linux::memory;
use tokio_util::task::TaskTracker;

/// Between two checks whether a peak has passed.
const INTERVAL: Duration = Duration::from_secs(5);

/// The most tasks at once since memory was last returned, of which each connection has one or more.
#[derive(Default)]
pub(crate) struct Peak(AtomicUsize);

impl Peak {
    /// Takes note of the present number of tasks.
    pub(crate) fn record(&self, tasks: &TaskTracker) {
        self.0.fetch_max(tasks.len(), Ordering::Relaxed);
    }

    /// Returns the memory of tasks to the system once there are less than half as many as there were.
    pub(crate) async fn release_memory_after(&self, tasks: &TaskTracker) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let now = tasks.len();
            if now < self.0.load(Ordering::Relaxed) / 2 {
                memory::release_freed();
                self.0.store(now, Ordering::Relaxed);
            }
        }
    }
}
