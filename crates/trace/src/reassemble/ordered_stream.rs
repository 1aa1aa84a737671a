//! Puts the data of a stream in order, and decides what is missing.

use std::collections::BTreeMap;
use std::time::Duration;

use plait_wire::capture::Timestamp;

/// One direction of a connection, of which only data ahead of order is kept.
#[derive(Debug, Default)]
pub(super) struct OrderedStream {
    /// Everything before has been handed out.
    front: Option<u64>,
    /// Data up to here is known, but its bytes were not captured, unless they wait below.
    not_captured_to: u64,
    waiting: BTreeMap<u64, Waiting>,
    waiting_bytes: usize,
    /// The receiver has acknowledged data beyond the front, since this time.
    delivered: Option<(u64, Timestamp)>,
}

#[derive(Debug)]
struct Waiting {
    captured: Vec<u8>,
    length: u64,
}

/// A part of the stream, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Bytes(&'a [u8]),
    /// This many bytes were not captured.
    Gap(u64),
}

/// What a waiting segment takes besides its bytes.
const OVERHEAD: usize = 96;

/// How long data may be captured after its acknowledgement, if a capture tool merges the packets of several processors.
const REORDERING_TOLERANCE: Duration = Duration::from_millis(20);

impl OrderedStream {
    /// Adds data at a position; `captured` are its first bytes. Calls `next` for all parts that are now in order.
    pub(super) fn add(
        &mut self,
        position: u64,
        length: u64,
        captured: Vec<u8>,
        origin: Option<u64>,
        mut next: impl FnMut(Part<'_>),
    ) {
        let front = *self.front.get_or_insert(origin.unwrap_or(position));
        if position.saturating_add(length) <= front {
            return;
        }
        if position > front {
            self.wait(position, Waiting { captured, length });
            return;
        }
        self.take(position, &Waiting { captured, length }, &mut next);
        self.release(&mut next);
    }

    /// Records that the receiver has acknowledged everything before `position`.
    pub(super) fn delivered(&mut self, position: u64, time: Timestamp) {
        let since = self.delivered.map_or(time, |(_, since)| since);
        if self.front.is_some_and(|front| front < position) {
            self.delivered = Some((position, since));
        }
    }

    /// Gives up on data that was delivered but not captured.
    pub(super) fn give_up_delivered(&mut self, now: Timestamp, mut next: impl FnMut(Part<'_>)) {
        let Some((position, since)) = self.delivered else { return };
        let Some(front) = self.front else { return };
        if front >= position {
            self.delivered = None;
        } else if now.since(since).is_some_and(|waited| waited >= REORDERING_TOLERANCE) {
            self.delivered = None;
            while self.front.is_some_and(|front| front < position) && !self.waiting.is_empty() {
                self.skip_gap(&mut next);
            }
        }
    }

    /// Skips to the first data that waits.
    pub(super) fn skip_gap(&mut self, next: &mut impl FnMut(Part<'_>)) {
        if let (Some((start, _)), Some(front)) = (self.waiting.first_key_value(), self.front) {
            next(Part::Gap(*start - front));
            self.front = Some(*start);
            self.release(next);
        }
    }

    /// Hands out everything.
    pub(super) fn finish(&mut self, mut next: impl FnMut(Part<'_>)) {
        while !self.waiting.is_empty() {
            self.skip_gap(&mut next);
        }
    }

    /// Memory that waiting data takes, in bytes.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    fn wait(&mut self, position: u64, new: Waiting) {
        // Of two copies, the one with more bytes in the capture.
        let more = self.waiting.get(&position).is_none_or(|old| old.captured.len() < new.captured.len());
        if more {
            self.waiting_bytes += new.captured.len() + OVERHEAD;
            if let Some(old) = self.waiting.insert(position, new) {
                self.waiting_bytes -= old.captured.len() + OVERHEAD;
            }
        }
    }

    /// Hands out what a segment that starts at or before the front has beyond it.
    fn take(&mut self, position: u64, segment: &Waiting, next: &mut impl FnMut(Part<'_>)) {
        let Some(front) = self.front else { return };
        self.not_captured_to = self.not_captured_to.max(position.saturating_add(segment.length));
        let known = usize::try_from(front - position).unwrap_or(usize::MAX);
        if let Some(bytes) = segment.captured.get(known..).filter(|bytes| !bytes.is_empty()) {
            next(Part::Bytes(bytes));
            self.front = Some(front + bytes.len() as u64);
        }
    }

    fn release(&mut self, next: &mut impl FnMut(Part<'_>)) {
        while let Some(front) = self.front {
            let first = self.waiting.first_key_value().map(|(start, _)| *start);
            if first.is_some_and(|start| start <= front) {
                let Some((start, segment)) = self.waiting.pop_first() else { return };
                self.waiting_bytes -= segment.captured.len() + OVERHEAD;
                self.take(start, &segment, next);
            } else if self.not_captured_to > front {
                let to = first.map_or(self.not_captured_to, |start| start.min(self.not_captured_to));
                next(Part::Gap(to - front));
                self.front = Some(to);
            } else {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The stream with a 0 for each byte of a gap.
    fn collect(output: &mut Vec<u8>) -> impl FnMut(Part<'_>) {
        |part| match part {
            Part::Bytes(bytes) => output.extend(bytes),
            Part::Gap(length) => output.extend(vec![0; length as usize]),
        }
    }

    proptest! {
        /// Any order of overlapping, truncated segments gives every captured byte at its place, and only those that were not
        /// captured are missing.
        #[test]
        fn equals_an_array(segments in vec((0..200u64, 1..40u64, 0..40usize), 1..60)) {
            let byte = |position: u64| 1 + (position % 251) as u8;
            let (mut stream, mut output) = (OrderedStream::default(), Vec::new());
            let mut array = [0; 300];
            for (position, length, captured) in segments {
                let bytes: Vec<u8> = (position..position + length).map(byte).take(captured).collect();
                // What is handed out cannot be filled in later.
                let handed_out = output.len();
                for (offset, byte) in bytes.iter().enumerate() {
                    let place = position as usize + offset;
                    if place >= handed_out {
                        array[place] = *byte;
                    }
                }
                stream.add(position, length, bytes, Some(0), collect(&mut output));
            }
            stream.finish(collect(&mut output));
            prop_assert_eq!(&output[..], &array[..output.len()]);
            prop_assert!(array[output.len()..].iter().all(|byte| *byte == 0));
            prop_assert_eq!(stream.waiting_bytes(), 0);
        }
    }

    #[test]
    fn gives_up_on_what_was_delivered_but_not_captured() {
        let (mut stream, mut output) = (OrderedStream::default(), Vec::new());
        stream.add(0, 2, vec![1, 2], Some(0), collect(&mut output));
        stream.add(4, 2, vec![5, 6], Some(0), collect(&mut output));
        stream.delivered(6, Timestamp(1_000_000));
        stream.give_up_delivered(Timestamp(2_000_000), collect(&mut output));
        assert_eq!(output, [1, 2]);
        stream.give_up_delivered(Timestamp(30_000_000), collect(&mut output));
        assert_eq!(output, [1, 2, 0, 0, 5, 6]);
    }
}
