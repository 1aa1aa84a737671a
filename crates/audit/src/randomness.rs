//! Whether bytes look random.

/// How often each byte value occurs.
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

/// How uneven bytes may be that look random: encrypted records with their few bytes of framing are.
const EVEN: f64 = 0.05;

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

    /// How many bytes were counted.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// How many of them are printable ASCII or white space.
    pub(crate) fn text(&self) -> u64 {
        let of_text = (0..=u8::MAX).filter(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\r' | b'\t'));
        of_text.map(|byte| self.counts[usize::from(byte)]).sum()
    }

    /// The chance that two bytes of the same source agree, as a multiple of 1/256, less one: about 0 of random bytes,
    /// 15 of English, 255 of zeros. It is Pearson's chi-square, less its mean for random bytes, per byte.
    pub(crate) fn unevenness(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let total = self.total as f64;
        let expected = total / 256.0;
        let chi_square: f64 =
            self.counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum();
        (chi_square - 255.0) / total
    }

    /// Whether the bytes are as even as random ones: within five standard deviations of chi-square with 255 degrees of
    /// freedom, or nearly.
    pub(crate) fn looks_random(&self) -> bool {
        let deviation = (2.0 * 255.0_f64).sqrt() / (self.total.max(1) as f64);
        self.unevenness() < EVEN + 5.0 * deviation
    }

    /// Shannon's entropy in bits a byte, 0 to 8, with Miller's correction for few bytes.
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
    use crate::mode::{Mode, judged};
    use plait_proto::xor64::{Encoder, Seed};

    const PROSE: &[u8] = include_bytes!("../../../tests/data/prose.txt");

    fn histogram(bytes: &[u8]) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add(bytes.iter().copied());
        histogram
    }

    fn steps(bytes: &[u8]) -> Histogram {
        histogram(&bytes.windows(2).map(|pair| pair[0] ^ pair[1]).collect::<Vec<_>>())
    }

    /// Every value as often: as even as can be.
    fn even(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 167 + at / 256 * 31) as u8).collect()
    }

    #[test]
    fn figures_of_known_sources() {
        assert!(histogram(&even(25_600)).looks_random());
        assert!((histogram(&even(25_600)).entropy() - 8.0).abs() < 0.01);
        assert!(!histogram(PROSE).looks_random());
        assert!((4.0..4.7).contains(&histogram(PROSE).entropy()), "as English has");
        assert!((histogram(&[0; 1000]).unevenness() - 255.0).abs() < 1.0);
        assert_eq!(histogram(&[0; 1000]).entropy(), 0.0);
    }

    #[test]
    fn modes_are_told_by_their_bytes() {
        let mut scrambled = PROSE.to_vec();
        Encoder::new(&Seed::new(b"any seed").expect("8 bytes")).encode_in_place(&mut scrambled);
        for (length, places) in [(200, 40), (500, 20), (1400, 10), (20_000, 1)] {
            for place in 0..places {
                let part = 200 + place * 400..200 + place * 400 + length;
                let judge =
                    |bytes: &[u8]| judged(&histogram(&bytes[part.clone()]), &steps(&bytes[part.clone()]));
                assert_eq!(judge(PROSE), Mode::Off, "{length} bytes from {}", part.start);
                assert_eq!(judge(&scrambled), Mode::Xor64, "{length} bytes from {}", part.start);
            }
        }
        assert_eq!(judged(&histogram(&PROSE[..50]), &steps(&PROSE[..50])), Mode::Unknown);
    }
}
