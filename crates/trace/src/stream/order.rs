use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;

use super::stalls::Stalls;

/// How the data of a stream comes into its order: what waits for data of other subflows, or for lost data, and how
/// long (RFC 8684 3.3.1: the receiver reassembles by data sequence number).
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// Everything before has arrived.
    front: Option<u64>,
    /// Since when the front is where it is and later data waits.
    still_since: Timestamp,
    /// What arrived beyond the front, by subflow: each brings its own mostly in order.
    queues: Vec<VecDeque<Waiting>>,
    /// How much is in the queues.
    waiting: usize,
    /// When the front stood still although later data was there, and which subflow moved it on.
    pub(super) stalls: Stalls<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    start: u64,
    end: u64,
    time: Timestamp,
}

/// Something that waited: the subflow that had carried it, and for how long.
pub(super) type Waited = (usize, Duration);

/// How many pieces wait at most: more than fit into a receive window. Beyond it, what they wait for was not captured.
const WAITING_KEPT: usize = 1 << 14;

impl Order {
    /// The bytes of `range` arrived by a subflow. Tells what they released.
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
        if self.waiting > WAITING_KEPT
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

    /// The receiver said that it has everything before `position`.
    pub(super) fn delivered(&mut self, position: u64, time: Timestamp, released: impl FnMut(Waited)) {
        if self.front.is_none_or(|front| front < position) {
            self.advance(position, None, time, released);
        }
    }

    /// The stream starts here.
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
            self.stalls.moved_on(self.still_since, time, subflow);
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
        /// Against a list of all that arrived: a segment waits until the first time at which all before it is there.
        #[test]
        fn waits_end_when_the_last_byte_before_arrives(arrivals in vec((0..40u64, 1..10u64), 1..40)) {
            let (mut order, mut found) = (Order::default(), Vec::new());
            order.starts(0);
            let (mut there, mut front, mut expected) = ([false; 64], 0, Vec::new());
            let mut waiting: Vec<(u64, u64)> = Vec::new();
            for (time, (start, length)) in arrivals.iter().enumerate() {
                let (range, now) = (*start..start + length, time as u64);
                order.arrived(&range, 0, Timestamp(now), |(_, waited)| found.push(waited.as_nanos() as u64));
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
    fn what_was_not_captured_is_not_waited_for() {
        let (mut order, mut released) = (Order::default(), 0);
        order.starts(0);
        order.arrived(&(100..200), 0, Timestamp(5), |_| released += 1);
        order.delivered(100, Timestamp(9), |(_, waited)| {
            assert_eq!(waited, Duration::from_nanos(4));
            released += 1;
        });
        assert_eq!((released, order.front), (1, Some(200)));
    }
}
