//! Which writes a gateway sends copies of.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The writes that are also sent on side connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Number", into = "Text")]
pub enum Redundancy {
    /// Those of at most so many bytes, as far as the gateway reads them one by one; 0: none.
    UpTo(u32),
    /// Every record.
    All,
}

impl Redundancy {
    /// No copies.
    pub const NONE: Redundancy = Redundancy::UpTo(0);

    /// Whether what a gateway reads at once, so many bytes, is copied.
    pub(crate) fn includes(self, bytes: usize) -> bool {
        match self {
            Redundancy::UpTo(limit) => usize::try_from(limit).is_ok_and(|limit| bytes <= limit),
            Redundancy::All => true,
        }
    }
}

/// Neither a number of bytes nor `all`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of bytes, such as 1000, or \"all\", got '{0}'")]
pub struct ParseRedundancyError(String);

impl FromStr for Redundancy {
    type Err = ParseRedundancyError;

    fn from_str(text: &str) -> Result<Redundancy, ParseRedundancyError> {
        match text {
            "all" => Ok(Redundancy::All),
            number => {
                number.parse().map(Redundancy::UpTo).map_err(|_| ParseRedundancyError(number.to_owned()))
            }
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Redundancy::UpTo(bytes) => bytes.fmt(f),
            Redundancy::All => f.write_str("all"),
        }
    }
}

/// As in plait.toml, and in JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Bytes(i64),
    Text(String),
}

impl TryFrom<Number> for Redundancy {
    type Error = ParseRedundancyError;

    fn try_from(number: Number) -> Result<Redundancy, ParseRedundancyError> {
        match number {
            Number::Text(text) => text.parse(),
            Number::Bytes(bytes) => bytes.to_string().parse(),
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Text {
    Bytes(u32),
    All(&'static str),
}

impl From<Redundancy> for Text {
    fn from(redundancy: Redundancy) -> Text {
        match redundancy {
            Redundancy::UpTo(bytes) => Text::Bytes(bytes),
            Redundancy::All => Text::All("all"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_number_of_bytes_or_all() {
        let parsed = |text: &str| text.parse::<Redundancy>();
        assert_eq!(parsed("all"), Ok(Redundancy::All));
        let limited = parsed("1000").expect("a number");
        assert!(limited.includes(1000) && !limited.includes(1001) && Redundancy::All.includes(1 << 30));
        for wrong in ["", "some", "-1", "4294967296"] {
            let error = parsed(wrong).expect_err("out of range").to_string();
            assert!(error.contains("such as 1000") && error.contains(wrong), "{error}");
        }
        assert_eq!(parsed("0"), Ok(Redundancy::NONE));
        for redundancy in [limited, Redundancy::All] {
            let json = serde_json::to_string(&redundancy).expect("JSON");
            assert_eq!(serde_json::from_str::<Redundancy>(&json).expect("the same"), redundancy);
            assert_eq!(redundancy.to_string().parse(), Ok(redundancy));
        }
    }
}
