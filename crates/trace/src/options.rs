//! Options for reading captures.

use std::time::Duration;

/// How to read captures.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How much payload of all connections and paths to keep, in bytes of memory (rounded to pages of 4 KiB). The rest is
    /// counted in [`Totals::payload_dropped`](crate::Totals::payload_dropped); exposure is not affected.
    pub payload_limit: u64,
    /// Length of the intervals that [`Sink::interval`](crate::Sink::interval) receives; `None` for none.
    pub interval: Option<Duration>,
    /// Whether [`Sink::stream`](crate::Sink::stream) receives the data of streams, segment by segment.
    pub stream_events: bool,
    /// Maximum number of TCP connections that are alive at once. Beyond that, those that were idle longest are
    /// [evicted](crate::Connection::evicted), unanswered ones first.
    pub live_limit: usize,
}

impl Default for ReadOptions {
    /// Up to 1 GiB of payload, no intervals, and 4,000 live connections, which take
    /// less than 50 MB.
    fn default() -> Self {
        Self { payload_limit: 1 << 30, interval: None, stream_events: false, live_limit: 4_000 }
    }
}
