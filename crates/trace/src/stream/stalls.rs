use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

/// Times in which something that should go on stood still, with what ended each: the latest, and of those before them
/// the longest.
#[derive(Clone, Debug)]
pub(super) struct Stalls<T> {
    kept: VecDeque<(Range<Timestamp>, T)>,
}

/// Shorter times are no stalls.
const LEAST: Duration = Duration::from_millis(50);

/// How many are remembered.
const KEPT: usize = 32;

impl<T> Default for Stalls<T> {
    fn default() -> Self {
        Self { kept: VecDeque::new() }
    }
}

impl<T> Stalls<T> {
    /// It went on at `to`, after it had stood still since `from`.
    #[inline]
    pub(super) fn moved_on(&mut self, from: Timestamp, to: Timestamp, by: T) {
        if to.since(from).is_some_and(|duration| duration >= LEAST) {
            if self.kept.len() == KEPT {
                let older = self.kept.iter().take(KEPT / 2).enumerate();
                let shortest = older.min_by_key(|(_, (stall, _))| stall.end.since(stall.start));
                self.kept.remove(shortest.map_or(0, |(index, _)| index));
            }
            self.kept.push_back((from..to, by));
        }
    }

    /// The longest of them that has a part in `span`.
    pub(super) fn longest_in(&self, span: &Range<Timestamp>) -> Option<(Duration, &T)> {
        let overlaps = |stall: &Range<Timestamp>| stall.start < span.end && span.start < stall.end;
        self.kept
            .iter()
            .filter(|(stall, _)| overlaps(stall))
            .map(|(stall, by)| (stall.end.since(stall.start).unwrap_or_default(), by))
            .max_by_key(|(duration, _)| *duration)
    }
}
