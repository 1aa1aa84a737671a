//! Distribution of durations in bounded memory.

use std::time::Duration;

use crate::moments::Moments;

/// Distribution of durations, such as round-trip times.
///
/// Mean, standard deviation, minimum and maximum are exact. Percentiles are at most 0.8 % too high, so that memory does not
/// grow with the number of samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DurationStats {
    moments: Moments,
    /// Number of samples by [`bucket_of`]; a missing page is all zero.
    pages: Vec<Option<Box<Page>>>,
}

/// The buckets of a power of two.
type Page = [u64; 1 << SUB_BITS];

/// Each power of two is divided into 2^7 buckets.
const SUB_BITS: u32 = 7;

impl DurationStats {
    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.moments.count()
    }

    /// Arithmetic mean; `None` without samples, as for all below.
    pub fn mean(&self) -> Option<Duration> {
        self.moments.mean()
    }

    /// Population standard deviation.
    pub fn stddev(&self) -> Option<Duration> {
        self.moments.stddev()
    }

    /// Minimum.
    pub fn min(&self) -> Option<Duration> {
        self.moments.min()
    }

    /// Maximum.
    pub fn max(&self) -> Option<Duration> {
        self.moments.max()
    }

    /// The smallest value that a fraction `quantile` (0 to 1) of the samples does not exceed: 0.5 for the median.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((quantile * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut passed = 0;
        let pages = self.pages.iter().enumerate().filter_map(|(page, counts)| Some((page, counts.as_ref()?)));
        let mut buckets = pages.flat_map(|(page, counts)| (page << SUB_BITS..).zip(counts.iter()));
        let (bucket, _) = buckets.find(|(_, count)| {
            passed += **count;
            passed >= rank
        })?;
        Some(Duration::from_nanos(last_of(bucket as u64)).clamp(self.min()?, self.max()?))
    }

    pub(crate) fn add(&mut self, sample: Duration) {
        let nanoseconds = u64::try_from(sample.as_nanos()).unwrap_or(u64::MAX);
        self.moments.add(nanoseconds);
        let bucket = bucket_of(nanoseconds);
        let (page, place) = (bucket >> SUB_BITS, bucket & ((1 << SUB_BITS) - 1));
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        self.pages[page].get_or_insert_with(|| Box::new([0; 1 << SUB_BITS]))[place] += 1;
    }
}

/// Less than 58 pages of buckets.
fn bucket_of(value: u64) -> usize {
    // Values below 2^8 have a bucket each.
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

/// The largest value of a bucket.
fn last_of(bucket: u64) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let mantissa = bucket - (shift << SUB_BITS);
    (mantissa << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a sorted list of all samples.
        #[test]
        fn equals_a_sorted_list(
            mut samples in vec(prop_oneof![0..300u64, 0..5_000_000_000u64], 1..200),
            quantile in 0.01..1.0f64,
        ) {
            let mut times = DurationStats::default();
            samples.iter().for_each(|sample| times.add(Duration::from_nanos(*sample)));
            samples.sort_unstable();
            let count = samples.len();
            let mean = samples.iter().sum::<u64>() as f64 / count as f64;
            let variance =
                samples.iter().map(|sample| (*sample as f64 - mean).powi(2)).sum::<f64>() / count as f64;
            let nanoseconds = |value: Option<Duration>| value.expect("samples").as_nanos() as f64;
            prop_assert!((nanoseconds(times.mean()) - mean).abs() <= 1.0);
            prop_assert!((nanoseconds(times.stddev()) - variance.sqrt()).abs() <= 1.0 + 1e-6 * variance.sqrt());
            prop_assert_eq!(nanoseconds(times.min()), samples[0] as f64);
            prop_assert_eq!(nanoseconds(times.max()), samples[count - 1] as f64);
            let exact = samples[(quantile * count as f64).ceil() as usize - 1] as f64;
            let found = nanoseconds(times.quantile(quantile));
            prop_assert!(exact <= found && found <= exact * 1.008, "{} for {}", found, exact);
        }
    }

    #[test]
    fn every_value_has_a_bucket() {
        for value in [0, 1, 127, 128, 255, 256, u64::MAX / 2, u64::MAX] {
            assert!(last_of(bucket_of(value) as u64) >= value);
        }
    }

    #[test]
    fn has_no_statistics_without_samples() {
        let none = DurationStats::default();
        assert_eq!(
            (none.mean(), none.stddev(), none.min(), none.max(), none.quantile(0.5)),
            Default::default()
        );
    }
}
