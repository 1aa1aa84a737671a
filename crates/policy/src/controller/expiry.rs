//! How long a controller's actions stay in force.

use std::time::Duration;

/// The default: three intervals, at least 5 s, so that a garbage collection pause or a swapping host is not mistaken for
/// a dead controller.
pub fn default_expiry(interval: Duration) -> Duration {
    (interval * 3).max(Duration::from_secs(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_expiry_is_three_intervals_and_at_least_five_seconds() {
        assert_eq!(default_expiry(Duration::from_millis(100)), Duration::from_secs(5));
        assert_eq!(default_expiry(Duration::from_secs(10)), Duration::from_secs(30));
    }
}
