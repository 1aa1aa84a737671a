//! Which runs are attacked, and all attacks at once, over the processors.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plait_trace::PathId;

use crate::Progress;
use crate::document::Left;
use crate::mode::Mode;
use crate::model::Model;
use crate::subject::{DIRECTIONS, Subject};
use crate::xor64::{Attempt, BEFORE, Before, LOOKED_AT, SHORTEST, attack};

/// How many runs of a path are attacked where nothing is expected of it, to have tried.
const CONTROLS: usize = 3;

/// One direction of a connection on a path, by their places.
pub(crate) type Where = (usize, usize, usize);

/// The attacks to come.
pub(crate) struct Attacks {
    runs: Vec<(Where, Range<u64>)>,
    attacked: HashMap<Where, Attacked>,
}

/// What attacks on one direction of a connection on a path came to.
#[derive(Default)]
pub(crate) struct Attacked {
    /// By position.
    pub(crate) runs: Vec<(Range<u64>, Attempt)>,
    /// How many of the bytes before each run, which did not cross the path, were recovered.
    pub(crate) before: u64,
    pub(crate) too_short: Left,
    pub(crate) left_out: Left,
    /// The computing time.
    pub(crate) time: Duration,
}

impl Attacks {
    /// At most `most` runs of each path, the longest first.
    pub(crate) fn plan(subjects: &[Subject<'_>], paths: &[PathId], most: usize) -> Self {
        let mut plan = Self { runs: Vec::new(), attacked: HashMap::new() };
        for (path, id) in paths.iter().enumerate() {
            let (mut hoped, mut controls) = (Vec::new(), Vec::new());
            for (number, subject) in subjects.iter().enumerate() {
                let runs = match subject.mode {
                    Mode::Xor64 => &mut hoped,
                    Mode::Stream | Mode::Sealed | Mode::Unknown => &mut controls,
                    Mode::Off | Mode::Mixed => continue,
                };
                for (way, direction) in DIRECTIONS.into_iter().enumerate() {
                    let place = (path, number, way);
                    if subject.mode == Mode::Stream
                        && subject.secrets(&subject.places[path], direction).is_some()
                    {
                        continue;
                    }
                    for run in subject.connection.stream(direction).payload(*id).present().runs() {
                        let length = run.end - run.start;
                        if length < SHORTEST as u64 {
                            plan.attacked.entry(place).or_default().too_short.add(length);
                        } else {
                            runs.push((place, run.clone()));
                        }
                    }
                }
            }
            plan.take_longest(hoped, most);
            plan.take_longest(controls, most.min(CONTROLS));
        }
        plan
    }

    fn take_longest(&mut self, mut runs: Vec<(Where, Range<u64>)>, most: usize) {
        // Stable: of equally long ones the first.
        runs.sort_by_key(|(_, run)| std::cmp::Reverse(run.end - run.start));
        for (place, run) in runs.drain(most.min(runs.len())..) {
            self.attacked.entry(place).or_default().left_out.add(run.end - run.start);
        }
        self.runs.extend(runs);
    }

    /// How many runs are to be attacked.
    pub(crate) fn planned(&self) -> usize {
        self.runs.len()
    }

    /// Attacks all planned runs.
    pub(crate) fn carry_out(
        self,
        subjects: &[Subject<'_>],
        paths: &[PathId],
        progress: &(dyn Fn(Progress) + Sync),
    ) -> HashMap<Where, Attacked> {
        let Self { runs, mut attacked } = self;
        if runs.is_empty() {
            return attacked;
        }
        let model = Model::shipped();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some((place, run)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let (attempt, before) = attack_run(model, subjects, paths, *place, run);
                done.push((*place, run.clone(), attempt, before, started.elapsed()));
                progress(Progress::Attacked);
            }
            done
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
        let done: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("an attack does not panic")).collect()
        });
        for (place, run, attempt, before, time) in done {
            let attacked = attacked.entry(place).or_default();
            attacked.runs.push((run, attempt));
            attacked.before += before as u64;
            attacked.time += time;
        }
        for attacked in attacked.values_mut() {
            attacked.runs.sort_by_key(|(run, _)| run.start);
        }
        attacked
    }
}

/// Attacks a run, and says how many bytes before it were recovered that did not cross the path.
fn attack_run(
    model: &Model,
    subjects: &[Subject<'_>],
    paths: &[PathId],
    place: Where,
    run: &Range<u64>,
) -> (Attempt, usize) {
    let (path, number, way) = place;
    let (subject, direction) = (&subjects[number], DIRECTIONS[way]);
    let stream = subject.connection.stream(direction);
    let payload = stream.payload(paths[path]);
    let end = run.end.min(run.start + LOOKED_AT as u64);
    let wire: Vec<u8> = payload.chunks(run.start..end).flatten().copied().collect();
    let at_beginning =
        subject.mode == Mode::Xor64 && stream.starts_at_its_first_byte() && run.start < BEFORE as u64;
    let before = match at_beginning {
        true => Before::at(run.start, &subject.seed(&subject.places[path], direction)),
        false => Before::UNKNOWN,
    };
    let attempt = attack(model, &wire, &before);
    let seen = payload
        .present()
        .within(run.start.saturating_sub(BEFORE as u64)..run.start)
        .map(|part| part.end)
        .last();
    let unseen = run.start - seen.unwrap_or(0).min(run.start);
    let recovered = attempt.recovered_before(&before, usize::try_from(unseen).unwrap_or(usize::MAX));
    (attempt, recovered)
}
