use std::time::Duration;

use plait_wire::mptcp::{Key, Version};

/// How to read captures.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How much payload to keep of all connections and paths together, in bytes of memory (rounded to pages of
    /// 4 KiB). What does not fit is counted in [`Totals::payload_dropped`](crate::Totals::payload_dropped); exposure is not affected.
    pub payload_limit: u64,
    /// Keys of connections whose opening is in none of the captures, as when only a joined subflow was listened to.
    pub known: Vec<KnownKeys>,
    /// The length of the intervals that [`Sink::interval`](crate::Sink::interval) gets; `None` for none.
    pub interval: Option<Duration>,
    /// How many TCP connections may be alive at once. Beyond that those that were quiet for longest are
    /// [given up](crate::Connection::evicted), unanswered ones first.
    pub live_limit: usize,
}

impl Default for ReadOptions {
    /// Up to 1 GiB of payload, no keys, no intervals, and 4,000 live connections, which take
    /// less than 50 MB.
    fn default() -> Self {
        Self { payload_limit: 1 << 30, known: Vec::new(), interval: None, live_limit: 4_000 }
    }
}

/// The keys of a connection, known from elsewhere.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    /// The connection's version, which says how numbers are derived from keys.
    pub version: Version,
    /// The key of the side that opened it.
    pub client: Key,
    /// The key of the side that accepted it.
    pub server: Key,
}
