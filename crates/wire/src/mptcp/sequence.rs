//! Data sequence numbers and relative subflow sequence numbers.

/// A number in the 64-bit data sequence space of one direction of a connection (RFC 8684 2.3, "Data Sequence
/// Number"). The space wraps, so numbers have a distance but no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DataSeq(pub u64);

impl DataSeq {
    /// The number `bytes` further on.
    #[must_use]
    pub fn advance(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// How many bytes this number is after `origin`; above 2^63 if it is before.
    pub fn since(self, origin: Self) -> u64 {
        self.0.wrapping_sub(origin.0)
    }
}

/// A sequence number relative to the start of a subflow, in which the first data byte has number 1 (RFC 8684 3.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubflowSeq(pub u32);
