//! The measurement: rounds in which the transforms take turns.

use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::transform::{Buffers, Direction, Transform};
use super::transforms;
use crate::machine::{median, progress_bar};

/// Buffer sizes measured, in bytes.
pub(super) const SIZES: [usize; 4] = [64, 1280, 16_384, 1_048_576];
/// The minimum size of all buffers together: fits the first-level cache of common processors.
const MEMORY: usize = 32 * 1024;
/// Turns of each transform, per size.
pub(super) const ROUNDS: usize = 31;
/// The duration of a turn, unless a single pass takes longer.
const TURN: Duration = Duration::from_micros(500);
/// The transform that all ratios refer to, per direction.
pub(super) const REFERENCE: &str = "aes-128-gcm-ring";

/// The result of one transform at one size.
pub(super) struct Measurement {
    pub(super) name: String,
    pub(super) direction: Direction,
    pub(super) size: usize,
    /// Bytes on all paths together for `size` bytes of plaintext.
    pub(super) wire_bytes: usize,
    pub(super) one_path_of_two: &'static str,
    /// In 10^9 bytes per second: median over the rounds.
    pub(super) gb_per_s: f64,
    /// Times the speed of [`REFERENCE`] in the same direction: median of the ratios within a round.
    pub(super) ratio: f64,
}

/// Measures every transform at every size, or those with these names and [`REFERENCE`].
///
/// Pins this thread to the processor it runs on.
pub(super) fn all(only: &[String]) -> anyhow::Result<Vec<Measurement>> {
    if let Some(name) = only.iter().find(|name| !transforms::all().iter().any(|one| one.name == **name)) {
        bail!("expected the name of a transform, as the results list them, got {name:?}");
    }
    let chosen = |name: &str| only.is_empty() || name == REFERENCE || only.iter().any(|one| one == name);
    pin_to_current_cpu()?;
    let progress = progress_bar((SIZES.len() * ROUNDS) as u64)?;
    let measured = SIZES.iter().flat_map(|&size| {
        progress.set_message(format!("buffers of {size} bytes"));
        measure_size(size, &chosen, &progress)
    });
    let measured = measured.collect();
    progress.finish_and_clear();
    Ok(measured)
}

fn pin_to_current_cpu() -> rustix::io::Result<()> {
    let mut current = CpuSet::new();
    current.set(sched_getcpu());
    sched_setaffinity(None, &current)
}

fn measure_size(size: usize, chosen: &impl Fn(&str) -> bool, progress: &ProgressBar) -> Vec<Measurement> {
    let mut transforms = transforms::all();
    transforms.retain(|transform| chosen(&transform.name));
    let mut buffers = Buffers::new(size, (MEMORY / size).max(1));
    let mut speeds = vec![Vec::with_capacity(ROUNDS); transforms.len()];
    for _ in 0..ROUNDS {
        for (transform, speeds) in transforms.iter_mut().zip(&mut speeds) {
            speeds.push(turn(transform, &mut buffers));
        }
        progress.inc(1);
    }

    let reference = |direction| {
        let is_reference = |c: &Transform| c.name == REFERENCE && c.direction == direction;
        &speeds[transforms.iter().position(is_reference).expect("the reference is in the list")]
    };
    let measured = transforms.iter().zip(&speeds).map(|(transform, speeds)| {
        let ratios =
            speeds.iter().zip(reference(transform.direction)).map(|(speed, reference)| speed / reference);
        Measurement {
            name: transform.name.clone(),
            direction: transform.direction,
            size,
            wire_bytes: (transform.wire.bytes)(size),
            one_path_of_two: transform.wire.one_path_of_two,
            gb_per_s: median(speeds.iter().copied()),
            ratio: median(ratios),
        }
    });
    measured.collect()
}

/// One turn of a transform: its speed in 10^9 bytes per second. The first pass warms up; it counts only if it fills
/// the turn.
fn turn(transform: &mut Transform, buffers: &mut Buffers) -> f64 {
    let mut pass = || {
        (transform.prepare)(buffers);
        let start = Instant::now();
        (transform.pass)(buffers);
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
