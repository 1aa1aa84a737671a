//! Datagrams that are spread over paths, in proportion to shares.

use std::collections::BTreeMap;

use plait_proto::datagrams::{MAX_SHARE, PathId};

/// Which path is next: smooth weighted round robin, so that the datagrams of one path do not follow each other.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    credits: BTreeMap<PathId, i32>,
}

impl Spread {
    /// The path of the next datagram, of those with these shares.
    pub(crate) fn next(&mut self, shares: &[(PathId, u8)]) -> Option<PathId> {
        self.credits.retain(|path, _| shares.iter().any(|(shared, _)| shared == path));
        let mut total = 0;
        for (path, share) in shares {
            *self.credits.entry(*path).or_default() += i32::from(*share);
            total += i32::from(*share);
        }
        let (path, credit) = self.credits.iter_mut().max_by_key(|(_, credit)| **credit)?;
        *credit -= total;
        Some(*path)
    }
}

/// What a path's share loses when its queue grows, in percent.
const DECREASE: u8 = 25;

/// A path's share after a probe was answered: less when its queue grows, which delays the answer, and a little more otherwise.
pub(crate) fn share_after(share: u8, is_queued: bool) -> u8 {
    if is_queued {
        (share - (u16::from(share) * u16::from(DECREASE) / 100).max(1) as u8).max(1)
    } else {
        (share + 1).min(MAX_SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_in_proportion_and_mixed() {
        let path = |number| PathId::new(number).expect("below 16");
        let mut spread = Spread::default();
        assert_eq!(spread.next(&[]), None);
        let shares = [(path(0), 3), (path(2), 1)];
        let order: Vec<_> = (0..8).filter_map(|_| spread.next(&shares)).map(PathId::number).collect();
        assert_eq!(order.iter().filter(|number| **number == 2).count(), 2);
        assert_ne!(order[..4].iter().position(|number| *number == 2), None);
        assert_eq!(spread.next(&[(path(2), 1)]), Some(path(2)), "a path may go");
    }

    #[test]
    fn shares_stay_in_range() {
        assert_eq!(share_after(MAX_SHARE, false), MAX_SHARE);
        assert_eq!(share_after(1, true), 1);
        assert_eq!((share_after(16, true), share_after(2, true), share_after(3, false)), (12, 1, 4));
    }
}
