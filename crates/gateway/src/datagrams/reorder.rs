//! Datagrams that are spread over paths are passed on in the order in which they were sent, as far as waiting for it is worth it.
//!
//! A datagram waits for those sent before it until the latest time at which they still arrived recently: the difference of the
//! paths' one-way delays, as measured, and never longer than [`MAX_HOLD`]. Those that arrive even later are passed on at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

/// How long a datagram may wait at most. Also how long it does before anything was measured.
pub(crate) const MAX_HOLD: Duration = Duration::from_millis(100);

/// What a datagram waits beyond the measured difference.
const MARGIN: Duration = Duration::from_millis(5);

/// The greatest difference of this time, and of as much before it, counts.
const MEASURING_TIME: Duration = Duration::from_secs(5);

/// Datagrams that wait at once. Beyond that, the first one does no longer.
const MAX_WAITING: usize = 2048;

/// Missing datagrams that are remembered.
const MAX_MISSING: usize = 2048;

/// No clock and no socket: callers tell the time.
#[derive(Debug)]
struct Reorder<T> {
    /// The number that is passed on next, and the one after the highest that has arrived.
    next: u64,
    end: u64,
    waiting: BTreeMap<u64, T>,
    /// When they arrived; some may have been passed on.
    arrivals: VecDeque<(Instant, u64)>,
    /// Since when others were waited for.
    missing: BTreeMap<u64, Instant>,
    /// The greatest delay of one behind those sent after it, now and before.
    delays: [Duration; 2],
    measuring_since: Option<Instant>,
}

impl<T> Reorder<T> {
    fn new() -> Reorder<T> {
        Reorder {
            next: 0,
            end: 0,
            waiting: BTreeMap::new(),
            arrivals: VecDeque::new(),
            missing: BTreeMap::new(),
            delays: [Duration::ZERO, MAX_HOLD],
            measuring_since: None,
        }
    }

    /// Takes a datagram; each number comes once. Returns what is passed on now.
    fn arrived(&mut self, number: u64, datagram: T, now: Instant) -> Vec<T> {
        self.measure(number, now);
        if number < self.next {
            return vec![datagram];
        }
        self.waiting.insert(number, datagram);
        self.arrivals.push_back((now, number));
        self.due(now)
    }

    /// What is passed on at this time.
    fn due(&mut self, now: Instant) -> Vec<T> {
        let (mut due, hold) = (Vec::new(), self.hold());
        loop {
            self.pass_on_until(self.next, &mut due);
            while self.arrivals.front().is_some_and(|(_, number)| *number < self.next) {
                self.arrivals.pop_front();
            }
            let Some((since, number)) = self.arrivals.front().copied() else { break };
            if now.duration_since(since) < hold && self.waiting.len() <= MAX_WAITING {
                break;
            }
            self.pass_on_until(number, &mut due);
        }
        due
    }

    /// Passes on all up to a number, and those that follow without a gap.
    fn pass_on_until(&mut self, number: u64, due: &mut Vec<T>) {
        while let Some(first) = self.waiting.first_entry() {
            if *first.key() > number.max(self.next) {
                break;
            }
            self.next = first.key() + 1;
            due.push(first.remove());
        }
    }

    /// When something is due next.
    fn deadline(&self) -> Option<Instant> {
        let (since, _) = self.arrivals.iter().find(|(_, number)| *number >= self.next)?;
        Some(*since + self.hold())
    }

    fn hold(&self) -> Duration {
        let [now, before] = self.delays;
        (now.max(before) * 5 / 4 + MARGIN).min(MAX_HOLD)
    }

    /// Measures how late a datagram is.
    fn measure(&mut self, number: u64, now: Instant) {
        let since = *self.measuring_since.get_or_insert(now);
        if now.duration_since(since) >= MEASURING_TIME {
            self.delays = [Duration::ZERO, self.delays[0]];
            self.measuring_since = Some(now);
        }
        if let Some(since) = self.missing.remove(&number) {
            let delay = now.duration_since(since);
            // It is not worth to wait for what is later than that.
            if delay <= MAX_HOLD {
                self.delays[0] = self.delays[0].max(delay);
            }
        }
        if number >= self.end {
            for missing in self.end.max(number.saturating_sub(MAX_MISSING as u64))..number {
                self.missing.insert(missing, now);
            }
            self.end = number + 1;
        }
        while self.missing.len() > MAX_MISSING {
            self.missing.pop_first();
        }
    }
}

/// Passes datagrams on in order.
pub(crate) struct InOrder<T> {
    state: Mutex<State<T>>,
    pass_on: Box<dyn Fn(T) + Send + Sync>,
}

struct State<T> {
    reorder: Reorder<T>,
    /// A task waits for what is due.
    has_timer: bool,
}

impl<T: Send + 'static> InOrder<T> {
    pub(crate) fn new(pass_on: impl Fn(T) + Send + Sync + 'static) -> Arc<InOrder<T>> {
        let state = State { reorder: Reorder::new(), has_timer: false };
        Arc::new(InOrder { state: Mutex::new(state), pass_on: Box::new(pass_on) })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a datagram; each number comes once.
    pub(crate) fn arrived(self: &Arc<Self>, number: u64, datagram: T) {
        let mut state = self.state();
        // While it is locked, so that two tasks do not change the order.
        let due = state.reorder.arrived(number, datagram, Instant::now());
        due.into_iter().for_each(&self.pass_on);
        if !state.has_timer && state.reorder.deadline().is_some() {
            state.has_timer = true;
            tokio::spawn(Arc::clone(self).pass_on_when_due());
        }
    }

    async fn pass_on_when_due(self: Arc<Self>) {
        loop {
            let deadline = {
                let mut state = self.state();
                let due = state.reorder.due(Instant::now());
                due.into_iter().for_each(&self.pass_on);
                let deadline = state.reorder.deadline();
                state.has_timer = deadline.is_some();
                deadline
            };
            match deadline {
                Some(deadline) => sleep_until(deadline.into()).await,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn order_is_restored() {
        let (mut reorder, now) = (Reorder::new(), Instant::now());
        let mut order = Vec::new();
        for number in [0, 2, 1, 5, 3, 4] {
            order.extend(reorder.arrived(number, number, now));
        }
        assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        assert_eq!(reorder.deadline(), None);
    }

    #[test]
    fn a_lost_one_is_waited_for_no_longer_than_the_bound_and_a_late_one_is_passed_on() {
        let (mut reorder, now) = (Reorder::new(), Instant::now());
        assert_eq!(reorder.arrived(0, 0, now), [0]);
        assert!(reorder.arrived(2, 2, now).is_empty());
        assert!(reorder.arrived(3, 3, now + 50 * MS).is_empty());
        assert_eq!(reorder.deadline(), Some(now + MAX_HOLD));
        assert!(reorder.due(now + 99 * MS).is_empty());
        assert_eq!(reorder.due(now + 100 * MS), [2, 3]);
        assert_eq!(reorder.arrived(1, 1, now + 150 * MS), [1]);
    }

    #[test]
    fn the_bound_follows_the_measured_difference() {
        let (mut reorder, mut now) = (Reorder::new(), Instant::now());
        // Every second datagram is 20 ms late.
        for pair in 0..600 {
            let _ = reorder.arrived(2 * pair + 1, (), now);
            let _ = reorder.arrived(2 * pair, (), now + 20 * MS);
            now += 20 * MS;
        }
        assert_eq!(reorder.hold(), 30 * MS);
        // One that is later than it is worth to wait does not count.
        let _ = reorder.arrived(1201, (), now);
        let _ = reorder.arrived(1200, (), now + 300 * MS);
        assert_eq!(reorder.hold(), 30 * MS);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut reorder, now) = (Reorder::new(), Instant::now());
        let passed: usize = (1..10_000u64).map(|number| reorder.arrived(number * 10, (), now).len()).sum();
        assert!(passed + MAX_WAITING + 1 >= 9_999, "{passed}");
        assert!(reorder.missing.len() <= MAX_MISSING && reorder.arrivals.len() <= MAX_WAITING + 1);
    }
}
