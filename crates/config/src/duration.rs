//! Delays and times: `21.5ms`, `16s`.

use std::time::Duration;

use serde::de::Deserializer;

use crate::number::with_unit;
use crate::{TextError, found};

const DELAY: &str = "a time from 0 to 60s in us, ms or s, such as 21.5ms";
const TIME: &str = "a time from 0 to 24h in us, ms, s, m or h, such as 16s";

const DELAY_UNITS: &[(&str, f64)] = &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
const TIME_UNITS: &[(&str, f64)] = &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// A delay such as `21.5ms`: up to a minute, in `us`, `ms` or `s`.
///
/// # Errors
/// The text is none.
pub fn delay(text: &str) -> Result<Duration, TextError> {
    duration(text, DELAY_UNITS, 60.0).ok_or_else(|| TextError::new(DELAY, text))
}

/// A moment or a length of time such as `16s`: up to a day, in `us`, `ms`, `s`, `m` or `h`.
///
/// # Errors
/// The text is none.
pub fn time(text: &str) -> Result<Duration, TextError> {
    duration(text, TIME_UNITS, 86_400.0).ok_or_else(|| TextError::new(TIME, text))
}

/// [`delay`], for `#[serde(deserialize_with)]`.
///
/// # Errors
/// What stands there is none.
pub fn deserialize_delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    found::text(deserializer, DELAY, delay)
}

/// [`time`], for `#[serde(deserialize_with)]`.
///
/// # Errors
/// What stands there is none.
pub fn deserialize_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    found::text(deserializer, TIME, time)
}

fn duration(text: &str, units: &[(&str, f64)], longest: f64) -> Option<Duration> {
    let (number, unit) = with_unit(text, units)?;
    let seconds = Some(number * unit).filter(|seconds| (0.0..=longest).contains(seconds))?;
    Some(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_in_their_units() {
        let delays = [("21.5ms", 21_500_000), ("200us", 200_000), ("0ms", 0), ("1.5 s", 1_500_000_000)];
        for (text, nanos) in delays {
            assert_eq!(delay(text), Ok(Duration::from_nanos(nanos)));
        }
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(time("24h"), Ok(Duration::from_secs(86_400)));
    }

    #[test]
    fn anything_else_is_turned_away_and_quoted() {
        for text in ["", "5", "ms", "-1ms", "1e3ms", "infs", "nans", "61s", "1.2.3ms", "5 m s", "1m", "1h"] {
            assert_eq!(delay(text), Err(TextError::new(DELAY, text)));
        }
        for text in ["25h", "1d", "soon"] {
            assert_eq!(time(text), Err(TextError::new(TIME, text)));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text: String) {
            let _ = (delay(&text), time(&text));
        }
    }
}
