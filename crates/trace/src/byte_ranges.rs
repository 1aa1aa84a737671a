//! A set of byte positions.

use std::ops::Range;

/// A set of byte positions as ascending runs that are not empty and neither overlap nor touch.
///
/// Inserting near the end, the usual case, takes constant time; elsewhere it is linear in the runs after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteRanges {
    runs: Vec<Range<u64>>,
}

impl ByteRanges {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds all positions of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // The runs that overlap or touch the range become one with it.
        let first = self.index_of_end(|end| end >= range.start);
        let behind = first + self.runs[first..].partition_point(|run| run.start <= range.end);
        if first == behind {
            self.runs.insert(first, range);
            return;
        }
        let start = range.start.min(self.runs[first].start);
        let end = range.end.max(self.runs[behind - 1].end);
        self.runs[first] = start..end;
        self.runs.drain(first + 1..behind);
    }

    /// The runs, ascending.
    pub fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// Number of positions in the set.
    pub fn total(&self) -> u64 {
        self.runs.iter().map(length).sum()
    }

    /// The length of the longest run, 0 for the empty set.
    pub fn longest_run(&self) -> u64 {
        self.runs.iter().map(length).max().unwrap_or(0)
    }

    /// Whether all positions of `range` are in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self
                .runs
                .get(self.index_of_end(|end| end > range.start))
                .is_some_and(|run| run.start <= range.start && range.end <= run.end)
    }

    /// The parts of `range` that are in the set, ascending.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs[self.index_of_end(|end| end > range.start)..]
            .iter()
            .map(move |run| run.start.max(range.start)..run.end.min(range.end))
            .take_while(|part| !part.is_empty())
    }

    /// Number of positions of `range` in the set.
    pub(crate) fn overlap(&self, range: Range<u64>) -> u64 {
        self.within(range).map(|part| length(&part)).sum()
    }

    /// The union with `other`.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        other.runs.iter().for_each(|run| union.insert(run.clone()));
        union
    }

    /// Removes and returns the first `count` runs.
    pub(crate) fn split_off_first(&mut self, count: usize) -> impl Iterator<Item = Range<u64>> + '_ {
        self.runs.drain(..count)
    }

    /// Removes the runs before `end`.
    pub(crate) fn forget_before(&mut self, end: u64) {
        let first = self.index_of_end(|run_end| run_end > end);
        self.runs.drain(..first);
    }

    /// The set relative to `origin`; positions before it are dropped.
    #[must_use]
    pub(crate) fn rebased(&self, origin: u64) -> Self {
        let runs = self.within(origin..u64::MAX).map(|run| run.start - origin..run.end - origin).collect();
        Self { runs }
    }

    /// The first run whose end satisfies `test`, as all later ones do. Checks the last runs first.
    fn index_of_end(&self, test: impl Fn(u64) -> bool) -> usize {
        match self.runs.split_last() {
            None => 0,
            Some((last, _)) if !test(last.end) => self.runs.len(),
            Some((_, before)) => match before.split_last() {
                Some((previous, _)) if test(previous.end) => before.partition_point(|run| !test(run.end)),
                _ => before.len(),
            },
        }
    }
}

impl FromIterator<Range<u64>> for ByteRanges {
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Self {
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

fn length(run: &Range<u64>) -> u64 {
    run.end - run.start
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const SIZE: u64 = 64;

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        vec((0..SIZE, 0..12u64).prop_map(|(start, length)| start..(start + length).min(SIZE)), 0..20)
    }

    fn bitmap(ranges: &[Range<u64>]) -> Vec<bool> {
        (0..SIZE).map(|position| ranges.iter().any(|range| range.contains(&position))).collect()
    }

    fn runs_of(bitmap: &[bool]) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (position, _) in bitmap.iter().enumerate().filter(|(_, set)| **set) {
            let position = position as u64;
            match runs.last_mut() {
                Some(run) if run.end == position => run.end += 1,
                _ => runs.push(position..position + 1),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn equals_a_bitmap(inserted in ranges(), other in ranges(), start in 0..SIZE, length in 0..20u64) {
            let set: ByteRanges = inserted.iter().cloned().collect();
            let bits = bitmap(&inserted);
            let runs = runs_of(&bits);
            prop_assert_eq!(set.runs(), runs.as_slice());
            prop_assert_eq!(set.total(), bits.iter().filter(|set| **set).count() as u64);
            prop_assert_eq!(set.longest_run(), runs.iter().map(|run| run.end - run.start).max().unwrap_or(0));

            let part = start..(start + length).min(SIZE);
            let in_part: Vec<bool> =
                (0..SIZE).map(|position| bits[position as usize] && part.contains(&position)).collect();
            prop_assert_eq!(set.within(part.clone()).collect::<Vec<_>>(), runs_of(&in_part));
            prop_assert_eq!(
                set.contains(&part),
                part.clone().all(|position| bits[position as usize])
            );
            let behind: Vec<bool> = bits[start as usize..].to_vec();
            prop_assert_eq!(set.rebased(start).runs, runs_of(&behind));

            let both: Vec<Range<u64>> = inserted.iter().chain(&other).cloned().collect();
            let union = set.union(&other.iter().cloned().collect());
            prop_assert_eq!(union.runs, runs_of(&bitmap(&both)));
        }
    }
}
