use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use super::stalls::Stalls;

/// How the receiving program got on, by DATA_ACKs: they follow the delivery in order, wherever the capture was taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Everything before is acknowledged.
    acked: u64,
    /// When the last bytes were.
    last: Option<Timestamp>,
    /// Since when something that was sent waits to be acknowledged.
    waiting_since: Option<Timestamp>,
    stalls: Stalls<()>,
}

/// If nothing is on its way for so long, the program is taken to have had nothing to send. Beside the receiver, what
/// was lost is not seen to be on its way.
const PAUSE: Duration = Duration::from_millis(500);

impl Progress {
    /// The bytes of `range` were seen.
    #[inline]
    pub(super) fn sent(&mut self, range: &Range<u64>, time: Timestamp) {
        if range.end > self.acked && self.waiting_since.is_none() {
            let is_short = |since: &Timestamp| time.since(*since).is_some_and(|pause| pause < PAUSE);
            self.waiting_since = self.last.filter(is_short).or(Some(time));
        }
    }

    /// Everything before `position` is acknowledged, and the stream reaches `end` so far.
    #[inline]
    pub(super) fn acknowledged(&mut self, position: u64, end: u64, time: Timestamp) {
        if position <= self.acked {
            return;
        }
        // A DATA_FIN has a number behind the last byte.
        if self.acked < end {
            self.last = Some(time);
        }
        self.acked = position;
        if let Some(since) = self.waiting_since {
            self.stalls.moved_on(since, time, ());
        }
        self.waiting_since = (end > position).then_some(time);
    }

    /// When everything before `end` was acknowledged, if it was.
    pub(super) fn completed(&self, end: u64) -> Option<Timestamp> {
        self.last.filter(|_| end > 0 && self.acked >= end)
    }

    /// Counts positions from `origin` on.
    pub(super) fn rebase(&mut self, origin: u64) {
        self.acked = self.acked.saturating_sub(origin);
    }

    /// The longest time without progress that has a part in `span`, whose end may be the present.
    pub(super) fn longest_stall(&self, span: &Range<Timestamp>) -> Option<Duration> {
        self.last?;
        let past = self.stalls.longest_in(span).map(|(duration, ())| duration);
        let present = self.waiting_since.and_then(|since| span.end.since(since));
        Some(past.max(present).unwrap_or_default())
    }
}
