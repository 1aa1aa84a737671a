//! Counters of a link.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// Counters of a link since its start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Statistics {
    /// Frames from end `a` to end `b`.
    pub a_to_b: Counters,
    /// Frames from end `b` to end `a`.
    pub b_to_a: Counters,
    /// The lateness of deliveries; `None` if the kernel delivers the frames.
    pub lateness: Option<Lateness>,
}

/// Counters of one direction. A super-packet of segmentation offload counts as the frames that it represents. `None`
/// means that the backend has no such counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Frames received from the sending end.
    pub frames_in: u64,
    /// Their bytes, including Ethernet headers.
    pub bytes_in: u64,
    /// Frames delivered, duplicates included.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames dropped by the loss process.
    pub lost: Option<u64>,
    /// Frames added by duplication.
    pub duplicated: Option<u64>,
    /// Frames dropped early by RED.
    pub early: Option<u64>,
    /// Frames dropped by a full queue.
    pub queue_full: Option<u64>,
    /// Frames dropped because of a blackhole or a missing carrier: on arrival, in the queue or in flight.
    pub no_path: Option<u64>,
    /// Frames rejected by the receiving interface, for example because it was down.
    pub refused: Option<u64>,
    /// Packets (a super-packet counts as one) that the sending interface dropped because the emulator did not read
    /// them in time. More than 0 means that the machine was overloaded. Not included in `frames_in`.
    pub overruns: Option<u64>,
    /// The maximum length of the queue, in bytes.
    pub queue_max_bytes: Option<u64>,
}

/// How late frames were delivered to the receiving interface, relative to their due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Lateness {
    /// The number of frames.
    pub frames: u64,
    /// The median.
    #[serde(rename = "p50_ms", serialize_with = "in_ms")]
    pub p50: Duration,
    /// The 99th percentile.
    #[serde(rename = "p99_ms", serialize_with = "in_ms")]
    pub p99: Duration,
    /// The 99.9th percentile.
    #[serde(rename = "p999_ms", serialize_with = "in_ms")]
    pub p999: Duration,
    /// The maximum.
    #[serde(rename = "max_ms", serialize_with = "in_ms")]
    pub max: Duration,
    /// Whether the emulator ran with real-time priority (SCHED_FIFO).
    pub real_time: bool,
}

impl Lateness {
    /// Returns why measurements over the link are invalid if the 99th percentile of lateness must not exceed `limit`;
    /// `None` if they are valid.
    pub fn exceeds(&self, limit: Duration) -> Option<String> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        (self.p99 > limit).then(|| {
            let advice = if self.real_time { "reduce the load of the machine" } else { "run with real-time priority" };
            format!(
                "expected 99 of 100 frames to be at most {} ms late, got {:.3} ms: measurements over this link are not \
                 valid ({advice})",
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
