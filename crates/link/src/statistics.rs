//! What a link did with the frames it was given.

use std::time::Duration;

use serde::Serialize;

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
    /// Frames that found the queue full.
    pub queue_full: Option<u64>,
    /// Frames that came, waited or were under way in a blackhole or without a carrier.
    pub no_path: Option<u64>,
    /// Frames that the receiving interface refused, for instance because it was down.
    pub refused: Option<u64>,
    /// The most bytes that waited at once.
    pub queue_most: Option<u64>,
}

/// How much later than they should have frames were handed to the receiving interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Lateness {
    /// Frames counted.
    pub frames: u64,
    /// Half of them were at most this late.
    pub p50: Duration,
    /// 99 of 100.
    pub p99: Duration,
    /// 999 of 1000.
    pub p999: Duration,
    /// The latest.
    pub max: Duration,
    /// Whether the emulator ran at real-time priority (SCHED_FIFO).
    pub real_time: bool,
}
