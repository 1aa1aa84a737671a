//! What a link did with the frames it was given.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// What a link did since it was made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Statistics {
    /// Frames from end `a` to end `b`.
    pub a_to_b: Counters,
    /// Frames from end `b` to end `a`.
    pub b_to_a: Counters,
    /// How late frames were delivered; `None` where the kernel delivers them.
    pub lateness: Option<Lateness>,
}

/// What became of the frames of one direction. A super-packet of segmentation offload counts as the frames it stands
/// for. `None`: this backend cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Frames that came.
    pub frames_in: u64,
    /// Their bytes, from Ethernet header to the last of the payload.
    pub bytes_in: u64,
    /// Frames delivered, duplicates included.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames lost as the specification asks.
    pub lost: Option<u64>,
    /// Copies made as the specification asks.
    pub duplicated: Option<u64>,
    /// Frames that a queue with RED dropped before it was full.
    pub early: Option<u64>,
    /// Frames that found the queue full.
    pub queue_full: Option<u64>,
    /// Frames that came, waited or were under way in a blackhole or without a carrier.
    pub no_path: Option<u64>,
    /// Frames that the receiving interface refused, for instance because it was down.
    pub refused: Option<u64>,
    /// Packets, a super-packet as one, that the sending interface dropped because the emulator did not take them in time:
    /// more than 0 means that the machine was too busy. Not among those that came.
    pub missed: Option<u64>,
    /// The most bytes that waited at once.
    pub queue_most: Option<u64>,
}

/// How much later than they should have frames were handed to the receiving interface. A frame comes when the emulator
/// reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Lateness {
    /// Frames counted.
    pub frames: u64,
    /// Half of them were at most this late.
    #[serde(rename = "p50_ms", serialize_with = "in_ms")]
    pub p50: Duration,
    /// 99 of 100.
    #[serde(rename = "p99_ms", serialize_with = "in_ms")]
    pub p99: Duration,
    /// 999 of 1000.
    #[serde(rename = "p999_ms", serialize_with = "in_ms")]
    pub p999: Duration,
    /// The latest.
    #[serde(rename = "max_ms", serialize_with = "in_ms")]
    pub max: Duration,
    /// Whether the emulator ran at real-time priority (SCHED_FIFO).
    pub real_time: bool,
}

impl Lateness {
    /// Why what was measured over the link should not be believed if 1 of 100 frames may be `limit` late at most; `None`
    /// if they were in time.
    pub fn exceeds(&self, limit: Duration) -> Option<String> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        (self.p99 > limit).then(|| {
            let advice = if self.real_time { "a machine under less load helps" } else { "real-time priority helps" };
            format!(
                "expected 99 of 100 frames to be at most {} ms late, got {:.3} ms: what was measured over this link is \
                 not to be trusted ({advice})",
                ms(limit),
                ms(self.p99),
            )
        })
    }
}

fn in_ms<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_judged_by_its_99th_percentile() {
        let lateness = Lateness { p99: Duration::from_micros(300), real_time: true, ..Lateness::default() };
        assert_eq!(lateness.exceeds(Duration::from_micros(300)), None);
        let reason = lateness.exceeds(Duration::from_micros(200)).expect("too late");
        assert!(reason.contains("at most 0.2 ms late, got 0.300 ms"), "{reason}");
    }
}
