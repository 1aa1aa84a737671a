//! How probable something is.

use std::fmt;
use std::str::FromStr;

use plait_config::{Found, TextError, decimal};
use serde::de::{Deserialize, Deserializer, Error as _};

const EXPECTED: &str = "a probability from 0 to 1, or from 0% to 100%, such as 0.5%";

/// From 0 to 1; written `1%` or `0.01`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

impl Probability {
    /// `None` unless `value` is from 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// 1.
    pub const fn certain() -> Self {
        Self(1.0)
    }

    /// The value, from 0 to 1.
    pub const fn value(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = TextError;

    /// Reads `1%` or `0.01`.
    fn from_str(given: &str) -> Result<Self, TextError> {
        let text = given.trim();
        let value = match text.strip_suffix('%') {
            Some(percent) => decimal(percent.trim_end()).map(|percent| percent / 100.0),
            None => decimal(text),
        };
        value.and_then(Self::new).ok_or_else(|| TextError::new(EXPECTED, given))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded to what a person may have written: 0.07 times 100 is not 7.
        write!(f, "{}%", (self.0 * 100.0 * 1e9).round() / 1e9)
    }
}

impl<'de> Deserialize<'de> for Probability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Found::<()>::deserialize(deserializer)? {
            Found::Text(text) => text.parse().map_err(D::Error::custom),
            Found::Number(number) => {
                Self::new(number).ok_or_else(|| Found::<()>::Number(number).unexpected(EXPECTED))
            }
            other => Err(other.unexpected(EXPECTED)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_percent_and_fractions() {
        for (text, value) in [("1%", 0.01), ("0.1%", 0.001), ("0.05", 0.05), ("100 %", 1.0), ("0", 0.0)] {
            assert_eq!(text.parse::<Probability>().expect(text).value(), value);
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for text in ["1%", "0.1%", "7%", "0.001%", "100%", "0%"] {
            assert_eq!(text.parse::<Probability>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_no_probability() {
        for text in ["", "%", "101%", "1.01", "-1%", "nan", "1e-3", "1%%"] {
            let error = text.parse::<Probability>().expect_err(text).to_string();
            assert!(error.ends_with(&format!("such as 0.5%, found {text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text: String) {
            let _ = text.parse::<Probability>();
        }
    }
}
