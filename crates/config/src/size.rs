//! Sizes: `30kB`.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer};

use crate::error::TextError;
use crate::number;
use crate::shorthand::deserialize_text;

/// A number of bytes from 1 to `MAX`, which is at most 2^53, in the notation `30kB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size<const MAX: u64>(u64);

/// Displays a number of bytes in the notation of [`Size`], and 0 as `0`.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

const UNITS: &[(&str, u64)] = &[
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl<const MAX: u64> Size<MAX> {
    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The accepted form, for error messages.
    pub fn expected() -> String {
        format!("a size from 1B to {} in B, kB, MB, GB, KiB, MiB or GiB, such as 30kB", Bytes(MAX))
    }
}

impl<const MAX: u64> FromStr for Size<MAX> {
    type Err = TextError;

    /// Parses a decimal number with the unit `B`, `kB` (1000), `MB`, `GB`, `KiB` (1024), `MiB` or `GiB`.
    fn from_str(text: &str) -> Result<Self, TextError> {
        number::whole(text, UNITS, MAX).map(Self).ok_or_else(|| TextError::new(Self::expected(), text))
    }
}

impl<'de, const MAX: u64> Deserialize<'de> for Size<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserialize_text(deserializer, &Self::expected(), str::parse)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { number::write(f, self.0, UNITS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u64 = 1_000_000_000_000;

    fn bytes(text: &str) -> Option<u64> {
        text.parse::<Size<MAX>>().ok().map(Size::bytes)
    }

    #[test]
    fn parses_every_unit() {
        for (text, expected) in [
            ("1514B", 1514),
            ("30 kB", 30_000),
            ("1.5MB", 1_500_000),
            ("64KiB", 65_536),
            ("1000GB", MAX),
            ("1GiB", 1 << 30),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn rejects_anything_else_and_names_the_limits() {
        for text in ["", "30", "0", "0B", "1001GB", "30KB", "30kb", "-1B", "1.2.3B", "+1B"] {
            assert_eq!(bytes(text), None, "{text}");
        }
        let error = "1.1GB".parse::<Size<{ 1 << 30 }>>().expect_err("more than 2^30").to_string();
        let limits = "expected a size from 1B to 1GiB in B, kB, MB, GB, KiB, MiB or GiB, such as 30kB";
        assert_eq!(error, format!("{limits}, got \"1.1GB\""));
    }

    proptest! {
        #[test]
        fn display_round_trips(number in 1..=MAX) {
            prop_assert_eq!(bytes(&Bytes(number).to_string()), Some(number));
        }

        #[test]
        fn never_panics(text: String) {
            let _ = bytes(&text);
        }
    }
}
