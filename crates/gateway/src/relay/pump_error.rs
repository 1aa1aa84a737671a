//! Why one direction of a relay failed, whether its bytes are transformed in place or are records.

use std::io;

use plait_proto::codec::records;
use plait_proto::sealed::KeyUpdateError;

pub(super) enum PumpError {
    Read(io::Error),
    Write(io::Error),
    /// A record is not what the peer wrote.
    Record(records::Error),
    /// A key update failed.
    KeyUpdate(KeyUpdateError),
    /// The exit has not connected.
    Exit(String),
}
