//! The rate of one direction of a link.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};

use crate::Error;
use crate::found::Found;
use crate::text::decimal;

const EXPECTED: &str = "a rate above 0 in bit, kbit, mbit or gbit, such as 54mbit";

/// Bits per second on the wire, at least 1; written as `tc` writes it (`54mbit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

const UNITS: [(&str, u64); 4] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

impl Rate {
    /// `n` times 10^6 bits per second; 0 counts as 1.
    pub const fn mbit(n: u32) -> Self {
        Self(if n == 0 { 1 } else { n as u64 } * 1_000_000)
    }

    /// Bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Bytes that cross in `millis` milliseconds.
    pub const fn bytes_in(self, millis: u64) -> u64 {
        self.0.saturating_mul(millis) / 8_000
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// Reads a decimal number and `bit`, `kbit`, `mbit` or `gbit` (powers of 1000), in any case.
    fn from_str(given: &str) -> Result<Self, Error> {
        let bad = || Error::text(EXPECTED, given);
        let text = given.trim().to_ascii_lowercase();
        let (number, unit) =
            UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).ok_or_else(bad)?;
        let number: f64 = decimal(number.trim_end()).ok_or_else(bad)?;
        let bits = (number * unit as f64).round();
        // Above 2^53 a float no longer counts single bits, and no link is that fast.
        if (1.0..=9e15).contains(&bits) { Ok(Self(bits as u64)) } else { Err(bad()) }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Found::<()>::deserialize(deserializer)?.text::<D::Error>(EXPECTED)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS.iter().find(|(_, unit)| self.0.is_multiple_of(*unit)).unwrap_or(&("bit", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_tc_reads() {
        for (text, bits) in
            [("100mbit", 100_000_000), ("2.74mbit", 2_740_000), ("9600bit", 9_600), ("1Gbit", 1_000_000_000)]
        {
            assert_eq!(text.parse::<Rate>().expect(text).bits_per_second(), bits);
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for text in ["100mbit", "2740kbit", "9601bit", "10gbit"] {
            assert_eq!(text.parse::<Rate>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_no_rate() {
        for text in ["", "100", "mbit", "0mbit", "-1mbit", "nanmbit", "infgbit", "1e30gbit", "54 mb/s"] {
            assert!(matches!(text.parse::<Rate>(), Err(Error::Text { .. })), "{text:?} was taken");
        }
    }

    #[test]
    fn bytes_in_a_time() {
        assert_eq!(Rate::mbit(100).bytes_in(20), 250_000);
    }
}
