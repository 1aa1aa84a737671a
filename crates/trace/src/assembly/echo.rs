//! Round trips between the capture and the sender of data, from the timestamps that its data echoes (RFC 7323 4).
//!
//! At the receiver, an acknowledgement passes the capture, travels to the sender, and lets it send data, which echoes the
//! acknowledgement's timestamp when it passes the capture (Strowes 2013, "Passively measuring TCP round-trip times"). Such
//! a sample contains the time that the sender waited for its application, unless the acknowledgement was what it waited
//! for. That is assumed where both hold: the echo is not the end of what the application wrote (no PSH), and other data
//! was under way when the acknowledgement passed.

use std::collections::VecDeque;
use std::time::Duration;

use plait_wire::capture::Timestamp;

/// Timestamps of one side's peer that wait for their echo in that side's data.
#[derive(Debug, Default)]
pub(crate) struct EchoClock {
    waiting: VecDeque<Waiting>,
    /// The latest timestamp of the peer: timestamps never go back.
    newest: Option<u32>,
    /// Number of data segments so far.
    data_segments: u64,
}

#[derive(Debug)]
struct Waiting {
    value: u32,
    /// When it first passed the capture.
    first: Timestamp,
    /// The number of data segments before it last passed.
    data_segments: u64,
}

/// The time from a timestamp to its echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) time: Duration,
    /// Whether the echo was sent because of the segment with the timestamp, not because the application wrote.
    pub(crate) is_clocked: bool,
}

/// Maximum number of timestamps that wait: reached only if they are never echoed.
const MAX_WAITING: usize = 1 << 12;

impl EchoClock {
    /// Records a timestamp of the peer.
    pub(crate) fn peer_sent(&mut self, value: u32, time: Timestamp) {
        let data_segments = self.data_segments;
        if self.newest.is_none_or(|newest| (value.wrapping_sub(newest) as i32) > 0) {
            self.newest = Some(value);
            if self.waiting.len() == MAX_WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back(Waiting { value, first: time, data_segments });
        } else if let Some(last) = self.waiting.back_mut().filter(|last| last.value == value) {
            last.data_segments = data_segments;
        }
    }

    /// Records a data segment that echoes a timestamp.
    pub(crate) fn echoed(&mut self, echo: u32, push: bool, time: Timestamp) -> Option<Echo> {
        let mut found = None;
        while let Some(next) = self.waiting.front()
            && (echo.wrapping_sub(next.value) as i32) >= 0
        {
            found = self.waiting.pop_front().filter(|next| next.value == echo);
        }
        let under_way = self.data_segments;
        self.data_segments += 1;
        let Waiting { first, data_segments, .. } = found?;
        Some(Echo { time: time.since(first)?, is_clocked: !push && under_way > data_segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn echoed(clock: &mut EchoClock, echo: u32, push: bool, ms: u64) -> Option<(u128, bool)> {
        clock
            .echoed(echo, push, Timestamp(ms * MS))
            .map(|Echo { time, is_clocked }| (time.as_millis(), is_clocked))
    }

    #[test]
    fn measures_from_the_first_segment_with_a_timestamp_to_its_first_echo() {
        let mut clock = EchoClock::default();
        clock.peer_sent(u32::MAX, Timestamp(10 * MS));
        clock.peer_sent(u32::MAX, Timestamp(11 * MS));
        clock.peer_sent(1, Timestamp(12 * MS));
        assert_eq!(echoed(&mut clock, u32::MAX - 1, false, 13), None);
        assert_eq!(echoed(&mut clock, u32::MAX, false, 31), Some((21, true)));
        assert_eq!(echoed(&mut clock, u32::MAX, false, 32), None);
        // An acknowledgement after the echo, within the same tick, is not answered by data under way.
        clock.peer_sent(u32::MAX, Timestamp(33 * MS));
        assert_eq!(echoed(&mut clock, u32::MAX, false, 34), None);
        assert_eq!(echoed(&mut clock, 1, false, 35), Some((23, true)));
    }

    #[test]
    fn data_of_an_idle_application_is_not_clocked_by_acknowledgements() {
        let mut clock = EchoClock::default();
        assert_eq!(echoed(&mut clock, 0, false, 0), None);
        clock.peer_sent(5, Timestamp(MS));
        assert_eq!(echoed(&mut clock, 5, false, 400), Some((399, false)), "nothing was under way");
        clock.peer_sent(500, Timestamp(401 * MS));
        assert_eq!(echoed(&mut clock, 5, false, 402), None);
        assert_eq!(echoed(&mut clock, 500, true, 422), Some((21, false)), "the end of what was written");
    }
}
