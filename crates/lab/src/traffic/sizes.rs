//! Distributions of flow sizes.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use plait_config::{Size, TextError};
use rand::RngExt as _;
use rand::rngs::SmallRng;

/// The size of a flow: up to 1 TB.
pub type FlowSize = Size<1_000_000_000_000>;

/// The sizes of flows, as a cumulative distribution between whose points sizes are equally likely.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    name: String,
    /// Sizes in bytes, and the fraction of flows that are at most as large. Both ascend; the last fraction is 1.
    points: Vec<(f64, f64)>,
}

/// Why a text names no distribution.
#[derive(Debug, thiserror::Error)]
pub enum ParseSizesError {
    /// It is neither a name, nor a size, a range or a path.
    #[error(
        "expected web-search, data-mining, a size such as 100kB, a range such as 20kB-220kB, or a path with a slash to a \
         file with lines of a size in bytes and a cumulative probability, got {0:?}"
    )]
    Unknown(String),
    /// It names a size that is none.
    #[error(transparent)]
    Size(#[from] TextError),
    /// The file cannot be read.
    #[error("{}: {source}", .path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The file is no cumulative distribution.
    #[error(
        "{}:{line}: expected a size in bytes and a cumulative probability, neither less than in the line before, up to a \
         size of 10^12 and a probability of 1 in the last line, got {got:?}",
        .path.display()
    )]
    Line {
        /// Its path.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// Its text.
        got: String,
    },
}

/// Web search: queries of 10 to 80 kB, and updates of megabytes (Alizadeh et al., "Data Center TCP (DCTCP)", SIGCOMM
/// 2010), by the points of the traffic generator that eMPTCP used (HKUST-SING/TrafficGenerator, conf/DCTCP_CDF.txt).
const WEB_SEARCH: [(f64, f64); 12] = [
    (0.0, 0.0),
    (1e4, 0.15),
    (2e4, 0.2),
    (3e4, 0.3),
    (5e4, 0.4),
    (8e4, 0.53),
    (2e5, 0.6),
    (1e6, 0.7),
    (2e6, 0.8),
    (5e6, 0.9),
    (1e7, 0.97),
    (3e7, 1.0),
];

/// Data mining: most flows are less than 10 kB, most bytes in flows of more than 100 MB (Greenberg et al., "VL2",
/// SIGCOMM 2009), by the points of the same generator (conf/VL2_CDF.txt).
const DATA_MINING: [(f64, f64); 13] = [
    (0.0, 0.0),
    (180.0, 0.1),
    (216.0, 0.2),
    (560.0, 0.3),
    (900.0, 0.4),
    (1100.0, 0.5),
    (1870.0, 0.6),
    (3160.0, 0.7),
    (1e4, 0.8),
    (4e5, 0.9),
    (3.16e6, 0.95),
    (1e8, 0.98),
    (1e9, 1.0),
];

impl Sizes {
    /// The text that it was parsed from.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The mean, in bytes.
    pub fn mean(&self) -> f64 {
        self.segments().map(|((low, below), (high, upto))| (upto - below) * (low + high) / 2.0).sum()
    }

    /// `count` sizes in random order, one from each of `count` equal parts of the distribution: so even few flows have
    /// about the distribution's mean.
    pub(super) fn sample(&self, count: u32, random: &mut SmallRng) -> Vec<u64> {
        let mut sizes: Vec<_> = (0..count)
            .map(|part| self.quantile((f64::from(part) + random.random::<f64>()) / f64::from(count)))
            .collect();
        for last in (1..sizes.len()).rev() {
            sizes.swap(last, random.random_range(0..=last));
        }
        sizes
    }

    /// The size, at least a byte, that this fraction of flows does not exceed.
    fn quantile(&self, fraction: f64) -> u64 {
        let within = self.segments().find(|(_, (_, upto))| fraction <= *upto);
        let size = within.map_or(self.points[self.points.len() - 1].0, |((low, below), (high, upto))| {
            if upto > below { low + (high - low) * (fraction - below) / (upto - below) } else { high }
        });
        (size.round() as u64).max(1)
    }

    fn segments(&self) -> impl Iterator<Item = ((f64, f64), (f64, f64))> + '_ {
        self.points.windows(2).map(|pair| (pair[0], pair[1]))
    }

    fn read(name: &str) -> Result<Self, ParseSizesError> {
        let path = Path::new(name);
        let text =
            fs::read_to_string(path).map_err(|source| ParseSizesError::File { path: path.into(), source })?;
        let mut points = vec![(0.0, 0.0)];
        let wrong = |line, got: &str| ParseSizesError::Line { path: path.into(), line, got: got.to_owned() };
        for (number, line) in text.lines().enumerate() {
            let mut numbers = line.split_whitespace().map(str::parse::<f64>);
            let (Some(Ok(size)), Some(Ok(fraction)), None) = (numbers.next(), numbers.next(), numbers.next())
            else {
                return Err(wrong(number + 1, line));
            };
            let last = points[points.len() - 1];
            if !(last.0..=1e12).contains(&size) || !(last.1..=1.0).contains(&fraction) {
                return Err(wrong(number + 1, line));
            }
            points.push((size, fraction));
        }
        if points[points.len() - 1].1 < 1.0 {
            return Err(wrong(text.lines().count(), text.lines().last().unwrap_or_default()));
        }
        Ok(Self { name: name.into(), points })
    }
}

impl FromStr for Sizes {
    type Err = ParseSizesError;

    fn from_str(text: &str) -> Result<Self, ParseSizesError> {
        let bytes = |text: &str| text.parse::<FlowSize>().map(|size| size.bytes() as f64);
        let points = match text {
            "web-search" => WEB_SEARCH.to_vec(),
            "data-mining" => DATA_MINING.to_vec(),
            _ if text.contains('/') => return Self::read(text),
            _ => match text.split_once('-') {
                Some((low, high)) => vec![(bytes(low)?, 0.0), (bytes(high)?, 1.0)],
                None if text.starts_with(|first: char| first.is_ascii_digit()) => {
                    vec![(bytes(text)?, 0.0), (bytes(text)?, 1.0)]
                }
                None => return Err(ParseSizesError::Unknown(text.into())),
            },
        };
        if points[0].0 > points[points.len() - 1].0 {
            return Err(ParseSizesError::Unknown(text.into()));
        }
        Ok(Self { name: text.into(), points })
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn sizes(text: &str) -> Sizes {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn sample(text: &str, count: u32, seed: u64) -> Vec<u64> {
        sizes(text).sample(count, &mut SmallRng::seed_from_u64(seed))
    }

    #[test]
    fn samples_have_the_distribution() {
        for (text, bound, fraction) in
            [("web-search", 80_000, 0.53), ("data-mining", 10_000, 0.8), ("20kB-220kB", 70_000, 0.25)]
        {
            let sampled = sample(text, 1000, 7);
            let mean = sampled.iter().sum::<u64>() as f64 / 1000.0;
            assert!((mean / sizes(text).mean() - 1.0).abs() < 0.02, "{text}: {mean}");
            let below = sampled.iter().filter(|size| **size <= bound).count() as f64 / 1000.0;
            assert!((below - fraction).abs() < 0.0015, "{text}: {below}");
        }
        assert_eq!(sample("100kB", 3, 1), [100_000; 3]);
    }

    #[test]
    fn a_seed_repeats_sizes_and_their_order() {
        let (first, other) = (sample("web-search", 50, 1), sample("web-search", 50, 2));
        assert_eq!(first, sample("web-search", 50, 1));
        assert_ne!(first, other);
        assert!(!first.is_sorted());
    }

    #[test]
    fn rejects_what_is_no_distribution() {
        for text in ["", "web", "220kB-20kB", "20kB-", "0B", "/nonexistent/sizes"] {
            assert!(text.parse::<Sizes>().is_err(), "{text:?}");
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("sizes");
        let parse = |lines: &str| {
            fs::write(&path, lines).expect("a file");
            path.to_str().expect("UTF-8").parse::<Sizes>()
        };
        assert_eq!(parse("1000 0.5\n3000 1\n").expect("a distribution").mean(), 1250.0);
        for lines in
            ["", "1000 0.5\n", "1000 0.5\n900 1\n", "1000 0.5\n2000 0.4\n", "1 1 1\n", "nan 1\n", "1 inf\n"]
        {
            assert!(matches!(parse(lines), Err(ParseSizesError::Line { .. })), "{lines:?}");
        }
    }
}
