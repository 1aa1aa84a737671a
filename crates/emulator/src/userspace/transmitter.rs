//! Transmits the frames of one direction, or of both in turns, in virtual time.

use super::pacer::{Pacer, VirtualTime};
use super::pipe::Pipe;
use crate::spec::Pace;

/// A transmitter with its overhead per frame.
///
/// If two directions share it and both have frames queued, they alternate: the distributed coordination function of
/// IEEE 802.11 gives every station the same number of transmissions.
pub(super) struct Transmitter {
    /// The overhead before each frame, in nanoseconds.
    per_frame: u64,
    /// When the last transmission ended; `last` is the pipe that it was from.
    free: VirtualTime,
    last: usize,
    current: Option<Transmission>,
}

/// A transmission of the first queued frames of a pipe.
struct Transmission {
    pipe: usize,
    /// When it began or its pace last changed, and what remained to be transmitted then.
    since: VirtualTime,
    overhead: u64,
    bits: u64,
    end: VirtualTime,
}

impl Transmitter {
    pub(super) fn new(per_frame: u64) -> Self {
        Self { per_frame, free: VirtualTime::at(0), last: 0, current: None }
    }

    /// Completes all transmissions that end by `now`.
    pub(super) fn advance<P: Clone>(&mut self, pipes: &mut [Pipe<P>], now: u64) {
        loop {
            if self.current.is_none() {
                self.current = self.begin(pipes);
            }
            match self.current.take_if(|current| current.end.ns <= now) {
                Some(sent) => {
                    self.free = sent.end;
                    self.last = sent.pipe;
                    pipes[sent.pipe].finish_transmission(sent.end.ns);
                }
                None => return,
            }
        }
    }

    /// When the current transmission ends.
    pub(super) fn end(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.end.ns)
    }

    /// Changes the pace of a pipe, including the current transmission, whose transmitted bits stay transmitted. A
    /// trace has no rate, so the transmission restarts when the pace changes to or from one.
    pub(super) fn set_pace<P: Clone>(&mut self, pipes: &mut [Pipe<P>], index: usize, pace: &Pace, now: u64) {
        self.advance(pipes, now);
        let pipe = &mut pipes[index];
        let before = std::mem::replace(&mut pipe.pacer, Pacer::new(pace, now));
        let Some(current) = self.current.as_mut().filter(|current| current.pipe == index) else { return };
        let Some(first) = pipe.next_queued() else { return };
        let frames = first.part.frames.len() as u32;
        let elapsed = now.saturating_sub(current.since.ns);
        if let (Pacer::Rate(rate), Pacer::Rate(_) | Pacer::Unlimited) = (before, &pipe.pacer) {
            let sending = elapsed.saturating_sub(current.overhead);
            let sent = u128::from(sending) * u128::from(rate) / 1_000_000_000;
            current.bits -= u64::try_from(sent).map_or(current.bits, |sent| sent.min(current.bits));
        } else {
            current.bits = first.part.bytes * 8;
        }
        current.overhead = current.overhead.saturating_sub(elapsed);
        current.since = VirtualTime::at(now);
        current.end = pipe.pacer.end(current.since.plus_ns(current.overhead), now, current.bits, frames);
    }

    /// Discards the current transmission.
    pub(super) fn abort(&mut self, now: u64) {
        if self.current.take().is_some() {
            self.free = self.free.or_later(now);
        }
    }

    /// Starts with the pipe that can transmit first; if both have frames queued, with the one that did not transmit
    /// last.
    fn begin<P: Clone>(&self, pipes: &mut [Pipe<P>]) -> Option<Transmission> {
        let begins = |pipe: &Pipe<P>| pipe.next_queued().map(|first| first.arrival.max(self.free.ns));
        let (_, _, index) = (0..pipes.len())
            .filter_map(|index| Some((begins(&pipes[index])?, index == self.last, index)))
            .min()?;
        let pipe = &mut pipes[index];
        let first = pipe.next_queued()?;
        let (arrival, frames, bits) = (first.arrival, first.part.frames.len() as u32, first.part.bytes * 8);
        let since = self.free.or_later(arrival);
        let overhead = self.per_frame.saturating_mul(u64::from(frames));
        let end = pipe.pacer.end(since.plus_ns(overhead), arrival, bits, frames);
        Some(Transmission { pipe: index, since, overhead, bits, end })
    }
}
