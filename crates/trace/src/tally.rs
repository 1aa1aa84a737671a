use crate::Times;

/// What one side sent in one subflow, counted where it was captured. Packets that a network card had merged count as
/// one; bytes are payload bytes, whether or not the capture kept them.
///
/// Every byte is either new to the connection, reinjected, repeated or unmapped: these four add up to
/// [`bytes`](Self::bytes).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Packets, with and without payload.
    pub packets: u64,
    /// Payload bytes, all copies.
    pub bytes: u64,
    /// Bytes of the connection's stream that no subflow had carried before: the goodput.
    pub new: u64,
    /// Bytes of the stream that another subflow had carried before and this one had not (RFC 8684 3.3.6).
    pub reinjected: Volume,
    /// Bytes of the stream that this subflow had carried before.
    pub repeated: u64,
    /// Bytes that no mapping gives a place in the stream.
    pub unmapped: u64,
    /// By TCP sequence number: bytes sent before in this subflow, or acknowledged before.
    pub retransmitted: Volume,
    /// Those of the retransmitted bytes that had been acknowledged before: the receiver got them twice.
    pub duplicate: u64,
    /// By TCP sequence number: bytes before others of this subflow that were captured earlier, and not themselves
    /// seen before: reordered, or retransmissions of what was lost on the way to the capture.
    pub out_of_order: Volume,
    /// From a segment to the acknowledgement that covers it, without segments that were, or wait for,
    /// retransmissions (Karn and Partridge 1987).
    pub round_trips: Times,
    /// From the first segment with a time stamp to the first acknowledgement that echoes it (RFC 7323 4), in steps of
    /// the sender's clock; empty where the option is not used.
    pub round_trips_by_timestamps: Times,
    /// The receive windows that this side announced, in bytes; `None` where their scale was not captured.
    pub window: Option<Window>,
    /// DSS checksums (RFC 8684 3.3.1) of mappings that the capture kept as a whole.
    pub checksums: Checksums,
}

/// Receive windows, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The least.
    pub min: u64,
    /// The greatest.
    pub max: u64,
    /// The last.
    pub last: u64,
}

impl Window {
    /// After another announcement.
    pub(crate) fn after(before: Option<Self>, announced: u64) -> Self {
        let Self { min, max, .. } =
            before.unwrap_or(Self { min: announced, max: announced, last: announced });
        Self { min: min.min(announced), max: max.max(announced), last: announced }
    }
}

/// How many checksums were right, and wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksums {
    /// Those of the data they came with.
    pub right: u64,
    /// Those of other data: somebody changed it on the way, or the capture was taken before the checksum was put in.
    pub wrong: u64,
}

/// A number of segments, and bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Segments of which at least one byte counts.
    pub segments: u64,
    /// Bytes that count.
    pub bytes: u64,
}

impl Volume {
    /// A segment of which `bytes` count.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.segments += u64::from(bytes > 0);
        self.bytes += bytes;
    }
}

impl std::ops::AddAssign for Volume {
    fn add_assign(&mut self, other: Self) {
        self.segments += other.segments;
        self.bytes += other.bytes;
    }
}
