//! How people write the properties of a link, on command lines and in TOML and JSON files: `21.5ms`, `16s`, `30kB`.
//!
//! What is not what it should be is an error that says what was expected, with an example, and what was found.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _};

use crate::Error;
use crate::found::Found;

const DELAY: &str = "a time from 0 to 60s in us, ms or s, such as 21.5ms";
const TIME: &str = "a time from 0 to 24h in us, ms, s, m or h, such as 16s";
const BYTES: &str = "a number of bytes up to 1000MB in B, kB, MB, KiB or MiB, such as 30kB";

const DELAY_UNITS: &[(&str, f64)] = &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
const TIME_UNITS: &[(&str, f64)] = &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
const BYTE_UNITS: &[(&str, f64)] =
    &[("kB", 1e3), ("MB", 1e6), ("KiB", 1024.0), ("MiB", 1_048_576.0), ("B", 1.0)];

/// A delay such as `21.5ms`: up to a minute, in `us`, `ms` or `s`.
pub fn delay(text: &str) -> Result<Duration, Error> {
    duration(text, DELAY_UNITS, 60.0).ok_or_else(|| Error::text(DELAY, text))
}

/// A moment or a length of time such as `16s`: up to a day, in `us`, `ms`, `s`, `m` or `h`.
pub fn time(text: &str) -> Result<Duration, Error> {
    duration(text, TIME_UNITS, 86_400.0).ok_or_else(|| Error::text(TIME, text))
}

/// A number of bytes such as `30kB`: at least 1, up to 1000 MB, in `B`, `kB` (1000), `MB`, `KiB` (1024) or `MiB`.
pub fn bytes(text: &str) -> Result<u64, Error> {
    let bytes = number(text, BYTE_UNITS).map(f64::round).filter(|bytes| (1.0..=1e9).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| Error::text(BYTES, text))
}

/// [`delay`], for `#[serde(deserialize_with)]`.
pub fn deserialize_delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Found::<()>::deserialize(deserializer)?
        .text(DELAY)
        .and_then(|text| delay(&text).map_err(D::Error::custom))
}

/// [`time`], for `#[serde(deserialize_with)]`.
pub fn deserialize_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Found::<()>::deserialize(deserializer)?.text(TIME).and_then(|text| time(&text).map_err(D::Error::custom))
}

/// [`bytes`], for `#[serde(deserialize_with)]`.
pub fn deserialize_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Found::<()>::deserialize(deserializer)?
        .text(BYTES)
        .and_then(|text| bytes(&text).map_err(D::Error::custom))
}

fn duration(text: &str, units: &[(&str, f64)], longest: f64) -> Option<Duration> {
    let seconds = number(text, units).filter(|seconds| (0.0..=longest).contains(seconds))?;
    Some(Duration::from_secs_f64(seconds))
}

/// A decimal number and one of these units, the first that ends the text.
fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    Some(decimal(number.trim_end())? * unit)
}

/// Digits with or without a point: what `f64` reads beyond that (`inf`, `1e3`) is not how people write these.
pub(crate) fn decimal(text: &str) -> Option<f64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_in_their_units() {
        let delays = [("21.5ms", 21_500_000), ("200us", 200_000), ("0ms", 0), ("1.5 s", 1_500_000_000)];
        for (text, nanos) in delays {
            assert_eq!(delay(text).expect(text), Duration::from_nanos(nanos));
        }
        assert_eq!(time("2m").expect("minutes"), Duration::from_secs(120));
        assert_eq!(time("24h").expect("hours"), Duration::from_secs(86_400));
    }

    #[test]
    fn bytes_are_read_in_their_units() {
        for (text, expected) in [("1514B", 1514), ("30kB", 30_000), ("1.5MB", 1_500_000), ("64KiB", 65_536)] {
            assert_eq!(bytes(text).expect(text), expected);
        }
    }

    #[test]
    fn anything_else_is_turned_away_and_quoted() {
        for text in ["", "5", "ms", "-1ms", "1e3ms", "infs", "nans", "61s", "1.2.3ms", "5 m s", "1m", "1h"] {
            let error = delay(text).expect_err(text).to_string();
            assert!(error.starts_with("expected a time from 0 to 60s"), "{error}");
            assert!(error.ends_with(&format!("found {text:?}")), "{error}");
        }
        for text in ["25h", "1d", "soon"] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["30", "0B", "1001MB", "30KB", "30kb", "-1B"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text: String) {
            let _ = (delay(&text), time(&text), bytes(&text));
        }
    }
}
