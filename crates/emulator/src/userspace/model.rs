//! A link in virtual time: frames enter with their arrival time and leave when they are due. It uses no I/O and no
//! clock, and is deterministic: equal frames, times and seeds give equal results.

use super::pacer::nanoseconds;
use super::pipe::{InFlight, Pipe, PipeCounters, Train, accepts_trains};
use super::transmitter::Transmitter;
use crate::spec::{Change, DirectionSpec, LinkSpec, Medium, Toward};

/// A direction of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    AToB,
    BToA,
}

impl Direction {
    pub(super) const BOTH: [Self; 2] = [Self::AToB, Self::BToA];

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// A link whose frames carry a payload `P`.
///
/// Times are in nanoseconds since an arbitrary origin, and must not decrease from call to call.
pub(super) struct Model<P> {
    directions: [DirectionSpec; 2],
    medium: Medium,
    pipes: [Pipe<P>; 2],
    transmitters: Transmitters,
    blackhole: bool,
    carrier: bool,
}

enum Transmitters {
    Each([Transmitter; 2]),
    Shared(Transmitter),
}

impl<P: Clone> Model<P> {
    pub(super) fn new(spec: &LinkSpec, seed: u64, now: u64) -> Self {
        let directions = [spec.a_to_b.clone(), spec.b_to_a.clone()];
        let pipe = |direction: Direction| {
            Pipe::new(&directions[direction.index()], spec.medium, seed ^ direction.index() as u64, now)
        };
        Self {
            pipes: Direction::BOTH.map(pipe),
            transmitters: match spec.medium {
                Medium::FullDuplex => Transmitters::Each([Transmitter::new(0), Transmitter::new(0)]),
                Medium::HalfDuplex { per_frame } => {
                    Transmitters::Shared(Transmitter::new(nanoseconds(per_frame)))
                }
            },
            directions,
            medium: spec.medium,
            blackhole: false,
            carrier: true,
        }
    }

    /// Adds frames that arrive at one end.
    pub(super) fn enqueue(&mut self, direction: Direction, now: u64, train: Train, payload: P) {
        self.advance(now);
        self.pipes[direction.index()].enqueue(now, train, payload);
        self.advance(now);
    }

    /// Removes and returns the next frames that are due at the other end by `now`.
    pub(super) fn pop_due(&mut self, direction: Direction, now: u64) -> Option<InFlight<P>> {
        self.advance(now);
        self.pipes[direction.index()].pop_due(now)
    }

    /// A time before which nothing becomes due; `None` if the link is empty.
    pub(super) fn next(&self) -> Option<u64> {
        let [a, b] = &self.pipes;
        let sent = match &self.transmitters {
            Transmitters::Each([to_b, to_a]) => [
                to_b.end().map(|end| end.saturating_add(a.min_delay())),
                to_a.end().map(|end| end.saturating_add(b.min_delay())),
            ],
            Transmitters::Shared(both) => {
                [both.end().map(|end| end.saturating_add(a.min_delay().min(b.min_delay()))), None]
            }
        };
        sent.into_iter().chain([a.next_due(), b.next_due()]).flatten().min()
    }

    pub(super) fn apply(&mut self, change: &Change, now: u64) {
        self.advance(now);
        match change {
            Change::Blackhole => self.blackhole = true,
            Change::Restore => self.blackhole = false,
            Change::Carrier(carrier) => self.carrier = *carrier,
            Change::Adjust(toward, adjustment) => {
                for (direction, other) in [(Direction::AToB, Toward::A), (Direction::BToA, Toward::B)] {
                    if *toward != other {
                        self.adjust(direction, self.directions[direction.index()].adjusted(adjustment), now);
                    }
                }
            }
        }
        let open = !self.blackhole && self.carrier;
        if !open {
            match &mut self.transmitters {
                Transmitters::Each(each) => each.iter_mut().for_each(|transmitter| transmitter.abort(now)),
                Transmitters::Shared(both) => both.abort(now),
            }
        }
        self.pipes.iter_mut().for_each(|pipe| pipe.set_up(open));
    }

    /// Whether this direction accepts packet trains.
    pub(super) fn accepts_trains(&self, direction: Direction) -> bool {
        accepts_trains(&self.directions[direction.index()], self.medium)
    }

    pub(super) fn counters(&self, direction: Direction) -> PipeCounters {
        self.pipes[direction.index()].counters
    }

    fn adjust(&mut self, direction: Direction, to: DirectionSpec, now: u64) {
        let index = direction.index();
        if to.pace != self.directions[index].pace {
            match &mut self.transmitters {
                Transmitters::Each(each) => {
                    each[index].set_pace(std::slice::from_mut(&mut self.pipes[index]), 0, &to.pace, now);
                }
                Transmitters::Shared(both) => both.set_pace(&mut self.pipes, index, &to.pace, now),
            }
        }
        self.pipes[index].set(&to, self.medium);
        self.directions[index] = to;
    }

    fn advance(&mut self, now: u64) {
        match &mut self.transmitters {
            Transmitters::Each(each) => {
                for (transmitter, pipe) in each.iter_mut().zip(&mut self.pipes) {
                    transmitter.advance(std::slice::from_mut(pipe), now);
                }
            }
            Transmitters::Shared(both) => both.advance(&mut self.pipes, now),
        }
    }
}

#[cfg(test)]
mod tests;
