//! Times as arguments say them.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The units of a time, with their length in seconds. A number without any is in seconds.
pub(crate) type Units = [(&'static str, f64)];

/// Of intervals.
pub(crate) const SHORT: &Units = &[("ms", 1e-3), ("s", 1.0)];

/// Of what may last.
pub(crate) const LONG: &Units = &[("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// A time such as `0.1s` or `50ms`; `None` if it is none, or not within `seconds`.
pub(crate) fn duration(text: &str, units: &Units, seconds: RangeInclusive<f64>) -> Option<Duration> {
    let in_unit = units.iter().find_map(|(unit, length)| Some((text.strip_suffix(unit)?, *length)));
    let (number, length) = in_unit.unwrap_or((text, 1.0));
    let time = number.trim().parse::<f64>().ok()? * length;
    seconds.contains(&time).then(|| Duration::from_secs_f64(time))
}
