//! Which path datagrams take: the one with the shortest round trip that answers.
//!
//! Probes measure round trips and show whether a path works in both directions: one per second on each path, and while datagrams
//! flow, one every [`BUSY_INTERVAL`] on the path that they take. A path is silent when two probes in a row have no answer in
//! time; then datagrams take another one at once. A single lost probe does not count.
//!
//! No clock and no socket: callers tell the time.

use std::collections::{BTreeMap, VecDeque};
use std::str::FromStr;
use std::time::{Duration, Instant};

use plait_config::{TextError, deserialize_text};
use plait_proto::datagrams::{MAX_SHARE, PathChoice, PathId, Preference};
use serde::{Deserialize, Deserializer};

use super::spread::{Spread, share_after};

/// Time between probes of a path.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Time between probes of the path in use while datagrams flow, for a failover within 300 ms.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// Time between the first probes of a path that has not answered yet.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);

/// Their number.
const MAX_FIRST_PROBES: usize = 8;

/// How long datagrams are considered to flow after one.
const BUSY_TIME: Duration = Duration::from_secs(1);

/// What an answer may take beyond the round trip and its variation: an interval of probes, and delays of schedulers.
const MARGIN: Duration = Duration::from_millis(80);

/// Probes that are remembered on a path that does not answer.
const MAX_UNANSWERED: usize = 64;

/// How long a path must answer again before it is chosen for its round trip.
const PROBATION: Duration = Duration::from_secs(3);

/// How often a path may be replaced by one with a shorter round trip.
const REVIEW_INTERVAL: Duration = Duration::from_secs(1);

/// What a shorter round trip must save at least.
const MIN_GAIN: Duration = Duration::from_millis(2);

/// A longer round trip than this beyond the shortest is that of a queue.
const QUEUE_DELAY: Duration = Duration::from_millis(20);

/// Which paths a datagram takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DatagramScheduler {
    /// The one with the shortest round trip: `lowest-rtt`.
    #[default]
    LowestRtt,
    /// All that answer; the copy that arrives first counts: `redundant`.
    Redundant,
    /// All that answer, in turn: `bonded`. The other end restores the order.
    Bonded,
}

impl FromStr for DatagramScheduler {
    type Err = TextError;

    fn from_str(text: &str) -> Result<DatagramScheduler, TextError> {
        match text {
            "lowest-rtt" => Ok(DatagramScheduler::LowestRtt),
            "redundant" => Ok(DatagramScheduler::Redundant),
            "bonded" => Ok(DatagramScheduler::Bonded),
            _ => Err(TextError::new(EXPECTED, text)),
        }
    }
}

const EXPECTED: &str = "lowest-rtt, redundant or bonded";

impl<'de> Deserialize<'de> for DatagramScheduler {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DatagramScheduler, D::Error> {
        deserialize_text(deserializer, EXPECTED, |text| text.parse())
    }
}

/// The paths of a session.
#[derive(Debug)]
pub(crate) struct Paths {
    by_id: BTreeMap<PathId, PathState>,
    scheduler: DatagramScheduler,
    spread: Spread,
    preference: Option<(PathId, Instant)>,
    changes: u32,
    next_probe: u64,
    last_data: Option<Instant>,
}

#[derive(Debug, Default)]
struct PathState {
    /// Smoothed round trip and its variation (RFC 6298).
    rtt: Option<(Duration, Duration)>,
    unanswered: VecDeque<(u64, Instant)>,
    last_probe: Option<Instant>,
    /// Since when each probe was answered in time; `None`: the path is silent, or new.
    answers_since: Option<Instant>,
    /// Whether it has been silent.
    has_failed: bool,
    /// The round trip without a queue, and the share of datagrams, for [`DatagramScheduler::Bonded`].
    base_rtt: Option<Duration>,
    share: Option<u8>,
}

impl Paths {
    pub(crate) fn new(scheduler: DatagramScheduler) -> Paths {
        Paths {
            by_id: BTreeMap::new(),
            scheduler,
            spread: Spread::default(),
            preference: None,
            changes: 0,
            next_probe: 0,
            last_data: None,
        }
    }

    pub(crate) fn add(&mut self, path: PathId) {
        self.by_id.entry(path).or_default();
    }

    pub(crate) fn remove(&mut self, path: PathId, now: Instant) {
        self.by_id.remove(&path);
        self.review(now);
    }

    /// A datagram is sent, or has arrived.
    pub(crate) fn carries_data(&mut self, now: Instant) {
        self.last_data = Some(now);
    }

    /// The paths that the next datagram takes.
    pub(crate) fn choice(&mut self) -> Vec<PathId> {
        let answering = self.by_id.iter().filter(|(_, state)| state.answers_since.is_some());
        match self.scheduler {
            DatagramScheduler::Redundant if self.is_ready() => answering.map(|(path, _)| *path).collect(),
            DatagramScheduler::Bonded if self.is_ready() => {
                let shares: Vec<_> = answering.map(|(path, state)| (*path, state.share())).collect();
                self.spread.next(&shares).into_iter().collect()
            }
            _ => self.preference.map(|(path, _)| path).into_iter().collect(),
        }
    }

    /// Whether the paths of a datagram are several, or alternate, so that it has a number.
    pub(crate) fn numbers_datagrams(&self) -> bool {
        self.scheduler != DatagramScheduler::LowestRtt
    }

    /// Which paths the exit is asked to send on, as this path tells it; `None` before one is preferred.
    pub(crate) fn preference(&self, on: PathId) -> Option<Preference> {
        let (path, _) = self.preference?;
        let paths = match self.scheduler {
            DatagramScheduler::LowestRtt => PathChoice::One(path),
            DatagramScheduler::Redundant => PathChoice::All,
            DatagramScheduler::Bonded => PathChoice::Spread { share: self.by_id.get(&on)?.share() },
        };
        Some(Preference { number: self.changes, paths })
    }

    /// Whether a path has answered, and none has been silent since.
    pub(crate) fn is_ready(&self) -> bool {
        self.by_id.values().any(|state| state.answers_since.is_some())
    }

    /// The probes that are due now, with their numbers; they count as sent.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(PathId, u64)> {
        self.review(now);
        let is_busy = self.is_busy(now);
        let (in_use, all) = (self.preference.map(|(path, _)| path), self.numbers_datagrams());
        let mut probes = Vec::new();
        for (path, state) in &mut self.by_id {
            let in_use = all || in_use.is_none() || in_use == Some(*path);
            let answers = state.answers_since.is_some() || state.last_probe.is_none();
            let interval = match answers {
                true if is_busy && in_use => BUSY_INTERVAL,
                // The first probe may be lost.
                false if !state.has_failed && state.unanswered.len() < MAX_FIRST_PROBES => FIRST_INTERVAL,
                _ => IDLE_INTERVAL,
            };
            if state.last_probe.is_some_and(|last| now.duration_since(last) < interval) {
                continue;
            }
            let number = self.next_probe;
            self.next_probe += 1;
            state.sent(number, now);
            probes.push((*path, number));
        }
        probes
    }

    /// When to look again.
    pub(crate) fn next_look(&self, now: Instant) -> Duration {
        if self.is_busy(now) { BUSY_INTERVAL / 5 } else { IDLE_INTERVAL / 5 }
    }

    /// A probe was answered on its path.
    pub(crate) fn answered(&mut self, path: PathId, number: u64, now: Instant) {
        let Some(state) = self.by_id.get_mut(&path) else { return };
        state.answered(number, now);
        self.review(now);
    }

    /// The path's interface or route is gone.
    pub(crate) fn failed(&mut self, path: PathId, now: Instant) {
        if let Some(state) = self.by_id.get_mut(&path) {
            state.fail();
        }
        self.review(now);
    }

    /// The smoothed round trip of a path.
    #[cfg(test)]
    fn rtt(&self, path: PathId) -> Option<Duration> {
        self.by_id.get(&path)?.rtt.map(|(rtt, _)| rtt)
    }

    /// Whether datagrams flow.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        self.last_data.is_some_and(|last| now.duration_since(last) < BUSY_TIME)
    }

    /// Chooses anew if the path in use is silent, or another one is faster.
    fn review(&mut self, now: Instant) {
        for state in self.by_id.values_mut() {
            if state.answers_since.is_some() && state.is_silent(now) {
                state.fail();
            }
        }
        let current = self.preference.and_then(|(path, since)| {
            let state = self.by_id.get(&path)?;
            Some((state, since)).filter(|(state, _)| state.answers_since.is_some())
        });
        let gains_over = |state: &PathState| match current {
            None => true,
            Some((used, since)) => {
                let may_change = now.duration_since(since) >= REVIEW_INTERVAL;
                let is_proven = !state.has_failed
                    || state.answers_since.is_some_and(|since| now.duration_since(since) >= PROBATION);
                may_change && is_proven && state.rtt().mul_f64(1.25) + MIN_GAIN < used.rtt()
            }
        };
        let answering = self.by_id.iter().filter(|(_, state)| state.answers_since.is_some());
        let best =
            answering.min_by_key(|(_, state)| state.rtt()).map(|(path, state)| (*path, gains_over(state)));
        // Without an answering path, what was chosen last may answer again first.
        if let Some((path, true)) = best
            && self.preference.is_none_or(|(used, _)| used != path)
        {
            self.preference = Some((path, now));
            self.changes += 1;
            // The exit learns it by the next probe.
            if let Some(state) = self.by_id.get_mut(&path) {
                state.last_probe = None;
            }
        }
    }
}

impl PathState {
    fn rtt(&self) -> Duration {
        self.rtt.map_or(Duration::MAX / 4, |(rtt, _)| rtt)
    }

    fn sent(&mut self, number: u64, now: Instant) {
        self.last_probe = Some(now);
        self.unanswered.push_back((number, now));
        if self.unanswered.len() > MAX_UNANSWERED {
            self.unanswered.pop_front();
        }
    }

    fn answered(&mut self, number: u64, now: Instant) {
        let Some((_, sent)) = self.unanswered.iter().find(|(sent, _)| *sent == number) else { return };
        let rtt = now.duration_since(*sent);
        self.unanswered.retain(|(sent, _)| *sent > number);
        self.rtt = Some(match self.rtt {
            None => (rtt, rtt / 2),
            Some((smoothed, variation)) => {
                ((smoothed * 7 + rtt) / 8, (variation * 3 + smoothed.abs_diff(rtt)) / 4)
            }
        });
        self.answers_since.get_or_insert(now);
        // It grows slowly, should the path have changed.
        let base = self.base_rtt.map_or(rtt, |base| rtt.min(base.mul_f64(1.01)));
        self.base_rtt = Some(base);
        self.share = Some(share_after(self.share(), rtt > base + QUEUE_DELAY));
    }

    fn share(&self) -> u8 {
        self.share.unwrap_or(MAX_SHARE)
    }

    fn fail(&mut self) {
        self.answers_since = None;
        self.has_failed = true;
    }

    /// Whether two probes in a row have no answer, the first for longer than it can take.
    fn is_silent(&self, now: Instant) -> bool {
        let (rtt, variation) = self.rtt.unwrap_or_default();
        let limit = rtt + 4 * variation + MARGIN;
        let first = self.unanswered.front();
        self.unanswered.len() >= 2 && first.is_some_and(|(_, sent)| now.duration_since(*sent) > limit)
    }
}

#[cfg(test)]
mod tests {
    use super::DatagramScheduler::{Bonded, LowestRtt, Redundant};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn path(number: u8) -> PathId {
        PathId::new(number).expect("below 16")
    }

    /// Paths whose answers take this long; `None`: they do not answer.
    struct Network {
        paths: Paths,
        now: Instant,
        answers: Vec<(Instant, PathId, u64)>,
    }

    impl Network {
        fn new(count: u8, scheduler: DatagramScheduler) -> Network {
            let mut paths = Paths::new(scheduler);
            (0..count).for_each(|number| paths.add(path(number)));
            Network { paths, now: Instant::now(), answers: Vec::new() }
        }

        /// Lets time pass, with datagrams or without.
        fn run(&mut self, time: Duration, data: bool, rtts: &[Option<u32>]) {
            let end = self.now + time;
            while self.now < end {
                if data {
                    self.paths.carries_data(self.now);
                }
                for (path, number) in self.paths.due(self.now) {
                    if let Some(rtt) = rtts[usize::from(path.number())] {
                        self.answers.push((self.now + rtt * MS, path, number));
                    }
                }
                let now = self.now;
                let arrived = self.answers.extract_if(.., |(at, _, _)| *at <= now).collect::<Vec<_>>();
                for (_, path, number) in arrived {
                    self.paths.answered(path, number, now);
                }
                self.now += MS;
            }
        }

        fn choice(&mut self) -> Vec<u8> {
            self.paths.choice().into_iter().map(PathId::number).collect()
        }
    }

    #[test]
    fn the_shortest_round_trip_is_chosen() {
        let mut network = Network::new(3, LowestRtt);
        assert!(network.choice().is_empty() && !network.paths.is_ready());
        network.run(100 * MS, true, &[Some(40), Some(10), Some(30)]);
        assert_eq!(network.choice(), [1]);
        assert!(network.paths.is_ready());
        let preference = network.paths.preference(path(0)).expect("chosen");
        assert_eq!(preference.paths, PathChoice::One(path(1)));
        // A little more is no reason to change, much more is.
        network.run(5_000 * MS, true, &[Some(40), Some(31), Some(30)]);
        assert_eq!(network.choice(), [1]);
        network.run(5_000 * MS, true, &[Some(40), Some(90), Some(30)]);
        assert_eq!(network.choice(), [2]);
        assert!(network.paths.preference(path(0)).expect("chosen").number > preference.number);
    }

    #[test]
    fn a_silent_path_is_left_within_the_bound_while_datagrams_flow() {
        for rtt in [1, 20, 60, 100] {
            let mut network = Network::new(2, LowestRtt);
            network.run(3_000 * MS, true, &[Some(rtt), Some(rtt + 40)]);
            assert_eq!(network.choice(), [0]);
            let mut took = 0;
            while network.choice() == [0] {
                network.run(MS, true, &[None, Some(rtt + 40)]);
                took += 1;
                assert!(took < 240, "round trip {rtt} ms");
            }
        }
    }

    #[test]
    fn a_path_that_is_back_is_chosen_after_probation() {
        let mut network = Network::new(2, LowestRtt);
        network.run(2_000 * MS, true, &[Some(10), Some(50)]);
        network.run(500 * MS, true, &[None, Some(50)]);
        assert_eq!(network.choice(), [1]);
        network.run(2_500 * MS, true, &[Some(10), Some(50)]);
        assert_eq!(network.choice(), [1]);
        network.run(3_000 * MS, true, &[Some(10), Some(50)]);
        assert_eq!(network.choice(), [0]);
    }

    #[test]
    fn a_single_lost_probe_is_no_silence() {
        for rtt in [2, 20, 80] {
            let mut network = Network::new(2, LowestRtt);
            network.run(2_000 * MS, true, &[Some(rtt), Some(200)]);
            for _ in 0..50 {
                network.run(50 * MS, true, &[None, Some(200)]);
                network.run(250 * MS, true, &[Some(rtt), Some(200)]);
                assert_eq!(network.choice(), [0], "round trip {rtt} ms");
            }
        }
    }

    #[test]
    fn a_path_without_a_route_is_left_at_once() {
        let mut network = Network::new(2, LowestRtt);
        network.run(2_000 * MS, false, &[Some(10), Some(50)]);
        network.paths.failed(path(0), network.now);
        assert_eq!(network.choice(), [1]);
        network.paths.remove(path(1), network.now);
        assert_eq!(network.choice(), [1], "nothing better is known");
    }

    #[test]
    fn probes_are_few_without_datagrams() {
        let mut network = Network::new(2, LowestRtt);
        network.run(1_000 * MS, false, &[Some(10), Some(50)]);
        let before = network.paths.next_probe;
        network.run(10_000 * MS, false, &[Some(10), Some(50)]);
        assert_eq!(network.paths.next_probe - before, 20);
        assert_eq!(network.paths.rtt(path(0)), Some(10 * MS));
        network.run(10_000 * MS, true, &[None, None]);
        assert!(network.paths.next_probe - before < 60, "silent paths are not flooded");
    }

    #[test]
    fn redundant_datagrams_take_all_paths_that_answer() {
        let mut network = Network::new(3, Redundant);
        network.run(500 * MS, true, &[Some(40), Some(10), None]);
        assert_eq!(network.choice(), [0, 1]);
        assert_eq!(network.paths.preference(path(0)).expect("chosen").paths, PathChoice::All);
        network.run(500 * MS, true, &[None, Some(10), None]);
        assert_eq!(network.choice(), [1]);
    }

    #[test]
    fn bonded_datagrams_take_turns_on_paths_and_a_queue_takes_fewer() {
        let mut network = Network::new(3, Bonded);
        network.run(500 * MS, true, &[Some(40), Some(10), None]);
        let counts = |network: &mut Network| {
            let taken: Vec<_> = (0..68).flat_map(|_| network.choice()).collect();
            [0, 1, 2].map(|path| taken.iter().filter(|taken| **taken == path).count())
        };
        assert_eq!(counts(&mut network), [34, 34, 0]);
        network.run(1_000 * MS, true, &[Some(40), Some(60), None]);
        assert_eq!(counts(&mut network), [64, 4, 0]);
        let share = |path| network.paths.preference(path).expect("chosen").paths;
        assert_eq!([share(path(0)), share(path(1))], [16, 1].map(|share| PathChoice::Spread { share }));
        network.run(1_000 * MS, true, &[None, Some(10), None]);
        assert_eq!(counts(&mut network), [0, 68, 0]);
    }
}
