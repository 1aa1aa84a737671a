use std::time::Duration;

use plait_wire::capture::Timestamp;

/// Bytes per interval of time. Intervals start at multiples of their length since 1970, so that series of different
/// captures fit together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    bins: Vec<Bin>,
}

/// One interval in which something was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Which interval: its start is `index` times its length after 1970-01-01 00:00:00 UTC.
    pub index: u64,
    /// Payload bytes that crossed.
    pub bytes: u64,
    /// Those of them that no subflow had carried before.
    pub new: u64,
}

impl Bin {
    /// When the interval starts.
    pub fn start(&self, interval: Duration) -> Timestamp {
        Timestamp(self.index.saturating_mul(nanoseconds(interval)))
    }
}

impl Series {
    /// The intervals in which anything was sent, ascending; those left out are empty.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    pub(crate) fn add(&mut self, interval: Duration, time: Timestamp, bytes: u64, new: u64) {
        let index = time.0 / nanoseconds(interval);
        let place = match self.bins.last() {
            Some(last) if last.index == index => Ok(self.bins.len() - 1),
            // Clocks of captures may go back.
            Some(last) if last.index > index => self.bins.binary_search_by_key(&index, |bin| bin.index),
            _ => Err(self.bins.len()),
        };
        let place = place.unwrap_or_else(|place| {
            self.bins.insert(place, Bin { index, bytes: 0, new: 0 });
            place
        });
        let bin = &mut self.bins[place];
        bin.bytes += bytes;
        bin.new += new;
    }
}

fn nanoseconds(interval: Duration) -> u64 {
    u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Against a map, in any order of time.
        #[test]
        fn same_as_a_map(sent in vec((0..2000u64, 0..100u64), 0..50), interval in 1..500u64) {
            let (mut series, mut map) = (Series::default(), BTreeMap::<u64, u64>::new());
            for (time, bytes) in sent {
                series.add(Duration::from_nanos(interval), Timestamp(time), bytes, bytes / 2);
                *map.entry(time / interval).or_default() += bytes;
            }
            let found: Vec<_> = series.bins().iter().map(|bin| (bin.index, bin.bytes)).collect();
            prop_assert_eq!(found, map.into_iter().collect::<Vec<_>>());
        }
    }
}
