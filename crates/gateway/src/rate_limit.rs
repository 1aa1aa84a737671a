//! Limits how often something happens for each key, such as that something is logged for a peer, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Keys remembered at once. Beyond that, those in excess share one limit.
const MAX_KEYS: usize = 1024;

/// Admits up to a number of events of each key within an interval.
pub(crate) struct RateLimit<K> {
    interval: Duration,
    burst: u32,
    windows: Mutex<Windows<K>>,
}

struct Windows<K> {
    by_key: HashMap<K, Window>,
    /// Of the keys beyond [`MAX_KEYS`].
    others: Option<Window>,
}

/// An interval that began with an event.
#[derive(Clone, Copy)]
struct Window {
    since: Instant,
    admitted: u32,
    suppressed: u64,
}

impl<K: Eq + Hash> RateLimit<K> {
    pub(crate) fn new(burst: u32, interval: Duration) -> RateLimit<K> {
        let windows = Mutex::new(Windows { by_key: HashMap::new(), others: None });
        RateLimit { interval, burst, windows }
    }

    /// Whether an event is admitted, and the number of those that were not since the last one; `None`: it is not.
    pub(crate) fn admit(&self, key: K) -> Option<u64> {
        self.admit_at(Instant::now(), key)
    }

    fn admit_at(&self, now: Instant, key: K) -> Option<u64> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let Windows { by_key, others } = &mut *windows;
        let is_known = by_key.contains_key(&key);
        if !is_known && by_key.len() >= MAX_KEYS {
            by_key.retain(|_, window| now.duration_since(window.since) < self.interval);
        }
        let new = Window { since: now, admitted: 0, suppressed: 0 };
        let window = if is_known || by_key.len() < MAX_KEYS {
            by_key.entry(key).or_insert(new)
        } else {
            others.get_or_insert(new)
        };
        let suppressed = window.suppressed;
        if now.duration_since(window.since) >= self.interval {
            *window = Window { admitted: 1, ..new };
            return Some(suppressed);
        }
        if window.admitted < self.burst {
            window.admitted += 1;
            return Some(suppressed);
        }
        window.suppressed += 1;
        None
    }

    /// Admits the next event of a key; returns whether one had been admitted.
    pub(crate) fn forget(&self, key: &K) -> bool {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner).by_key.remove(key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn each_key_is_admitted_up_to_its_burst_per_interval() {
        let (limit, start) = (RateLimit::new(2, MINUTE), Instant::now());
        let admitted: Vec<_> = (0..5).map(|_| limit.admit_at(start, "one")).collect();
        assert_eq!(admitted, [Some(0), Some(0), None, None, None]);
        assert_eq!(limit.admit_at(start, "other"), Some(0));
        assert_eq!(limit.admit_at(start + MINUTE, "one"), Some(3));
        assert_eq!(limit.admit_at(start + MINUTE, "one"), Some(0));
        assert_eq!(limit.admit_at(start + MINUTE, "one"), None);
    }

    #[test]
    fn forgotten_key_is_admitted_again() {
        let (limit, start) = (RateLimit::new(1, MINUTE), Instant::now());
        assert_eq!((limit.admit_at(start, 1), limit.admit_at(start, 1)), (Some(0), None));
        assert!(limit.forget(&1) && !limit.forget(&1));
        assert_eq!(limit.admit_at(start, 1), Some(0));
    }

    #[test]
    fn many_keys_share_a_limit_and_none_is_silent_for_good() {
        let (limit, start) = (RateLimit::new(1, MINUTE), Instant::now());
        let admitted = (0..100_000).filter(|key| limit.admit_at(start, *key).is_some()).count();
        assert_eq!(admitted, MAX_KEYS + 1);
        assert_eq!(limit.windows.lock().expect("not poisoned").by_key.len(), MAX_KEYS);
        assert_eq!(limit.admit_at(start + MINUTE, 100_000), Some(0));
    }
}
