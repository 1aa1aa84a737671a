//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970; 0 for a clock before that.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
