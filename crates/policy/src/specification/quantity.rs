//! Rates and sizes as people write them: `4mbit`, `64kB`.

use std::fmt;
use std::str::FromStr;

/// Bits per second, at least 1; written as `tc` writes it (`4mbit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

/// A text that is no rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {RATE}, found {0:?}")]
pub struct RateError(String);

pub(crate) const RATE: &str = "a rate from 1bit to 1000gbit in bit, kbit, mbit or gbit, such as 4mbit";
pub(crate) const BYTES: &str = "a size from 1B to 1000GB in B, kB, MB, GB, KiB, MiB or GiB, such as 64kB";

const RATE_UNITS: &[(&str, u64)] =
    &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
const BYTE_UNITS: &[(&str, u64)] = &[
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];
const MOST: u64 = 1_000_000_000_000;

impl Rate {
    /// That many bits per second; `None` for 0 and for more than 10^12.
    pub const fn new(bits_per_second: u64) -> Option<Self> {
        if bits_per_second == 0 || bits_per_second > MOST { None } else { Some(Self(bits_per_second)) }
    }

    /// Bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes per second, at least 1.
    pub const fn bytes_per_second(self) -> u64 {
        self.0.div_ceil(8)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    /// Reads a decimal number and `bit`, `kbit`, `mbit` or `gbit` (powers of 1000), in any case.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let bits = number(&text.to_ascii_lowercase(), RATE_UNITS);
        bits.and_then(Self::new).ok_or_else(|| RateError(text.into()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, RATE_UNITS)
    }
}

/// A size: a decimal number and `B`, `kB` (1000), `MB`, `GB`, `KiB` (1024), `MiB` or `GiB`, up to 1000 GB; 0 may stand
/// alone.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    if text == "0" { Some(0) } else { number(text, BYTE_UNITS) }
}

/// Writes a size as [`bytes`] reads it.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { write(f, self.0, BYTE_UNITS) }
    }
}

/// A decimal number and one of these units, the first that ends the text; at most [`MOST`].
fn number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    let number = number.trim_end();
    // What `f64` reads beyond digits and a point (`inf`, `1e3`) is not how people write these.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| digits)?;
    let all = (number * unit as f64).round();
    (all <= MOST as f64).then_some(all as u64)
}

/// In the first unit of which there is a whole number.
fn write(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, unit) = units.iter().find(|(_, unit)| number.is_multiple_of(*unit)).unwrap_or(&("", 1));
    write!(f, "{}{name}", number / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_in_their_units() {
        for (text, bits) in
            [("4mbit", 4_000_000), ("2.74mbit", 2_740_000), ("9600bit", 9_600), ("1Gbit", 1_000_000_000)]
        {
            assert_eq!(text.parse::<Rate>().expect(text).bits_per_second(), bits);
        }
        for text in [
            "", "4", "mbit", "0mbit", "-1mbit", "nanmbit", "infgbit", "1e3mbit", "1001gbit", "4 mb/s",
            "0.1bit",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn sizes_are_read_in_their_units() {
        for (text, expected) in
            [("0", 0), ("1514B", 1514), ("64kB", 64_000), ("1.5MB", 1_500_000), ("64KiB", 65_536)]
        {
            assert_eq!(bytes(text).expect(text), expected);
        }
        for text in ["", "30", "1001GB", "30KB", "30kb", "-1B", "1.2.3B", "+1B"] {
            assert!(bytes(text).is_none(), "{text:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(number in 1..=MOST) {
            let rate = Rate::new(number).expect("in range");
            prop_assert_eq!(rate.to_string().parse::<Rate>().expect("as written"), rate);
            prop_assert_eq!(bytes(&Bytes(number).to_string()), Some(number));
        }

        #[test]
        fn no_text_makes_reading_panic(text: String) {
            let _ = (text.parse::<Rate>().is_ok(), bytes(&text));
        }
    }
}
