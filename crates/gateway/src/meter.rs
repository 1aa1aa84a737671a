//! Limits what several connections carry together, as those of one client: bytes per second, and bytes in a day.

use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plait_config::Rate;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What may be carried at once after a pause.
const BURST: Duration = Duration::from_millis(100);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Counts bytes of both directions.
#[derive(Debug)]
pub(crate) struct Meter {
    max_rate: Option<Rate>,
    max_bytes: Option<u64>,
    state: Mutex<State>,
    exhausted: Notify,
}

#[derive(Debug)]
struct State {
    /// When all bytes so far have been carried at the limited rate.
    busy_until: Instant,
    /// The start of the day that `bytes` counts for.
    since: Instant,
    bytes: u64,
}

/// The bytes of a day are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has carried as many bytes as it may in a day (`max_bytes_per_day` of [exit])")]
pub(crate) struct Exhausted;

impl Meter {
    /// Limits the sum of both directions to a rate, and the bytes of a day, which begins with the first use.
    pub(crate) fn new(max_rate: Option<Rate>, max_bytes: Option<u64>) -> Meter {
        let now = Instant::now();
        let state = State { busy_until: now, since: now, bytes: 0 };
        Meter { max_rate, max_bytes, state: Mutex::new(state), exhausted: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes that were carried, and waits until more may be: for good if those of the day are
    /// [exhausted](Self::exhausted).
    pub(crate) async fn carried(&self, bytes: usize) {
        let now = Instant::now();
        let Some(busy_until) = self.count(now, bytes as u64) else { return pending().await };
        // A timer that has run out already still waits for the next whole millisecond.
        if busy_until > now {
            tokio::time::sleep_until(busy_until).await;
        }
    }

    /// Counts a datagram, if the rate and the bytes of the day permit it now. It is dropped otherwise, as by a network.
    pub(crate) fn admit(&self, bytes: usize) -> bool {
        let now = Instant::now();
        if self.is_exhausted() || (self.max_rate.is_some() && self.state().busy_until > now + BURST) {
            return false;
        }
        self.count(now, bytes as u64);
        true
    }

    /// Returns when the rate permits more bytes; `None` if those of the day are exhausted.
    fn count(&self, now: Instant, bytes: u64) -> Option<Instant> {
        let mut state = self.state();
        state.renew(now);
        state.bytes = state.bytes.saturating_add(bytes);
        if let Some(rate) = self.max_rate {
            let takes = Duration::from_secs_f64(bytes as f64 * 8.0 / rate.bits_per_second() as f64);
            let earliest = now.checked_sub(BURST).unwrap_or(now);
            state.busy_until = state.busy_until.max(earliest) + takes;
        }
        if self.max_bytes.is_some_and(|max| state.bytes >= max) {
            self.exhausted.notify_waiters();
            return None;
        }
        Some(state.busy_until)
    }

    /// Whether the bytes of the day are carried.
    pub(crate) fn is_exhausted(&self) -> bool {
        let mut state = self.state();
        state.renew(Instant::now());
        self.max_bytes.is_some_and(|max| state.bytes >= max)
    }

    /// Waits until the bytes of a day are carried.
    pub(crate) async fn exhausted(&self) -> Exhausted {
        loop {
            let notified = self.exhausted.notified();
            if self.is_exhausted() {
                return Exhausted;
            }
            notified.await;
        }
    }
}

impl State {
    fn renew(&mut self, now: Instant) {
        if now.duration_since(self.since) >= DAY {
            (self.since, self.bytes) = (now, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_take_their_time_at_the_rate() {
        let meter = Meter::new(Rate::new(8_000), None);
        let start = Instant::now();
        for _ in 0..10 {
            meter.carried(1_000).await;
        }
        let took = start.elapsed();
        assert!((Duration::from_millis(9_900)..Duration::from_millis(10_010)).contains(&took), "{took:?}");
        // A pause saves up no more than a burst.
        tokio::time::advance(Duration::from_secs(60)).await;
        let start = Instant::now();
        meter.carried(1_000).await;
        assert!(start.elapsed() >= Duration::from_millis(899), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_of_a_day_are_limited_and_counted_anew_the_next_day() {
        let meter = Meter::new(None, Some(100));
        meter.carried(99).await;
        assert!(!meter.is_exhausted());
        tokio::select! {
            biased;
            () = meter.carried(1) => panic!("nothing more may be carried"),
            exhausted = meter.exhausted() => assert_eq!(exhausted, Exhausted),
        }
        assert!(meter.is_exhausted());
        tokio::time::advance(DAY).await;
        assert!(!meter.is_exhausted());
        meter.carried(99).await;
        assert!(!is_ready(meter.carried(1)) && meter.is_exhausted());
    }

    #[tokio::test(start_paused = true)]
    async fn datagrams_beyond_the_rate_or_the_bytes_of_a_day_are_not_admitted() {
        let meter = Meter::new(Rate::new(8_000), Some(2_500));
        // 1,000 bytes in a second.
        assert!(meter.admit(1_000) && !meter.admit(1_000));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(meter.admit(1_000) && !meter.admit(1_000));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(meter.admit(1_000), "the last one is carried");
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!meter.admit(1));
        assert!(Meter::new(None, None).admit(usize::MAX));
    }

    fn is_ready(future: impl Future) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn without_limits_nothing_waits() {
        let meter = Meter::new(None, None);
        assert!(is_ready(meter.carried(usize::MAX)), "not even for a millisecond");
        assert!(is_ready(meter.carried(usize::MAX)));
        assert!(!meter.is_exhausted());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_below_the_rate_do_not_wait() {
        let meter = Meter::new(Rate::new(8_000_000), None);
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(2)).await;
            assert!(is_ready(meter.carried(1_000)));
        }
    }
}
