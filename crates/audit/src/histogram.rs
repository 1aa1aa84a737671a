//! Byte frequencies, and whether they look random.

/// Counts of each byte value.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: [u64; 256],
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; 256], total: 0 }
    }
}

/// The [excess coincidence](Histogram::excess_coincidence) tolerated in random bytes: encrypted records have a few bytes
/// of framing.
const MAX_EXCESS: f64 = 0.05;

impl Histogram {
    pub(crate) fn add(&mut self, bytes: impl IntoIterator<Item = u8>) {
        for byte in bytes {
            self.counts[usize::from(byte)] += 1;
            self.total += 1;
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, other)| *count += other);
        self.total += other.total;
    }

    /// The number of bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The number of printable ASCII and white space bytes.
    pub(crate) fn printable(&self) -> u64 {
        let printable = (0..=u8::MAX).filter(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t'));
        printable.map(|byte| self.counts[usize::from(byte)]).sum()
    }

    /// The index of coincidence, normalised by that of random bytes, minus one: about 0 for random bytes, 15 for English,
    /// 255 for zeros. It equals Pearson's chi-square statistic, minus its mean for random bytes, per byte.
    pub(crate) fn excess_coincidence(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let total = self.total as f64;
        let expected = total / 256.0;
        let chi_square: f64 =
            self.counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum();
        (chi_square - 255.0) / total
    }

    /// Whether the bytes are as uniform as random ones: within five standard deviations of chi-square with 255 degrees of
    /// freedom, plus [`MAX_EXCESS`].
    pub(crate) fn looks_random(&self) -> bool {
        let deviation = (2.0 * 255.0_f64).sqrt() / (self.total.max(1) as f64);
        self.excess_coincidence() < MAX_EXCESS + 5.0 * deviation
    }

    /// Shannon entropy in bits per byte, 0 to 8, with the Miller–Madow correction for small samples.
    pub(crate) fn entropy(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let total = self.total as f64;
        let seen = self.counts.iter().filter(|count| **count > 0);
        let plain: f64 = seen.clone().map(|count| *count as f64 / total).map(|p| -p * p.log2()).sum();
        let correction = (seen.count() as f64 - 1.0) / (2.0 * total * std::f64::consts::LN_2);
        (plain + correction).clamp(0.0, 8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::{Mode, classify};
    use plait_proto::codec::xor64::{Encoder, Seed};

    const PROSE: &[u8] = include_bytes!("../../../tests/data/prose.txt");

    fn histogram(bytes: &[u8]) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add(bytes.iter().copied());
        histogram
    }

    fn deltas(bytes: &[u8]) -> Histogram {
        histogram(&bytes.windows(2).map(|pair| pair[0] ^ pair[1]).collect::<Vec<_>>())
    }

    /// Every value equally often.
    fn uniform(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 167 + at / 256 * 31) as u8).collect()
    }

    #[test]
    fn statistics_of_known_sources() {
        assert!(histogram(&uniform(25_600)).looks_random());
        assert!((histogram(&uniform(25_600)).entropy() - 8.0).abs() < 0.01);
        assert!(!histogram(PROSE).looks_random());
        assert!(
            (4.0..4.7).contains(&histogram(PROSE).entropy()),
            "English has between 4 and 4.7 bits per byte"
        );
        assert!((histogram(&[0; 1000]).excess_coincidence() - 255.0).abs() < 1.0);
        assert_eq!(histogram(&[0; 1000]).entropy(), 0.0);
    }

    #[test]
    fn classifies_prose_as_off_and_scrambled_prose_as_xor64() {
        let mut scrambled = PROSE.to_vec();
        Encoder::new(&Seed::new(b"any seed").expect("8 bytes")).encode_in_place(&mut scrambled);
        for (length, places) in [(200, 40), (500, 20), (1400, 10), (20_000, 1)] {
            for place in 0..places {
                let part = 200 + place * 400..200 + place * 400 + length;
                let judge =
                    |bytes: &[u8]| classify(&histogram(&bytes[part.clone()]), &deltas(&bytes[part.clone()]));
                assert_eq!(judge(PROSE), Mode::Off, "{length} bytes from {}", part.start);
                assert_eq!(judge(&scrambled), Mode::Xor64, "{length} bytes from {}", part.start);
            }
        }
        assert_eq!(classify(&histogram(&PROSE[..50]), &deltas(&PROSE[..50])), Mode::Unknown);
    }
}
