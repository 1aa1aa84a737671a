//! Progress of the receiving application, as DATA_ACKs show it.

use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use super::stalls::Stalls;

/// Progress of the receiving application by its DATA_ACKs, which follow reassembly wherever the capture was taken.
#[derive(Clone, Debug, Default)]
pub(super) struct DeliveryProgress {
    /// Everything before is acknowledged.
    acked: u64,
    /// When data was last acknowledged.
    last: Option<Timestamp>,
    /// Since when data has been in flight.
    waiting_since: Option<Timestamp>,
    stalls: Stalls<()>,
}

/// If no data was in flight for this long, the application is taken to have had nothing to send: at the receiver, lost data
/// in flight is not captured.
const IDLE_THRESHOLD: Duration = Duration::from_millis(500);

impl DeliveryProgress {
    /// Records that the bytes of `range` were sent.
    #[inline]
    pub(super) fn sent(&mut self, range: &Range<u64>, time: Timestamp) {
        if range.end > self.acked && self.waiting_since.is_none() {
            let is_short = |since: &Timestamp| time.since(*since).is_some_and(|pause| pause < IDLE_THRESHOLD);
            self.waiting_since = self.last.filter(is_short).or(Some(time));
        }
    }

    /// Records that everything before `position` is acknowledged; the stream ends at `end` so far.
    #[inline]
    pub(super) fn acknowledged(&mut self, position: u64, end: u64, time: Timestamp) {
        if position <= self.acked {
            return;
        }
        // A DATA_FIN has the sequence number after the last byte.
        if self.acked < end {
            self.last = Some(time);
        }
        self.acked = position;
        if let Some(since) = self.waiting_since {
            self.stalls.record(since, time, ());
        }
        self.waiting_since = (end > position).then_some(time);
    }

    /// When everything before `end` was acknowledged, if it was.
    pub(super) fn completed(&self, end: u64) -> Option<Timestamp> {
        self.last.filter(|_| end > 0 && self.acked >= end)
    }

    /// Makes positions relative to `origin`.
    pub(super) fn rebase(&mut self, origin: u64) {
        self.acked = self.acked.saturating_sub(origin);
    }

    /// The longest time without progress that overlaps with `span`; its end may be the present.
    pub(super) fn longest_stall(&self, span: &Range<Timestamp>) -> Option<Duration> {
        self.last?;
        let past = self.stalls.longest_in(span).map(|(duration, ())| duration);
        let present = self.waiting_since.and_then(|since| span.end.since(since));
        Some(past.max(present).unwrap_or_default())
    }
}
