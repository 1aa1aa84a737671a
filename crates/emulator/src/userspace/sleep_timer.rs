//! Decides when to wake up for the next delivery. An idle processor takes time to wake, tens of microseconds in a
//! virtual machine, so the thread sets its timer earlier by the measured latency, and spins for the rest. A frame
//! that wakes the thread therefore arrived earlier than the thread sees it, by the median latency.

/// The measured wake-up latency, and the budget for spinning, in nanoseconds.
pub(super) struct SleepTimer {
    latency: u64,
    median: u64,
    credit: u64,
    credited: u64,
    spinning_for: Option<u64>,
}

/// What to do until the next frames are due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Poll again immediately.
    Spin,
    /// Sleep until this time.
    Sleep(u64),
}

/// The maximum useful spin.
const MAX_LATENCY: u64 = 150_000;
/// The step of the latency estimates. The estimate of the 90th percentile rises by nine steps for each step that it
/// falls.
const STEP: u64 = 500;
const ODDS_OF_P90: u64 = 9;
/// The second estimate is the median.
const ODDS_OF_MEDIAN: u64 = 1;
/// Shorter sleeps would overrun.
const MIN_SLEEP: u64 = 5_000;
/// At most a tenth of the time is spent spinning, with a limit on the uninterrupted part.
const SHARE: u64 = 10;
const MAX_CREDIT: u64 = 1_000_000;

impl SleepTimer {
    pub(super) fn new() -> Self {
        Self { latency: 0, median: 0, credit: MAX_CREDIT, credited: 0, spinning_for: None }
    }

    /// What to do at `now`, when something is due at `due`.
    pub(super) fn wait_for(&mut self, due: u64, now: u64) -> Wait {
        self.credit = MAX_CREDIT.min(self.credit + (now - self.credited) / SHARE);
        self.credited = now;
        let left = due.saturating_sub(now);
        let lead = self.latency.min(self.credit);
        if self.spinning_for == Some(due) || left <= MIN_SLEEP {
            return Wait::Spin;
        }
        if left <= lead {
            self.credit -= left;
            self.spinning_for = Some(due);
            return Wait::Spin;
        }
        Wait::Sleep(due - lead)
    }

    /// Records that a timer set for `set_for` expired at `now`.
    pub(super) fn learn_from(&mut self, set_for: u64, now: u64) {
        let late = now.saturating_sub(set_for);
        learn(&mut self.latency, late, ODDS_OF_P90);
        learn(&mut self.median, late, ODDS_OF_MEDIAN);
    }

    /// The median wake-up latency, in nanoseconds.
    pub(super) fn median_latency(&self) -> u64 {
        self.median
    }
}

/// Updates a latency estimate from one observation, towards the value that exceeds `odds` of `odds + 1` observations.
/// The first observation initializes it.
fn learn(latency: &mut u64, seen: u64, odds: u64) {
    let next = match *latency {
        0 => seen,
        lower if lower < seen => lower + odds * STEP,
        higher => higher.saturating_sub(STEP),
    };
    *latency = next.min(MAX_LATENCY);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A timer that has often expired late by this latency.
    fn learnt(latency: u64) -> SleepTimer {
        let mut sleep_timer = SleepTimer::new();
        for _ in 0..1000 {
            sleep_timer.learn_from(0, latency);
        }
        sleep_timer
    }

    #[test]
    fn estimates_the_90th_percentile_and_the_median() {
        let mut sleep_timer = SleepTimer::new();
        for _ in 0..1000 {
            for late in 1..=100 {
                sleep_timer.learn_from(0, late * 37 % 101 * 1000);
            }
        }
        assert!((80_000..=100_000).contains(&sleep_timer.latency), "{}", sleep_timer.latency);
        assert!((40_000..=60_000).contains(&sleep_timer.median_latency()), "{}", sleep_timer.median);
    }

    #[test]
    fn wakes_earlier_by_the_measured_latency_and_spins() {
        let mut sleep_timer = learnt(60_000);
        let Wait::Sleep(time) = sleep_timer.wait_for(10_000_000, 0) else {
            panic!("10 ms are worth a sleep")
        };
        assert!((9_930_000..=9_945_000).contains(&time), "{time}");
        assert_eq!(sleep_timer.wait_for(10_000_000, 9_960_000), Wait::Spin);
        assert_eq!(sleep_timer.wait_for(10_000_000, 9_970_000), Wait::Spin);
    }

    #[test]
    fn is_never_earlier_than_the_longest_wait_that_is_worth_it() {
        let mut sleep_timer = learnt(10_000_000);
        assert_eq!(sleep_timer.wait_for(50_000_000, 0), Wait::Sleep(50_000_000 - MAX_LATENCY));
    }

    #[test]
    fn is_awake_for_a_tenth_of_the_time_at_most() {
        let mut sleep_timer = learnt(100_000);
        let (mut now, mut awake) = (0, 0);
        for due in (1..).map(|frame| frame * 120_000).take_while(|due| *due < 1_000_000_000) {
            match sleep_timer.wait_for(due, now) {
                Wait::Spin => awake += due - now,
                Wait::Sleep(time) => {
                    now = time;
                    assert_eq!(sleep_timer.wait_for(due, now), Wait::Spin);
                    awake += due - now;
                }
            }
            now = due;
        }
        assert!(awake <= 100_000_000 + MAX_CREDIT + MIN_SLEEP * 8_000, "{awake}");
        assert!(awake >= 90_000_000, "{awake}");
    }
}
