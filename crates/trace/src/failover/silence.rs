//! Tracks whether the sides of a subflow respond to each other.

use std::time::Duration;

use plait_wire::capture::Timestamp;

/// Whether one side of a subflow responds to the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseState {
    /// Its last segment.
    pub(crate) last_heard: Option<Timestamp>,
    /// Since when the peer has been waiting for it.
    pub(crate) awaited_since: Option<Timestamp>,
    /// The first data that the peer has sent since this side was last heard.
    pub(crate) first_sent: Option<Timestamp>,
    /// The last such data, and the number of unanswered bursts.
    last_sent: Timestamp,
    unanswered: u32,
}

/// Shorter silences are ordinary losses: a retransmission follows after 0.2 s or more (RFC 6298 2.4 requires 1 s, Linux
/// uses 0.2 s), and the next after twice that.
pub(crate) const MIN_SILENCE: Duration = Duration::from_millis(500);

/// A silence lasts at least this many round trips.
pub(crate) const MIN_SILENCE_RTTS: u32 = 4;

/// Data sent within this time is one burst.
const BURST: Duration = Duration::from_millis(100);

/// After this many unanswered bursts, at least one retransmission was lost too.
const MAX_UNANSWERED: u32 = 3;

impl ResponseState {
    /// Records a segment from this side and returns the state before it. `awaited`: the peer still waits for an
    /// acknowledgement of older data.
    pub(crate) fn heard(&mut self, time: Timestamp, awaited: bool) -> Self {
        let awaited_since = awaited.then_some(time);
        let now =
            Self { last_heard: Some(time), awaited_since, first_sent: None, last_sent: time, unanswered: 0 };
        std::mem::replace(self, now)
    }

    /// Records data from the peer, which has to be acknowledged.
    pub(crate) fn sent(&mut self, time: Timestamp) {
        if self.first_sent.is_none() {
            self.first_sent = Some(time);
            // The clock may have been set back.
            self.awaited_since = Some(self.awaited_since.unwrap_or(time).min(time));
        }
        if self.unanswered == 0 || time.since(self.last_sent).is_some_and(|since| since >= BURST) {
            (self.last_sent, self.unanswered) = (time, self.unanswered + 1);
        }
    }

    /// Whether retransmissions went unanswered, too.
    pub(crate) fn is_unresponsive(&self) -> bool {
        self.unanswered >= MAX_UNANSWERED
    }
}
