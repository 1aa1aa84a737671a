//! Durations in arguments.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Units with their length in seconds. A number without a unit is in seconds.
pub(crate) type Units = [(&'static str, f64)];

/// The units of intervals.
pub(crate) const SHORT: &Units = &[("ms", 1e-3), ("s", 1.0)];

/// The units of time limits.
pub(crate) const LONG: &Units = &[("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Parses a duration such as `0.1s` or `50ms`; `None` if it is malformed or not within `seconds`.
pub(crate) fn duration(text: &str, units: &Units, seconds: RangeInclusive<f64>) -> Option<Duration> {
    let with_unit = units.iter().find_map(|(unit, length)| Some((text.strip_suffix(unit)?, *length)));
    let (number, length) = with_unit.unwrap_or((text, 1.0));
    let time = number.trim().parse::<f64>().ok()? * length;
    seconds.contains(&time).then(|| Duration::from_secs_f64(time))
}
