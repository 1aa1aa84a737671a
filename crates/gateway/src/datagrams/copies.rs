//! Datagrams that are sent on several paths arrive once.

use std::collections::HashSet;

/// Numbers below the highest one that are told apart.
const WINDOW: u64 = 4096;

/// The copies that have arrived.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    highest: u64,
    seen: HashSet<u64>,
}

impl Copies {
    /// Whether it is the first copy of the datagram with this number. One that is late by thousands of datagrams is none.
    pub(crate) fn is_first(&mut self, number: u64) -> bool {
        if self.highest.saturating_sub(number) >= WINDOW || !self.seen.insert(number) {
            return false;
        }
        self.highest = self.highest.max(number);
        if self.seen.len() as u64 > 2 * WINDOW {
            let highest = self.highest;
            self.seen.retain(|seen| highest - seen < WINDOW);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_and_late_copies_are_dropped() {
        let mut copies = Copies::default();
        for number in 0..20_000 {
            assert!(copies.is_first(number) && !copies.is_first(number));
        }
        assert!(!copies.is_first(19_999 - WINDOW) && copies.seen.len() as u64 <= 2 * WINDOW);
        assert!(copies.is_first(30_000) && copies.is_first(30_000 - WINDOW + 1));
    }
}
