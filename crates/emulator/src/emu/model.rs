//! A link in virtual time: frames go in with the time at which they came, and come out when they are due. No input, no
//! output and no clock, so that the same frames at the same times with the same seed always have the same fate.

use super::nanoseconds;
use super::pipe::{Flying, Pipe, Tally, Train, takes_trains};
use super::transmitter::Transmitter;
use crate::{Change, Direction, LinkSpec, Medium, Toward};

/// One of the two directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    AToB,
    BToA,
}

impl Way {
    pub(super) const BOTH: [Self; 2] = [Self::AToB, Self::BToA];

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// A link whose frames are made of `P`.
///
/// Time is in nanoseconds since anything, and whoever calls never goes back in it.
pub(super) struct Model<P> {
    directions: [Direction; 2],
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
        let pipe =
            |way: Way| Pipe::new(&directions[way.index()], spec.medium, seed ^ way.index() as u64, now);
        Self {
            pipes: Way::BOTH.map(pipe),
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

    /// Frames come at one end.
    pub(super) fn enter(&mut self, way: Way, now: u64, train: Train, payload: P) {
        self.advance(now);
        self.pipes[way.index()].enter(now, train, payload);
        self.advance(now);
    }

    /// The next frames that are due at the other end by now.
    pub(super) fn arrive(&mut self, way: Way, now: u64) -> Option<Flying<P>> {
        self.advance(now);
        self.pipes[way.index()].arrive(now)
    }

    /// A time before which nothing is due, however often one asks before; `None` as long as nothing comes.
    pub(super) fn next(&self) -> Option<u64> {
        let [a, b] = &self.pipes;
        let sent = match &self.transmitters {
            Transmitters::Each([to_b, to_a]) => [
                to_b.end().map(|end| end.saturating_add(a.least_delay())),
                to_a.end().map(|end| end.saturating_add(b.least_delay())),
            ],
            Transmitters::Shared(both) => {
                [both.end().map(|end| end.saturating_add(a.least_delay().min(b.least_delay()))), None]
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
                for way in Way::BOTH {
                    let meant = match toward {
                        Toward::Each => true,
                        Toward::A => way == Way::BToA,
                        Toward::B => way == Way::AToB,
                    };
                    if meant {
                        self.adjust(way, self.directions[way.index()].adjusted(adjustment), now);
                    }
                }
            }
        }
        let open = !self.blackhole && self.carrier;
        if !open {
            match &mut self.transmitters {
                Transmitters::Each(each) => each.iter_mut().for_each(|transmitter| transmitter.abandon(now)),
                Transmitters::Shared(both) => both.abandon(now),
            }
        }
        self.pipes.iter_mut().for_each(|pipe| pipe.set_open(open));
    }

    /// Whether this direction takes trains of frames.
    pub(super) fn takes_trains(&self, way: Way) -> bool {
        takes_trains(&self.directions[way.index()], self.medium)
    }

    pub(super) fn tally(&self, way: Way) -> Tally {
        self.pipes[way.index()].counters
    }

    fn adjust(&mut self, way: Way, to: Direction, now: u64) {
        let index = way.index();
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
