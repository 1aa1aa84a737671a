use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read};

use plait_wire::Skip;
use plait_wire::capture::{CaptureError, CaptureReader, Timestamp};
use thiserror::Error;

use crate::assembly::{Assembly, Found};
use crate::sink::{Interval, Sink};
use crate::{Connection, Path, PathId, ReadOptions};

/// A capture of one path.
#[derive(Debug)]
pub struct Capture<R: Read> {
    /// The path.
    pub path: Path,
    /// Its packets.
    pub reader: CaptureReader<R>,
}

/// The connections found in captures, all in memory.
#[derive(Debug)]
pub struct Connections {
    /// In the order in which they were first seen.
    pub connections: Vec<Connection>,
    /// What was sent in which interval, if [`ReadOptions::interval`] asked for it.
    pub intervals: Vec<Interval>,
    /// What was read besides.
    pub totals: Totals,
    paths: Vec<Path>,
}

/// What was read of captures, besides the connections.
#[derive(Debug, Default)]
pub struct Totals {
    /// How many packets were read.
    pub packets: u64,
    /// Which of them told nothing about a connection.
    pub skipped: Skipped,
    /// Payload bytes in no known mapping, which therefore count nowhere.
    pub unmapped: u64,
    /// Captured payload bytes that were beyond [`ReadOptions::payload_limit`].
    pub payload_dropped: u64,
    /// Joins that named no known connection, or one with too many subflows, and were not accepted either.
    pub unanswered_joins: u64,
    /// Captures that could not be read to their end.
    pub cut: Vec<Cut>,
}

/// Packets that gave no TCP segment, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Something other than IP.
    pub not_ip: u64,
    /// IP with something other than TCP.
    pub not_tcp: u64,
    /// Fragments after the first.
    pub fragments: u64,
    /// Headers that were cut short or wrong.
    pub malformed: u64,
    /// Segments that another capture, taken elsewhere on their way, has too. They count for exposure alone.
    pub other_side: u64,
}

/// A capture that is damaged; what came before the damage was used.
#[derive(Debug)]
pub struct Cut {
    /// The name of the path whose capture it is.
    pub path: String,
    /// What is wrong with it.
    pub error: CaptureError,
}

/// Why captures could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The input of a capture failed.
    #[error("capture of path {path}: {source}")]
    Input {
        /// The path's name.
        path: String,
        /// What failed.
        source: io::Error,
    },
    /// What was found could not be handed over.
    #[error(transparent)]
    Sink(io::Error),
}

/// Reads captures of one measurement: one per path, several in a row of one path, or several taken at different
/// places on the way. They are merged by time; of packets of equal times, those in the capture that begins first come
/// first. The clocks must agree to within a handshake, as they do when all captures were taken on one host: a join is
/// recognised by the keys of a connection opened before it.
///
/// Where several captures have the packets of a TCP connection, it is observed in the one that has the first of them,
/// or in the one that begins where that ends; its packets in others count for [exposure](crate::Stream::exposure) only.
///
/// What is found goes to `sink` as soon as it is known. Memory holds what is alive, whatever the length of the
/// captures: a connection is handed over a minute after its last subflow closed.
///
/// # Errors
/// The input of a capture fails, or the sink. A capture that is truncated or has a corrupt record ends there and is
/// listed in [`Totals::cut`].
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
        // The others' turn comes when this one is at a later time than the first of them.
        let until = next.peek().map(|Reverse(first)| *first);
        loop {
            if let Some(record) = or_cut(capture.reader.next_record(), &capture.path, &mut totals)?.flatten()
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
    let beside = assembly.finish();
    hand_over(&mut assembly, sink)?;
    totals.unmapped = beside.unmapped;
    totals.payload_dropped = beside.payload_dropped;
    totals.unanswered_joins = beside.unanswered_joins;
    totals.skipped.other_side = beside.other_side;
    Ok(totals)
}

#[inline]
fn hand_over(assembly: &mut Assembly, sink: &mut impl Sink) -> Result<(), ReadError> {
    while let Some(found) = assembly.found() {
        match found {
            Found::Interval(interval) => sink.interval(&interval),
            Found::Connection(connection) => sink.connection(*connection),
        }
        .map_err(ReadError::Sink)?;
    }
    Ok(())
}

/// The time of a capture's next record, if there is one.
fn next_time<R: Read>(capture: &mut Capture<R>, totals: &mut Totals) -> Result<Option<Timestamp>, ReadError> {
    Ok(or_cut(capture.reader.peek_time(), &capture.path, totals)?.flatten())
}

/// Turns damage of a capture into `None`, and takes note of it.
fn or_cut<T>(
    result: Result<T, CaptureError>,
    path: &Path,
    totals: &mut Totals,
) -> Result<Option<T>, ReadError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(CaptureError::Io(source)) => Err(ReadError::Input { path: path.name.clone(), source }),
        Err(error) => {
            totals.cut.push(Cut { path: path.name.clone(), error });
            Ok(None)
        }
    }
}

impl Connections {
    /// [Reads](read) captures and keeps everything.
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

/// Keeps all that is found.
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
