//! Which runs are attacked, and the attacks, in parallel on all processors.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plait_trace::{Direction, PathId};

use crate::document::Skipped;
use crate::mode::Mode;
use crate::model::Model;
use crate::progress::Progress;
use crate::target::Target;
use crate::xor64::{AttackResult, MAX_ATTACKED, MIN_RUN, Preceding, WINDOW, attack};

/// How many runs per path are attacked although the mode resists the attack, as a control.
const MAX_CONTROLS: usize = 3;

/// Indices of a path, a target, and a direction.
pub(crate) type StreamIndex = (usize, usize, usize);

/// The planned attacks.
pub(crate) struct Plan {
    runs: Vec<(StreamIndex, Range<u64>)>,
    outcomes: HashMap<StreamIndex, Outcome>,
}

/// The outcome of the attacks on one direction of a connection on a path.
#[derive(Default)]
pub(crate) struct Outcome {
    /// In order of position.
    pub(crate) runs: Vec<(Range<u64>, AttackResult)>,
    /// How many bytes were recovered that precede a run and did not cross the path.
    pub(crate) bytes_before_runs: u64,
    pub(crate) too_short: Skipped,
    pub(crate) skipped: Skipped,
    /// Computing time, summed over all threads.
    pub(crate) time: Duration,
}

impl Plan {
    /// Plans attacks on at most `max_runs` runs of each path, the longest first.
    pub(crate) fn new(targets: &[Target<'_>], paths: &[PathId], max_runs: usize) -> Self {
        let mut plan = Self { runs: Vec::new(), outcomes: HashMap::new() };
        for (path, id) in paths.iter().enumerate() {
            let (mut scrambled, mut controls) = (Vec::new(), Vec::new());
            for (number, target) in targets.iter().enumerate() {
                let runs = match target.mode {
                    Mode::Xor64 => &mut scrambled,
                    Mode::Stream | Mode::Sealed | Mode::Unknown => &mut controls,
                    Mode::Off | Mode::Mixed => continue,
                };
                for (way, direction) in Direction::BOTH.into_iter().enumerate() {
                    let index = (path, number, way);
                    if target.mode == Mode::Stream
                        && target.secrets(&target.observations[path], direction).is_some()
                    {
                        continue;
                    }
                    for run in target.connection.stream(direction).payload(*id).present().runs() {
                        let length = run.end - run.start;
                        if length < MIN_RUN as u64 {
                            plan.outcomes.entry(index).or_default().too_short.add(length);
                        } else {
                            runs.push((index, run.clone()));
                        }
                    }
                }
            }
            plan.take_longest(scrambled, max_runs);
            plan.take_longest(controls, max_runs.min(MAX_CONTROLS));
        }
        plan
    }

    fn take_longest(&mut self, mut runs: Vec<(StreamIndex, Range<u64>)>, max_runs: usize) {
        // Stable: among runs of equal length, the earlier one comes first.
        runs.sort_by_key(|(_, run)| std::cmp::Reverse(run.end - run.start));
        for (index, run) in runs.drain(max_runs.min(runs.len())..) {
            self.outcomes.entry(index).or_default().skipped.add(run.end - run.start);
        }
        self.runs.extend(runs);
    }

    /// The number of planned attacks.
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Attacks all planned runs.
    pub(crate) fn execute(
        self,
        targets: &[Target<'_>],
        paths: &[PathId],
        progress: &(dyn Fn(Progress) + Sync),
    ) -> HashMap<StreamIndex, Outcome> {
        let Self { runs, mut outcomes } = self;
        if runs.is_empty() {
            return outcomes;
        }
        let model = Model::bundled();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some((index, run)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let (result, before) = attack_run(model, targets, paths, *index, run);
                done.push((*index, run.clone(), result, before, started.elapsed()));
                progress(Progress::Attacked);
            }
            done
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
        let done: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("an attack does not panic")).collect()
        });
        for (index, run, result, before, time) in done {
            let outcome = outcomes.entry(index).or_default();
            outcome.runs.push((run, result));
            outcome.bytes_before_runs += before as u64;
            outcome.time += time;
        }
        for outcome in outcomes.values_mut() {
            outcome.runs.sort_by_key(|(run, _)| run.start);
        }
        outcomes
    }
}

/// Attacks a run. Also returns how many bytes before it were recovered that did not cross the path.
fn attack_run(
    model: &Model,
    targets: &[Target<'_>],
    paths: &[PathId],
    index: StreamIndex,
    run: &Range<u64>,
) -> (AttackResult, usize) {
    let (path, number, way) = index;
    let (target, direction) = (&targets[number], Direction::BOTH[way]);
    let stream = target.connection.stream(direction);
    let payload = stream.payload(paths[path]);
    let end = run.end.min(run.start + MAX_ATTACKED as u64);
    let wire: Vec<u8> = payload.chunks(run.start..end).flatten().copied().collect();
    let at_start = target.mode == Mode::Xor64 && stream.has_known_start() && run.start < WINDOW as u64;
    let preceding = match at_start {
        true => Preceding::at(run.start, &target.seed(&target.observations[path], direction)),
        false => Preceding::UNKNOWN,
    };
    let result = attack(model, &wire, &preceding);
    let seen = payload
        .present()
        .within(run.start.saturating_sub(WINDOW as u64)..run.start)
        .map(|part| part.end)
        .last();
    let unseen = run.start - seen.unwrap_or(0).min(run.start);
    let recovered = result.recovered_before(&preceding, usize::try_from(unseen).unwrap_or(usize::MAX));
    (result, recovered)
}
