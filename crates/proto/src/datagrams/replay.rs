//! Which packets were received before (RFC 6479).

/// Numbers below the highest one that are told apart.
pub const WINDOW: u64 = 2048;

const BITS: u64 = u64::BITS as u64;

/// One word more than the window has, so that it slides by whole words.
const WORDS: usize = (WINDOW / BITS) as usize + 1;

/// The numbers received on one path.
#[derive(Debug)]
pub(super) struct ReplayWindow {
    /// The highest number so far, plus one.
    next: u64,
    /// How many there are.
    count: u64,
    seen: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> ReplayWindow {
        ReplayWindow { next: 0, count: 0, seen: [0; WORDS] }
    }
}

impl ReplayWindow {
    /// Whether a number is new. Those below the window may be old.
    pub(super) fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        let (word, bit) = position(number);
        self.next - number <= WINDOW && self.seen[word] & bit == 0
    }

    /// Remembers a number; returns whether it is new.
    pub(super) fn admit(&mut self, number: u64) -> bool {
        if !self.is_new(number) {
            return false;
        }
        if number >= self.next {
            let last = self.next.saturating_sub(1) / BITS;
            let skipped = (number / BITS - last).min(WORDS as u64);
            for word in last + 1..=last + skipped {
                self.seen[(word % WORDS as u64) as usize] = 0;
            }
            self.next = number + 1;
        }
        let (word, bit) = position(number);
        self.seen[word] |= bit;
        self.count += 1;
        true
    }

    /// How many numbers below the highest one were not received.
    pub(super) fn missing(&self) -> u64 {
        self.next - self.count
    }
}

fn position(number: u64) -> (usize, u64) {
    ((number / BITS % WORDS as u64) as usize, 1 << (number % BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_admitted_once() {
        let mut window = ReplayWindow::default();
        for number in [0, 1, 5, 3, 2047, 2048, 2] {
            assert!(window.admit(number), "{number}");
            assert!(!window.admit(number), "{number} again");
        }
        assert!(!window.is_new(0) && window.is_new(4));
        assert!(window.admit(1 << 40));
        assert!(!window.is_new(2049) && !window.is_new((1 << 40) - WINDOW));
        assert!(window.is_new((1 << 40) - WINDOW + 1));
        assert!(!window.admit(u64::MAX));
    }

    proptest! {
        /// The definition: a number is new if it was not admitted and is at most the window below the highest one.
        #[test]
        fn agrees_with_a_set(start in 0..u64::MAX / 2, steps in prop::collection::vec(0..3 * WINDOW, 1..2000)) {
            let (mut window, mut admitted) = (ReplayWindow::default(), BTreeSet::new());
            for (at, step) in steps.iter().enumerate() {
                let number = start + at as u64 * 40 + step;
                let new = !admitted.contains(&number)
                    && admitted.last().is_none_or(|highest| number > *highest || highest - number < WINDOW);
                prop_assert_eq!(window.is_new(number), new);
                prop_assert_eq!(window.admit(number), new);
                if new {
                    admitted.insert(number);
                }
            }
        }
    }
}
