//! Probabilities: `1%`.

use std::fmt;
use std::str::FromStr;

use plait_config::{TextError, decimal};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

const EXPECTED: &str = "a probability from 0 to 1, or from 0% to 100%, such as 0.5%";

/// A probability from 0 to 1, in the notation `1%` or `0.01`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

impl Probability {
    /// A probability; `None` unless `value` is from 0 to 1.
    pub fn new(value: f64) -> Option<Self> {
        (0.0..=1.0).contains(&value).then_some(Self(value))
    }

    /// The probability 1.
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

    /// Parses `1%` or `0.01`.
    fn from_str(text: &str) -> Result<Self, TextError> {
        let trimmed = text.trim();
        let value = match trimmed.strip_suffix('%') {
            Some(percent) => decimal(percent.trim_end()).map(|percent| percent / 100.0),
            None => decimal(trimmed),
        };
        value.and_then(Self::new).ok_or_else(|| TextError::new(EXPECTED, text))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded, because 0.07 times 100 is not exactly 7 in floating point.
        write!(f, "{}%", (self.0 * 100.0 * 1e9).round() / 1e9)
    }
}

impl<'de> Deserialize<'de> for Probability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ProbabilityVisitor;
        impl Visitor<'_> for ProbabilityVisitor {
            type Value = Probability;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Probability, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Probability, E> {
                let unexpected = Unexpected::Signed(number);
                Probability::new(number as f64).ok_or_else(|| E::invalid_value(unexpected, &self))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Probability, E> {
                Probability::new(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
            }
        }
        deserializer.deserialize_any(ProbabilityVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_percentages_and_fractions() {
        for (text, value) in [("1%", 0.01), ("0.1%", 0.001), ("0.05", 0.05), ("100 %", 1.0), ("0", 0.0)] {
            assert_eq!(text.parse::<Probability>().expect(text).value(), value);
        }
    }

    #[test]
    fn displays_the_parsed_text() {
        for text in ["1%", "0.1%", "7%", "0.001%", "100%", "0%"] {
            assert_eq!(text.parse::<Probability>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn rejects_texts_that_are_no_probability() {
        for text in ["", "%", "101%", "1.01", "-1%", "nan", "1e-3", "1%%"] {
            let error = text.parse::<Probability>().expect_err(text).to_string();
            assert!(error.ends_with(&format!("such as 0.5%, got {text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = text.parse::<Probability>();
        }
    }
}
