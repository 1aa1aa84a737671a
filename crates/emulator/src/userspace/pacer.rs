//! Computes when the transmission of a frame ends. Exact: rounding errors do not accumulate.

use std::sync::Arc;
use std::time::Duration;

use crate::spec::Pace;
use crate::trace::Trace;

/// A point in virtual time: whole nanoseconds and a fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VirtualTime {
    pub(super) ns: u64,
    part: u64,
    of: u64,
}

impl VirtualTime {
    pub(super) const fn at(ns: u64) -> Self {
        Self { ns, part: 0, of: 1 }
    }

    /// The later of this time and `ns`.
    pub(super) fn or_later(self, ns: u64) -> Self {
        if ns > self.ns { Self::at(ns) } else { self }
    }

    pub(super) fn plus_ns(self, ns: u64) -> Self {
        Self { ns: self.ns.saturating_add(ns), ..self }
    }

    /// Adds the transmission time of `bits`. Does not overflow for up to 2^34 bits, far more than one super-packet.
    pub(super) fn plus_bits(self, bits: u64, rate: u64) -> Self {
        let part = if self.of == rate {
            self.part
        } else {
            // The quotient is less than `rate`, because `part` is less than `of`.
            (u128::from(self.part) * u128::from(rate) / u128::from(self.of)) as u64
        };
        let time = bits * 1_000_000_000 + part;
        Self { ns: self.ns.saturating_add(time / rate), part: time % rate, of: rate }
    }
}

/// Converts to nanoseconds; saturates after 584 years.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// The rate of one direction, or the position in its trace.
pub(super) enum Pacer {
    Unlimited,
    /// In bits per second.
    Rate(u64),
    Trace(TraceCursor),
}

impl Pacer {
    /// Creates a pacer; a trace starts at `now`, in nanoseconds.
    pub(super) fn new(pace: &Pace, now: u64) -> Self {
        match pace {
            Pace::Unlimited => Self::Unlimited,
            Pace::Rate(rate) => Self::Rate(rate.bits_per_second()),
            Pace::Trace(trace) => Self::Trace(TraceCursor::new(trace, now)),
        }
    }

    /// The time at which the transmission of these bits ends if it can start at `start`. `since` is the time at which
    /// their frames were queued.
    pub(super) fn end(&mut self, start: VirtualTime, since: u64, bits: u64, frames: u32) -> VirtualTime {
        match self {
            Self::Unlimited => start,
            Self::Rate(rate) => start.plus_bits(bits, *rate),
            Self::Trace(opportunities) => {
                VirtualTime::at(opportunities.transmit(since, bits.div_ceil(8), frames))
            }
        }
    }
}

/// The bytes that one delivery opportunity of a trace carries.
const OPPORTUNITY_BYTES: u64 = 1504;
/// mahimahi counts an IP packet and 4 bytes, whereas the emulator counts an Ethernet header of 14. This correction
/// makes a full packet of 1500 bytes take one opportunity here too.
const UNCOUNTED_HEADER_BYTES: u64 = 14 - 4;
const MILLISECOND: u64 = 1_000_000;

/// A position in a trace, which repeats forever.
pub(super) struct TraceCursor {
    trace: Arc<Trace>,
    /// The start of the period of the next opportunity.
    period_start: u64,
    next: usize,
    /// The time of the last opportunity used, and its remaining bytes for frames already queued then.
    used_at: u64,
    left: u64,
}

impl TraceCursor {
    fn new(trace: &Arc<Trace>, now: u64) -> Self {
        Self { trace: Arc::clone(trace), period_start: now, next: 0, used_at: 0, left: 0 }
    }

    /// Consumes the opportunities for frames queued after `since`, and returns the time of the last.
    fn transmit(&mut self, since: u64, bytes: u64, frames: u32) -> u64 {
        let mut needed = bytes.saturating_sub(UNCOUNTED_HEADER_BYTES * u64::from(frames)).max(1);
        if self.used_at <= since {
            self.left = 0;
            self.pass(since);
        }
        while self.left < needed {
            needed -= self.left;
            self.used_at = self.time();
            self.left = OPPORTUNITY_BYTES;
            self.step();
        }
        self.left -= needed;
        self.used_at
    }

    /// Skips the opportunities up to `since`.
    fn pass(&mut self, since: u64) {
        let period = self.trace.opportunities.last().map_or(1, |last| last * MILLISECOND);
        let periods = since.saturating_sub(self.period_start) / period;
        if periods > 0 {
            self.period_start += periods * period;
            self.next = 0;
        }
        let start = self.period_start;
        let passed = self.trace.opportunities.partition_point(|ms| start + ms * MILLISECOND <= since);
        self.next = self.next.max(passed);
        if self.next == self.trace.opportunities.len() {
            self.period_start += period;
            self.next = 0;
        }
        while self.time() <= since {
            self.step();
        }
    }

    fn time(&self) -> u64 {
        self.period_start + self.trace.opportunities[self.next] * MILLISECOND
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next == self.trace.opportunities.len() {
            self.period_start += self.trace.opportunities[self.next - 1] * MILLISECOND;
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opportunities(ms: &[u64], start: u64) -> TraceCursor {
        TraceCursor::new(&Arc::new(Trace { opportunities: ms.to_vec() }), start)
    }

    #[test]
    fn a_million_frames_end_on_the_nanosecond() {
        for rate in [2_740_000, 20_000_000, 999_999_937, 1_000_000_000, 1] {
            let mut moment = VirtualTime::at(17);
            let bits = 1514 * 8;
            for _ in 0..1_000_000 {
                moment = moment.plus_bits(bits, rate);
            }
            let exact = u128::from(bits) * 1_000_000 * 1_000_000_000 / u128::from(rate);
            assert_eq!(u128::from(moment.ns), 17 + exact, "at {rate} bit/s");
        }
    }

    #[test]
    fn two_rates_in_turn_differ_by_less_than_a_nanosecond_from_exact() {
        let (first, second, bits) = (2_740_001_u64, 54_000_013_u64, 12_112_u64);
        let mut moment = VirtualTime::at(0);
        for _ in 0..100_000 {
            moment = moment.plus_bits(bits, first).plus_bits(bits, second);
        }
        let exact = 100_000.0 * bits as f64 * 1e9 * (1.0 / first as f64 + 1.0 / second as f64);
        assert!((moment.ns as f64 - exact).abs() < 2.0, "{} for {exact}", moment.ns);
    }

    #[test]
    fn a_full_packet_takes_one_opportunity() {
        let mut opportunities = opportunities(&[1, 2, 5], 0);
        let ends: Vec<u64> = (0..5).map(|_| opportunities.transmit(0, 1514, 1) / MILLISECOND).collect();
        assert_eq!(ends, [1, 2, 5, 6, 7]);
    }

    #[test]
    fn an_opportunity_carries_parts_of_packets_and_its_rest_is_lost_on_an_empty_queue() {
        let mut opportunities = opportunities(&[1, 2, 3, 10], 0);
        // 752 bytes are half an opportunity.
        let half = 752 + UNCOUNTED_HEADER_BYTES;
        assert_eq!(opportunities.transmit(0, half, 1), MILLISECOND);
        // 1128 bytes use the second half of the first opportunity and a quarter of the second, of which three
        // quarters remain.
        assert_eq!(opportunities.transmit(0, 1128 + UNCOUNTED_HEADER_BYTES, 1), 2 * MILLISECOND);
        assert_eq!(opportunities.transmit(0, 1128 + UNCOUNTED_HEADER_BYTES, 1), 2 * MILLISECOND);
        // This frame was queued after the second opportunity, and one is left before the fourth.
        assert_eq!(opportunities.transmit(2 * MILLISECOND + 1, half, 1), 3 * MILLISECOND);
        assert_eq!(opportunities.transmit(3 * MILLISECOND, half, 1), 10 * MILLISECOND);
    }

    #[test]
    fn opportunities_of_the_same_millisecond_are_all_used() {
        let mut opportunities = opportunities(&[4, 4, 4, 8], 0);
        let ends: Vec<u64> = (0..5).map(|_| opportunities.transmit(0, 1514, 1) / MILLISECOND).collect();
        assert_eq!(ends, [4, 4, 4, 8, 12]);
    }

    proptest! {
        /// Compares with the definition of the format: every opportunity in turn, where unused ones are lost.
        #[test]
        fn carries_as_stepping_through_all_opportunities_does(
            mut ms in prop::collection::vec(0_u64..20, 1..8),
            frames in prop::collection::vec((0_u64..40 * MILLISECOND, 20_u64..5000), 1..40),
            start in 0_u64..1000,
        ) {
            ms.sort_unstable();
            ms.push(20);
            let mut ours = opportunities(&ms, start);
            let mut all = (0_u64..).flat_map(|round| {
                ms.iter().map(|at| start + (round * 20 + at) * MILLISECOND).collect::<Vec<_>>()
            });
            let (mut now, mut left, mut used_at) = (0, 0, 0);
            for (gap, bytes) in frames {
                now += gap;
                let mut needed = bytes.saturating_sub(UNCOUNTED_HEADER_BYTES).max(1);
                if used_at <= now {
                    left = 0;
                }
                while needed > 0 {
                    if left == 0 {
                        used_at = all.find(|at| *at > now).expect("they never end");
                        left = OPPORTUNITY_BYTES;
                    }
                    let carried = needed.min(left);
                    needed -= carried;
                    left -= carried;
                }
                prop_assert_eq!(ours.transmit(now, bytes, 1), used_at);
            }
        }
    }
}
