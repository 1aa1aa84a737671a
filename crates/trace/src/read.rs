//! Reads captures, merged by time, into connections.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};

use plait_wire::Skip;
use plait_wire::capture::{CaptureError, CaptureReader, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

use crate::assembly::{Assembly, Finished};
use crate::connection::Connection;
use crate::interval::Interval;
use crate::options::ReadOptions;
use crate::path::{Path, PathId};
use crate::sink::Sink;

/// A capture of one path.
#[derive(Debug)]
pub struct Capture<R: Read> {
    /// The path.
    pub path: Path,
    /// Its packets.
    pub reader: CaptureReader<R>,
}

/// All connections in captures, in memory.
#[derive(Debug)]
pub struct Connections {
    /// In the order in which they were first seen.
    pub connections: Vec<Connection>,
    /// The intervals, if [`ReadOptions::interval`] is set.
    pub intervals: Vec<Interval>,
    /// Counters of what was read besides connections.
    pub totals: Totals,
    paths: Vec<Path>,
}

/// Counters of what was read besides connections.
#[derive(Debug, Default)]
pub struct Totals {
    /// Packets in all captures.
    pub packets: u64,
    /// Packets that were not counted, by reason.
    pub skipped: Skipped,
    /// Payload bytes that no DSS mapping covers, but those before the first byte of a subflow.
    pub unmapped: u64,
    /// Captured payload bytes beyond [`ReadOptions::payload_limit`].
    pub payload_dropped: u64,
    /// Joins that named no known connection, or one with too many subflows, and were not accepted.
    pub unanswered_joins: u64,
    /// [Evicted](crate::Connection::evicted) connections.
    pub evicted_connections: u64,
    /// [Partial](crate::Connection::partial) connections.
    pub partial_connections: u64,
    /// Captures that are damaged.
    pub damaged: Vec<DamagedCapture>,
}

/// Packets that were not counted, by reason.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Not IP.
    pub not_ip: u64,
    /// IP, but not TCP.
    pub not_tcp: u64,
    /// IP fragments after the first.
    pub fragments: u64,
    /// Truncated or invalid headers.
    pub malformed: u64,
    /// Copies of segments that another capture contains too.
    pub duplicate: u64,
}

/// A damaged capture; packets before the damage were used.
#[derive(Debug)]
pub struct DamagedCapture {
    /// The name of its path.
    pub path: String,
    /// What is wrong with it.
    pub error: CaptureError,
}

/// An error that ends reading.
#[derive(Debug, Error)]
pub enum ReadError {
    /// A capture cannot be read.
    #[error("capture of path {path}: {source}")]
    Input {
        /// The path's name.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The sink returned an error.
    #[error(transparent)]
    Sink(io::Error),
}

/// Reads captures of one measurement: one per path, several consecutive ones of one path, or several taken at different
/// places along it. They are merged by time; packets with equal times come first from the capture that begins first. The
/// clocks must agree to within a handshake, as they do on one host: a join is recognised by the keys of a connection
/// opened before it.
///
/// If several captures contain the packets of a TCP connection, it is observed in the one with the first of them, and in
/// one that begins where that ends; packets in others count only for [exposure](crate::Stream::exposure).
///
/// Results go to `sink` as soon as they are complete. Memory holds what is alive, whatever the length of the captures: a
/// connection is handed over a minute after its last subflow closed.
///
/// # Errors
/// The input of a capture fails, or the sink. A capture that is truncated or has a corrupt record ends there and is
/// listed in [`Totals::damaged`].
pub fn read<R: Read>(
    mut captures: Vec<Capture<R>>,
    options: ReadOptions,
    sink: &mut impl Sink,
) -> Result<Totals, ReadError> {
    let mut totals = Totals::default();
    let mut assembly = Assembly::new(captures.len(), options);
    let mut next = BinaryHeap::new();
    for (index, capture) in captures.iter_mut().enumerate() {
        if let Some(time) = next_time(capture, &mut totals)? {
            next.push(Reverse((time, time, index)));
        } else {
            assembly.ended(PathId(index));
        }
    }
    while let Some(Reverse((_, begin, index))) = next.pop() {
        let (capture, path) = (&mut captures[index], PathId(index));
        // Continue until the next packet of another capture is earlier.
        let until = next.peek().map(|Reverse(first)| *first);
        loop {
            if let Some(record) =
                or_damaged(capture.reader.next_record(), &capture.path, &mut totals)?.flatten()
            {
                totals.packets += 1;
                match record.segment() {
                    Ok(segment) => assembly.segment(path, record.time, &segment),
                    Err(skip) => {
                        if let Skip::NotTcp { source, destination } = skip {
                            assembly.other_packet(path, record.time, source, destination);
                        }
                        totals.skipped.count(skip);
                    }
                }
            }
            hand_over(&mut assembly, sink)?;
            match next_time(capture, &mut totals)? {
                Some(time) if until.is_none_or(|until| (time, begin, index) < until) => {}
                Some(time) => {
                    next.push(Reverse((time, begin, index)));
                    break;
                }
                None => {
                    assembly.ended(path);
                    break;
                }
            }
        }
    }
    let assembled = assembly.finish();
    hand_over(&mut assembly, sink)?;
    totals.unmapped = assembled.unmapped;
    totals.payload_dropped = assembled.payload_dropped;
    totals.unanswered_joins = assembled.unanswered_joins;
    totals.evicted_connections = assembled.evicted_connections;
    totals.partial_connections = assembled.partial_connections;
    totals.skipped.duplicate = assembled.duplicate;
    Ok(totals)
}

#[inline]
fn hand_over(assembly: &mut Assembly, sink: &mut impl Sink) -> Result<(), ReadError> {
    while let Some(found) = assembly.next_finished() {
        match found {
            Finished::Interval(interval) => sink.interval(&interval),
            Finished::Stream(event) => sink.stream(event),
            Finished::Connection(connection) => sink.connection(*connection),
        }
        .map_err(ReadError::Sink)?;
    }
    Ok(())
}

/// The time of a capture's next record, if there is one.
fn next_time<R: Read>(capture: &mut Capture<R>, totals: &mut Totals) -> Result<Option<Timestamp>, ReadError> {
    Ok(or_damaged(capture.reader.peek_time(), &capture.path, totals)?.flatten())
}

/// Records damage of a capture and turns it into `None`.
fn or_damaged<T>(
    result: Result<T, CaptureError>,
    path: &Path,
    totals: &mut Totals,
) -> Result<Option<T>, ReadError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(CaptureError::Io(source)) => Err(ReadError::Input { path: path.name.clone(), source }),
        Err(error) => {
            totals.damaged.push(DamagedCapture { path: path.name.clone(), error });
            Ok(None)
        }
    }
}

impl Connections {
    /// [Reads](read) captures and keeps all results.
    ///
    /// # Errors
    /// The input of a capture fails.
    pub fn read<R: Read>(captures: Vec<Capture<R>>, options: ReadOptions) -> Result<Self, ReadError> {
        let paths = captures.iter().map(|capture| capture.path.clone()).collect();
        let mut all = Collector::default();
        let totals = read(captures, options, &mut all)?;
        let Collector { mut connections, intervals } = all;
        connections.sort_by_key(|connection| connection.id);
        Ok(Self { connections, intervals, totals, paths })
    }

    /// The paths, in the order in which their captures were given.
    pub fn paths(&self) -> impl Iterator<Item = (PathId, &Path)> {
        self.paths.iter().enumerate().map(|(index, path)| (PathId(index), path))
    }

    /// The first path of this name.
    pub fn path(&self, name: &str) -> Option<PathId> {
        self.paths.iter().position(|path| path.name == name).map(PathId)
    }
}

/// Keeps all results.
#[derive(Default)]
struct Collector {
    connections: Vec<Connection>,
    intervals: Vec<Interval>,
}

impl Sink for Collector {
    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        self.intervals.push(interval.clone());
        Ok(())
    }

    fn connection(&mut self, connection: Connection) -> io::Result<()> {
        self.connections.push(connection);
        Ok(())
    }
}

impl Skipped {
    fn count(&mut self, skip: Skip) {
        match skip {
            Skip::NotIp => self.not_ip += 1,
            Skip::NotTcp { .. } => self.not_tcp += 1,
            Skip::LaterFragment => self.fragments += 1,
            Skip::Malformed(_) => self.malformed += 1,
        }
    }
}
