//! What captures say about MPTCP connections: which bytes of each stream crossed which path, and what somebody who
//! listened there can read of a document that the stream carried.
//!
//! [`Connections::read`] takes one capture per path, merges them by time, groups subflows into connections by keys
//! and tokens, and places every payload byte in its stream by the DSS mappings. Each direction of a connection is
//! then a [`Stream`] that tells, path by path, what was [exposed](Stream::exposure) and what the listener's
//! [`Payload`] holds. [`readable`] compares that payload with a document. Each [`Subflow`] has a [`Tally`] of what
//! either side sent in it (bytes, retransmissions, reinjections, round trips, throughput over time), and each
//! connection the [`Event`]s that its sides signalled.
//!
//! ```no_run
//! use plait_trace::{Capture, Connections, Direction, Path, ReadOptions, readable};
//! use plait_wire::Role;
//! use plait_wire::capture::CaptureReader;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut captures = Vec::new();
//! for (name, role) in [("eth", Role::Trusted), ("wlan", Role::Untrusted)] {
//!     let reader = CaptureReader::new(std::fs::File::open(format!("{name}.pcap"))?)?;
//!     captures.push(Capture { path: Path { name: name.into(), role }, reader });
//! }
//! let found = Connections::read(captures, ReadOptions::default())?;
//! let document = std::fs::read("document")?;
//! for connection in &found.connections {
//!     let stream = connection.stream(Direction::ServerToClient);
//!     for (path, Path { name, .. }) in found.paths() {
//!         let readable = readable(&document, stream.payload(path)).fraction();
//!         println!("{name}: {:?}, readable {readable}", stream.exposure(path));
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here opens a socket, and no capture, however damaged, makes it panic. Memory holds the connections and
//! at most [`ReadOptions::payload_limit`] bytes of payload.

#![forbid(unsafe_code)]

mod analyze;
mod assembly;
mod checksum;
pub mod companion;
mod connection;
pub mod document;
mod event;
mod exposure;
mod failover;
mod flow;
mod inputs;
mod life;
mod options;
pub mod output;
mod path;
mod ranges;
mod read;
mod readable;
mod report;
mod sender;
mod series;
mod silence;
mod sink;
mod stream;
mod tally;
mod times;
mod unwrap;

pub use analyze::{AnalyzeError, analyze};
pub use connection::{Close, Connection, Direction, Fallback, Protocol, Subflow};
pub use event::{Event, EventKind};
pub use exposure::Exposure;
pub use failover::Failover;
pub use inputs::inputs;
pub use options::{KnownKeys, ReadOptions};
pub use path::{Path, PathId};
pub use ranges::ByteRanges;
pub use read::{Capture, Connections, Cut, ReadError, Skipped, Totals, read};
pub use readable::{Readable, SHINGLE_LEN, readable};
pub use report::{Plot, Report};
pub use sink::{Counts, Interval, Sink, Spread};
pub use stream::{FirstFlight, Payload, Stream};
pub use tally::{Checksums, Tally, Volume, Window};
pub use times::Times;
