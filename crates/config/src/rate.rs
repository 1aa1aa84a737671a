//! Rates: `54mbit`.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer};

use crate::error::TextError;
use crate::number;
use crate::shorthand::deserialize_text;

/// A rate of 1 to 10^12 bits per second, in the notation of `tc` (`54mbit`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

const UNITS: &[(&str, u64)] = &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
const MAX: u64 = 1_000_000_000_000;

impl Rate {
    /// The accepted form, for error messages.
    pub const EXPECTED: &str = "a rate from 1bit to 1000gbit in bit, kbit, mbit or gbit, such as 4mbit";

    /// A rate in bits per second; `None` for 0 and above 10^12.
    pub const fn new(bits_per_second: u64) -> Option<Self> {
        if bits_per_second == 0 || bits_per_second > MAX { None } else { Some(Self(bits_per_second)) }
    }

    /// A rate of `n` times 10^6 bits per second; 0 counts as 1.
    pub const fn mbit(n: u16) -> Self {
        Self(if n == 0 { 1 } else { n as u64 } * 1_000_000)
    }

    /// The rate in bits per second.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// The rate in bytes per second, rounded up.
    pub const fn bytes_per_second(self) -> u64 {
        self.0.div_ceil(8)
    }

    /// The whole bytes transmitted in `millis` milliseconds.
    pub const fn bytes_in(self, millis: u64) -> u64 {
        self.0.saturating_mul(millis) / 8_000
    }
}

impl FromStr for Rate {
    type Err = TextError;

    /// Parses a decimal number with the unit `bit`, `kbit`, `mbit` or `gbit` (powers of 1000), in any case.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let bits = number::whole(&text.to_ascii_lowercase(), UNITS, MAX);
        bits.map(Self).ok_or_else(|| TextError::new(Self::EXPECTED, text))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        number::write(f, self.0, UNITS)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, Self::EXPECTED, str::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_rates_as_tc_does() {
        for (text, bits) in [
            ("100mbit", 100_000_000),
            ("2.74mbit", 2_740_000),
            ("9600bit", 9_600),
            ("1Gbit", 1_000_000_000),
            ("1000gbit", MAX),
        ] {
            assert_eq!(text.parse::<Rate>().expect(text).bits_per_second(), bits);
        }
    }

    #[test]
    fn displays_the_parsed_text() {
        for text in ["100mbit", "2740kbit", "9601bit", "10gbit"] {
            assert_eq!(text.parse::<Rate>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn rejects_texts_that_are_no_rate() {
        for text in [
            "", "4", "mbit", "0mbit", "-1mbit", "nanmbit", "infgbit", "1e3mbit", "1001gbit", "4 mb/s",
            "0.1bit",
        ] {
            let error = text.parse::<Rate>().expect_err(text);
            assert_eq!(error, TextError::new(Rate::EXPECTED, text));
        }
        assert_eq!((Rate::new(0), Rate::new(MAX + 1)), (None, None));
    }

    #[test]
    fn converts_to_bytes() {
        assert_eq!(Rate::mbit(100).bytes_in(20), 250_000);
        assert_eq!(Rate::new(9).map(Rate::bytes_per_second), Some(2));
    }

    proptest! {
        #[test]
        fn display_round_trips(bits in 1..=MAX) {
            let rate = Rate::new(bits).expect("in range");
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
        }

        #[test]
        fn never_panics(text: String) {
            let _ = text.parse::<Rate>();
        }
    }
}
