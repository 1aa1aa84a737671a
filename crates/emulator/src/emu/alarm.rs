//! When to get up for what is due. A processor that is idle takes its time to wake, tens of microseconds in a virtual
//! machine; so the thread asks for an alarm earlier by what it has learnt this takes, and stays awake for the rest. A
//! frame that wakes the thread came earlier than the thread sees it, by what waking usually takes.

/// What is learnt, and what staying awake has cost. Times are in nanoseconds.
pub(super) struct Alarm {
    latency: u64,
    usual: u64,
    credit: u64,
    credited: u64,
    awake_for: Option<u64>,
}

/// What the thread should do until the next frames are due.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Look again at once.
    Awake,
    /// Sleep until this time.
    Sleep(u64),
}

/// The longest that staying awake is worth.
const MAX_LATENCY: u64 = 150_000;
/// The latency that is learnt is one that nine in ten are below: it rises by nine steps for one it falls.
const STEP: u64 = 500;
const NINE_IN_TEN: u64 = 9;
/// The usual one is the median.
const ONE_IN_TWO: u64 = 1;
/// Sleeping for less would take longer.
const SHORTEST_SLEEP: u64 = 5_000;
/// At most a tenth of the time is spent awake for nothing, however busy the link, and this much in a row.
const SHARE: u64 = 10;
const MAX_CREDIT: u64 = 1_000_000;

impl Alarm {
    pub(super) fn new() -> Self {
        Self { latency: 0, usual: 0, credit: MAX_CREDIT, credited: 0, awake_for: None }
    }

    /// What to do at `now`, when something is due at `due`.
    pub(super) fn until(&mut self, due: u64, now: u64) -> Until {
        self.credit = MAX_CREDIT.min(self.credit + (now - self.credited) / SHARE);
        self.credited = now;
        let left = due.saturating_sub(now);
        let lead = self.latency.min(self.credit);
        if self.awake_for == Some(due) || left <= SHORTEST_SLEEP {
            return Until::Awake;
        }
        if left <= lead {
            self.credit -= left;
            self.awake_for = Some(due);
            return Until::Awake;
        }
        Until::Sleep(due - lead)
    }

    /// The alarm of this time was over at `now`.
    pub(super) fn rang(&mut self, alarm: u64, now: u64) {
        let late = now.saturating_sub(alarm);
        learn(&mut self.latency, late, NINE_IN_TEN);
        learn(&mut self.usual, late, ONE_IN_TWO);
    }

    /// What waking usually takes, nanoseconds.
    pub(super) fn usual_latency(&self) -> u64 {
        self.usual
    }
}

/// From the first that was seen towards the latency that `odds` of `odds + 1` are below.
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

    /// An alarm that has often rung this late.
    fn learnt(latency: u64) -> Alarm {
        let mut alarm = Alarm::new();
        for _ in 0..1000 {
            alarm.rang(0, latency);
        }
        alarm
    }

    #[test]
    fn learns_the_latency_that_nine_in_ten_are_below_and_the_median() {
        let mut alarm = Alarm::new();
        for _ in 0..1000 {
            for late in 1..=100 {
                alarm.rang(0, late * 37 % 101 * 1000);
            }
        }
        assert!((80_000..=100_000).contains(&alarm.latency), "{}", alarm.latency);
        assert!((40_000..=60_000).contains(&alarm.usual_latency()), "{}", alarm.usual);
    }

    #[test]
    fn gets_up_earlier_by_what_it_learnt_and_stays_awake() {
        let mut alarm = learnt(60_000);
        let Until::Sleep(time) = alarm.until(10_000_000, 0) else { panic!("10 ms are worth a sleep") };
        assert!((9_930_000..=9_945_000).contains(&time), "{time}");
        assert_eq!(alarm.until(10_000_000, 9_960_000), Until::Awake);
        assert_eq!(alarm.until(10_000_000, 9_970_000), Until::Awake);
    }

    #[test]
    fn is_never_earlier_than_the_longest_wait_that_is_worth_it() {
        let mut alarm = learnt(10_000_000);
        assert_eq!(alarm.until(50_000_000, 0), Until::Sleep(50_000_000 - MAX_LATENCY));
    }

    #[test]
    fn is_awake_for_a_tenth_of_the_time_at_most() {
        let mut alarm = learnt(100_000);
        let (mut now, mut awake) = (0, 0);
        for due in (1..).map(|frame| frame * 120_000).take_while(|due| *due < 1_000_000_000) {
            match alarm.until(due, now) {
                Until::Awake => awake += due - now,
                Until::Sleep(time) => {
                    now = time;
                    assert_eq!(alarm.until(due, now), Until::Awake);
                    awake += due - now;
                }
            }
            now = due;
        }
        assert!(awake <= 100_000_000 + MAX_CREDIT + SHORTEST_SLEEP * 8_000, "{awake}");
        assert!(awake >= 90_000_000, "{awake}");
    }
}
