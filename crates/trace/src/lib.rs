//! Analyses captures of MPTCP connections: which bytes of each stream crossed which path, and what an eavesdropper on a
//! path can read.
//!
//! [`Connections::read`] takes one capture per path, merges them by time, groups subflows into connections by keys and
//! tokens, and places every payload byte in its stream by the DSS mappings. Each direction of a connection is a
//! [`Stream`] with, path by path, its [exposure](Stream::exposure) and the captured [`Payload`]; [`readable`] compares
//! that payload with a known document. Each [`Subflow`] has [`SenderStats`] for either direction (bytes,
//! retransmissions, reinjections, round-trip times, jitter), and each connection the [`Event`]s that its sides signalled and the
//! [`Failover`]s between its paths.
//!
//! [`analyze`] does the same from files to files: JSON, CSV, Parquet, an HTML page and plots. [`reassemble`] writes each
//! connection as one TCP stream, for tools that know no MPTCP.
//!
//! ```no_run
//! use plait_trace::{Capture, Connections, Direction, Path, ReadOptions, readable};
//! use plait_config::Role;
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
//! This crate opens no sockets, and no capture, however damaged, makes it panic. Memory holds live connections and at most
//! [`ReadOptions::payload_limit`] bytes of payload.

#![forbid(unsafe_code)]

mod analyze;
mod arrivals;
mod assembly;
mod byte_ranges;
mod connection;
mod direction;
mod duration_stats;
mod event;
pub mod export;
mod exposure;
pub mod external_metrics;
mod failover;
mod interval;
mod moments;
mod options;
mod path;
pub mod plot;
mod read;
mod readable;
mod reassemble;
mod report;
mod sender_stats;
mod sink;
mod stream;
mod stream_event;
mod vantage;

pub use analyze::{AnalyzeError, InputError, Source, analyze, analyze_sources, input_files};
pub use arrivals::{Arrivals, Jitter};
pub use byte_ranges::ByteRanges;
pub use connection::{Close, Connection, Fallback, Protocol, Rtt, RttSource, Subflow};
pub use direction::Direction;
pub use duration_stats::DurationStats;
pub use event::{Event, EventKind};
pub use export::document;
pub use exposure::Exposure;
pub use failover::Failover;
pub use interval::{Interval, IntervalCounts, RttSamples};
pub use moments::Moments;
pub use options::ReadOptions;
pub use path::{Path, PathId};
pub use read::{Capture, Connections, DamagedCapture, ReadError, Skipped, Totals, read};
pub use readable::{Readable, SHINGLE_LEN, readable};
pub use reassemble::{Reassembled, StreamGaps, reassemble};
pub use report::{Report, STYLE, TEXT_SCRIPT, UPLOT_SCRIPT, UPLOT_STYLE};
pub use sender_stats::{Checksums, SenderStats, Volume, Window};
pub use sink::Sink;
pub use stream::{FirstFlight, Payload, Stream};
pub use stream_event::{StreamEvent, StreamEventKind};
