//! The longest spans without progress.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

/// Spans without progress, and what ended each: the most recent ones, and the longest of those before.
#[derive(Clone, Debug)]
pub(super) struct Stalls<T> {
    kept: VecDeque<(Range<Timestamp>, T)>,
}

/// Shorter spans are not stalls.
const MIN_STALL: Duration = Duration::from_millis(50);

/// Maximum number kept.
const MAX_STALLS: usize = 32;

impl<T> Default for Stalls<T> {
    fn default() -> Self {
        Self { kept: VecDeque::new() }
    }
}

impl<T> Stalls<T> {
    /// Records progress at `to`, the first since `from`.
    #[inline]
    pub(super) fn record(&mut self, from: Timestamp, to: Timestamp, by: T) {
        if to.since(from).is_some_and(|duration| duration >= MIN_STALL) {
            if self.kept.len() == MAX_STALLS {
                let older = self.kept.iter().take(MAX_STALLS / 2).enumerate();
                let shortest = older.min_by_key(|(_, (stall, _))| stall.end.since(stall.start));
                self.kept.remove(shortest.map_or(0, |(index, _)| index));
            }
            self.kept.push_back((from..to, by));
        }
    }

    /// The longest stall that overlaps with `span`.
    pub(super) fn longest_in(&self, span: &Range<Timestamp>) -> Option<(Duration, &T)> {
        let overlaps = |stall: &Range<Timestamp>| stall.start < span.end && span.start < stall.end;
        self.kept
            .iter()
            .filter(|(stall, _)| overlaps(stall))
            .map(|(stall, by)| (stall.end.since(stall.start).unwrap_or_default(), by))
            .max_by_key(|(duration, _)| *duration)
    }
}
