//! Reassembly of a stream by data sequence number, and head-of-line blocking.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use super::stalls::Stalls;

/// Reassembly of a stream by data sequence number (RFC 8684 3.3.1): which data waits for data of other subflows, or for
/// lost data, and how long.
#[derive(Clone, Debug, Default)]
pub(super) struct Reassembly {
    /// Everything before has arrived.
    front: Option<u64>,
    /// Since when later data has been waiting at this front.
    still_since: Timestamp,
    /// Data beyond the front, by subflow: within one it is mostly in order.
    queues: Vec<VecDeque<Waiting>>,
    /// Number of entries in all queues.
    waiting: usize,
    /// When later data was waiting, and which subflow filled the gap.
    pub(super) stalls: Stalls<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    start: u64,
    end: u64,
    time: Timestamp,
}

/// Data that waited: its subflow, and how long.
pub(super) type Waited = (usize, Duration);

/// Maximum number of waiting segments: more than fit into a receive window. If there are more, the data that they wait for
/// was not captured.
const MAX_WAITING: usize = 1 << 14;

impl Reassembly {
    /// Adds the bytes of `range`, carried by a subflow; calls `released` for data that they complete.
    pub(super) fn arrived(
        &mut self,
        range: &Range<u64>,
        subflow: usize,
        time: Timestamp,
        released: impl FnMut(Waited),
    ) {
        let front = *self.front.get_or_insert(range.start);
        if range.end <= front {
            return;
        }
        if range.start <= front {
            self.advance(range.end, Some(subflow), time, released);
            return;
        }
        if self.waiting == 0 {
            self.still_since = time;
        }
        self.wait(range, subflow, time);
        if self.waiting > MAX_WAITING
            && let Some(start) = self.queues.iter().filter_map(|queue| Some(queue.front()?.start)).min()
        {
            self.advance(start, None, time, released);
        }
    }

    fn wait(&mut self, range: &Range<u64>, subflow: usize, time: Timestamp) {
        let Range { start, end } = *range;
        if self.queues.len() <= subflow {
            self.queues.resize_with(subflow + 1, VecDeque::new);
        }
        let queue = &mut self.queues[subflow];
        let place = match queue.back() {
            Some(last) if last.start >= start => queue.partition_point(|waiting| waiting.start < start),
            _ => queue.len(),
        };
        match queue.get_mut(place) {
            Some(waiting) if waiting.start == start => waiting.end = waiting.end.max(end),
            _ => {
                queue.insert(place, Waiting { start, end, time });
                self.waiting += 1;
            }
        }
    }

    /// The receiver acknowledged everything before `position`.
    pub(super) fn delivered(&mut self, position: u64, time: Timestamp, released: impl FnMut(Waited)) {
        if self.front.is_none_or(|front| front < position) {
            self.advance(position, None, time, released);
        }
    }

    /// Sets the start of the stream.
    pub(super) fn starts(&mut self, origin: u64) {
        self.front.get_or_insert(origin);
    }

    #[inline]
    fn advance(
        &mut self,
        to: u64,
        subflow: Option<usize>,
        time: Timestamp,
        mut released: impl FnMut(Waited),
    ) {
        if let Some(subflow) = subflow
            && self.waiting > 0
        {
            self.stalls.record(self.still_since, time, subflow);
        }
        let (mut front, mut moved) = (to, self.waiting > 0);
        while moved {
            moved = false;
            for (subflow, queue) in self.queues.iter_mut().enumerate() {
                while let Some(Waiting { start, end, time: arrived }) = queue.front().copied()
                    && start <= front
                {
                    queue.pop_front();
                    self.waiting -= 1;
                    released((subflow, time.since(arrived).unwrap_or_default()));
                    moved |= end > front;
                    front = front.max(end);
                }
            }
        }
        self.front = Some(front);
        self.still_since = time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a list of all arrivals: a segment waits until all data before it has arrived.
        #[test]
        fn data_waits_for_the_last_byte_before_it(arrivals in vec((0..40u64, 1..10u64), 1..40)) {
            let (mut reassembly, mut found) = (Reassembly::default(), Vec::new());
            reassembly.starts(0);
            let (mut there, mut front, mut expected) = ([false; 64], 0, Vec::new());
            let mut waiting: Vec<(u64, u64)> = Vec::new();
            for (time, (start, length)) in arrivals.iter().enumerate() {
                let (range, now) = (*start..start + length, time as u64);
                reassembly.arrived(&range, 0, Timestamp(now), |(_, waited)| found.push(waited.as_nanos() as u64));
                range.clone().for_each(|byte| there[byte as usize] = true);
                if range.start > front && !waiting.iter().any(|(other, _)| *other == range.start) {
                    waiting.push((range.start, now));
                }
                while there[front as usize] {
                    front += 1;
                }
                waiting.retain(|(start, since)| {
                    if *start <= front {
                        expected.push(now - since);
                    }
                    *start > front
                });
            }
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn acknowledged_data_is_not_waited_for() {
        let (mut reassembly, mut released) = (Reassembly::default(), 0);
        reassembly.starts(0);
        reassembly.arrived(&(100..200), 0, Timestamp(5), |_| released += 1);
        reassembly.delivered(100, Timestamp(9), |(_, waited)| {
            assert_eq!(waited, Duration::from_nanos(4));
            released += 1;
        });
        assert_eq!((released, reassembly.front), (1, Some(200)));
    }
}
