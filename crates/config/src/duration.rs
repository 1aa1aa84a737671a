//! Durations: `21.5ms`, `16s`.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::Deserializer;

use crate::error::TextError;
use crate::number::{decimal, with_unit};
use crate::shorthand::deserialize_text;

const UNITS: &[(&str, f64)] = &[("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

const DELAY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(60);
const TIME: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(86_400);

/// Parses a delay such as `21.5ms`, up to a minute.
///
/// # Errors
/// The text is not such a duration.
pub fn parse_delay(text: &str) -> Result<Duration, TextError> {
    parse_duration(text, &DELAY)
}

/// Parses a length or point of time such as `16s`, up to a day.
///
/// # Errors
/// The text is not such a duration.
pub fn parse_time(text: &str) -> Result<Duration, TextError> {
    parse_duration(text, &TIME)
}

/// Parses a number with the unit `us`, `ms`, `s`, `m` or `h`, within `range`.
///
/// # Errors
/// The text is not such a duration.
pub fn parse_duration(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, TextError> {
    let seconds = with_unit(text, UNITS).map(|(number, unit)| number * unit);
    in_range(seconds, range).ok_or_else(|| TextError::new(expected(range), text))
}

/// Like [`parse_duration`], but a number without a unit is in seconds; for command lines.
///
/// # Errors
/// The text is not such a duration.
pub fn parse_duration_or_seconds(
    text: &str,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, TextError> {
    match decimal(text.trim()) {
        Some(seconds) => in_range(Some(seconds), range).ok_or_else(|| TextError::new(expected(range), text)),
        None => parse_duration(text, range),
    }
}

/// Like [`parse_delay`], for `#[serde(deserialize_with)]`.
///
/// # Errors
/// The value is not such a duration.
pub fn deserialize_delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserialize_text(deserializer, &expected(&DELAY), parse_delay)
}

/// Like [`parse_time`], for `#[serde(deserialize_with)]`.
///
/// # Errors
/// The value is not such a duration.
pub fn deserialize_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserialize_text(deserializer, &expected(&TIME), parse_time)
}

fn in_range(seconds: Option<f64>, range: &RangeInclusive<Duration>) -> Option<Duration> {
    let duration = Duration::try_from_secs_f64(seconds?).ok()?;
    range.contains(&duration).then_some(duration)
}

fn expected(range: &RangeInclusive<Duration>) -> String {
    let (min, max) = (written(*range.start()), written(*range.end()));
    format!("a duration from {min} to {max} in us, ms, s, m or h, such as 21.5ms or 16s")
}

/// Formats a duration in the largest unit of which it is a whole multiple.
fn written(duration: Duration) -> String {
    let micros = duration.as_micros();
    let units = [("h", 3_600_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];
    let of = |&(_, unit): &(&str, u128)| micros >= unit && micros.is_multiple_of(unit);
    let (name, unit) = units.into_iter().find(of).unwrap_or(("s", 1_000_000));
    format!("{}{name}", micros / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_durations_in_every_unit() {
        let delays = [("21.5ms", 21_500_000), ("200us", 200_000), ("0ms", 0), ("1.5 s", 1_500_000_000)];
        for (text, nanos) in delays {
            assert_eq!(parse_delay(text), Ok(Duration::from_nanos(nanos)));
        }
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("24h"), Ok(Duration::from_secs(86_400)));
    }

    #[test]
    fn rejects_and_quotes_anything_else() {
        for text in
            ["", "5", "ms", "-1ms", "1e3ms", "1e300ms", "infs", "nans", "61s", "1.2.3ms", "5 m s", "2m", "1h"]
        {
            let error = parse_delay(text).expect_err(text).to_string();
            let expected = "a duration from 0s to 60s in us, ms, s, m or h, such as 21.5ms or 16s";
            assert_eq!(error, format!("expected {expected}, got {text:?}"));
        }
        for text in ["25h", "1d", "soon"] {
            let error = parse_time(text).expect_err(text).to_string();
            assert!(error.starts_with("expected a duration from 0s to 24h in"), "{error}");
        }
    }

    #[test]
    fn command_lines_may_leave_out_seconds() {
        let range = Duration::from_millis(1)..=Duration::from_secs(604_800);
        let parse = |text| parse_duration_or_seconds(text, &range).map(|duration| duration.as_millis());
        let parsed = ["1500ms", "2s", "2", "0.5m", "1h"].map(parse);
        assert_eq!(parsed, [Ok(1500), Ok(2000), Ok(2000), Ok(30_000), Ok(3_600_000)]);
        for text in ["", "0", "-1s", "NaN", "inf", "1d", "200h"] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with("expected a duration from 1ms to 168h in"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = (parse_delay(&text), parse_time(&text), parse_duration_or_seconds(&text, &TIME));
        }
    }
}
