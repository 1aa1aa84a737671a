//! How long the processor waits for memory: reads each of which finds the address of the next.

use std::time::{Duration, Instant};

use super::trial::middle_mean;

/// What the processor's caches read at once.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    next: u32,
}

/// Lines of memory, linked to a cycle in random order.
pub(super) struct Cycle(Vec<Line>);

/// How often all lines are read, after a first time.
const ROUNDS: u32 = 3;

impl Cycle {
    /// A cycle of this many lines of 64 bytes.
    pub(super) fn new(lines: u32) -> Cycle {
        let mut cycle: Vec<_> = (0..lines).map(|next| Line { next }).collect();
        let mut state = 1;
        // Sattolo's shuffle, which makes a single cycle.
        for last in (1..lines as usize).rev() {
            cycle.swap(last, (random(&mut state) % last as u64) as usize);
        }
        Cycle(cycle)
    }

    /// Nanoseconds of a read, the mean of the middle half, when `group` of them follow each other every `interval`: what other
    /// programs and machines do meanwhile evicts lines from the caches that all share.
    pub(super) fn read_ns(&self, group: u32, interval: Duration) -> f64 {
        let groups = self.0.len() as u32 / group;
        let mut at = 0;
        let mut times = Vec::new();
        for round in 0..=ROUNDS {
            for _ in 0..groups {
                let started = Instant::now();
                at = std::hint::black_box(self.follow(at, group));
                let took = started.elapsed();
                if round > 0 {
                    times.push(took.as_nanos() as u32);
                }
                while started.elapsed() < interval {}
            }
        }
        middle_mean(times) / f64::from(group)
    }

    fn follow(&self, from: u32, reads: u32) -> u32 {
        (0..reads).fold(from, |at, _| self.0[at as usize].next)
    }
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_reaches_every_line_once() {
        for lines in [1, 2, 1000] {
            let Cycle(cycle) = Cycle::new(lines);
            let mut seen = vec![false; lines as usize];
            let mut at = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[at], true));
                at = cycle[at].next as usize;
            }
            assert_eq!(at, 0);
        }
    }
}
