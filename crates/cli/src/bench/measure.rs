//! The rounds in which the candidates take turns.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::candidates::{self, Buffers, Candidate, Direction};

/// Buffer sizes measured, in bytes.
pub(super) const SIZES: [usize; 4] = [64, 1280, 16_384, 1_048_576];
/// All buffers together have at least this size: they fit the first-level cache of common processors if they can.
const MEMORY: usize = 32 * 1024;
/// How often each candidate has its turn, per size.
pub(super) const ROUNDS: usize = 31;
/// How long a turn is, unless a single pass takes longer.
const TURN: Duration = Duration::from_micros(500);
/// What the others are compared with, direction by direction.
pub(super) const REFERENCE: &str = "aes-128-gcm-ring";

/// One candidate at one size.
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) direction: Direction,
    pub(super) size: usize,
    /// What `size` bytes become, on all paths together.
    pub(super) wire_bytes: usize,
    pub(super) one_path_of_two: &'static str,
    /// In 10^9 bytes per second: median over the rounds.
    pub(super) gb_per_s: f64,
    /// Times the speed of [`REFERENCE`] in the same direction: median of the ratios within a round.
    pub(super) ratio: f64,
}

/// Measures every candidate at every size, showing progress if stderr is a terminal.
///
/// Keeps this thread on the processor it happens to be on.
pub(super) fn all() -> anyhow::Result<Vec<Measured>> {
    stay_on_this_processor()?;
    let progress = ProgressBar::new((SIZES.len() * ROUNDS) as u64).with_style(
        ProgressStyle::with_template("{msg} [{bar:40}] {percent}%, {eta} left")?.progress_chars("=> "),
    );
    let measured = SIZES.iter().flat_map(|&size| {
        progress.set_message(format!("buffers of {size} bytes"));
        at_size(size, &progress)
    });
    let measured = measured.collect();
    progress.finish_and_clear();
    Ok(measured)
}

fn stay_on_this_processor() -> rustix::io::Result<()> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here)
}

fn at_size(size: usize, progress: &ProgressBar) -> Vec<Measured> {
    let mut candidates = candidates::all();
    let mut buffers = Buffers::new(size, (MEMORY / size).max(1));
    let mut speeds = vec![Vec::with_capacity(ROUNDS); candidates.len()];
    for _ in 0..ROUNDS {
        for (candidate, speeds) in candidates.iter_mut().zip(&mut speeds) {
            speeds.push(turn(candidate, &mut buffers));
        }
        progress.inc(1);
    }

    let reference = |direction| {
        let is_reference = |c: &Candidate| c.name == REFERENCE && c.direction == direction;
        &speeds[candidates.iter().position(is_reference).expect("the reference is a candidate")]
    };
    let measured = candidates.iter().zip(&speeds).map(|(candidate, own)| {
        let ratios = own.iter().zip(reference(candidate.direction)).map(|(own, reference)| own / reference);
        Measured {
            name: candidate.name.clone(),
            direction: candidate.direction,
            size,
            wire_bytes: (candidate.wire.bytes)(size),
            one_path_of_two: candidate.wire.one_path_of_two,
            gb_per_s: median(own.iter().copied()),
            ratio: median(ratios),
        }
    });
    measured.collect()
}

/// One turn of a candidate: its speed in 10^9 bytes per second. A first pass, to warm up, is not counted unless it
/// fills the turn.
fn turn(candidate: &mut Candidate, buffers: &mut Buffers) -> f64 {
    let mut pass = || {
        (candidate.prepare)(buffers);
        let start = Instant::now();
        (candidate.pass)(buffers);
        start.elapsed()
    };
    let first = pass();
    let (mut time, mut passes) = if first < TURN { (Duration::ZERO, 0) } else { (first, 1) };
    while time < TURN {
        time += pass();
        passes += 1;
    }
    (buffers.total() * passes) as f64 / time.as_secs_f64() / 1e9
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
