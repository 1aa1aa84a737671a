use std::io::{self, Read};
use std::time::Duration;

use plait_wire::capture::{CaptureError, CaptureReader, Timestamp};
use plait_wire::mptcp::{Key, Version};
use plait_wire::{Role, Skip};
use thiserror::Error;

use crate::Connection;
use crate::assembly::{Assembled, Assembly};

/// A path that a capture was taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// What the user calls it.
    pub name: String,
    /// Whether somebody may listen on it.
    pub role: Role,
}

/// A path by its place among the captures that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathId(usize);

impl PathId {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// A capture of one path.
#[derive(Debug)]
pub struct Capture<R: Read> {
    /// The path.
    pub path: Path,
    /// Its packets.
    pub reader: CaptureReader<R>,
}

/// How to read captures.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How much payload to keep of all connections and paths together, in bytes of memory (rounded to pages of
    /// 4 KiB). What does not fit is counted in [`Connections::payload_dropped`]; exposure is not affected.
    pub payload_limit: u64,
    /// Keys of connections whose opening is in none of the captures, as when only a joined subflow was listened to.
    pub known: Vec<KnownKeys>,
    /// The length of the intervals of each [`Tally::series`](crate::Tally::series); `None` for none.
    pub interval: Option<Duration>,
}

impl Default for ReadOptions {
    /// Up to 1 GiB of payload, no keys and no series.
    fn default() -> Self {
        Self { payload_limit: 1 << 30, known: Vec::new(), interval: None }
    }
}

/// The keys of a connection, known from elsewhere.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    /// The connection's version, which says how numbers are derived from keys.
    pub version: Version,
    /// The key of the side that opened it.
    pub client: Key,
    /// The key of the side that accepted it.
    pub server: Key,
}

/// The connections found in captures.
#[derive(Debug)]
pub struct Connections {
    /// In the order in which they were first seen.
    pub connections: Vec<Connection>,
    /// How many packets were read.
    pub packets: u64,
    /// Which of them told nothing about a connection.
    pub skipped: Skipped,
    /// Payload bytes in no known mapping, which therefore count nowhere.
    pub unmapped: u64,
    /// Captured payload bytes that were beyond [`ReadOptions::payload_limit`].
    pub payload_dropped: u64,
    /// Captures that could not be read to their end.
    pub cut: Vec<Cut>,
    paths: Vec<Path>,
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
}

/// A capture that is damaged; what came before the damage was used.
#[derive(Debug)]
pub struct Cut {
    /// Whose capture.
    pub path: PathId,
    /// What is wrong with it.
    pub error: CaptureError,
}

/// A capture that could not be read.
#[derive(Debug, Error)]
#[error("capture of path {path}: {source}")]
pub struct ReadError {
    /// The path's name.
    pub path: String,
    /// What failed.
    pub source: io::Error,
}

impl Connections {
    /// Reads captures, one per path, and merges them by time. Their clocks must agree to within a handshake, as they
    /// do when all were taken on one host: a join is recognised by the keys of a connection opened before it.
    ///
    /// # Errors
    /// The input of a capture fails. A capture that is truncated or has a corrupt record ends there and is listed in
    /// [`cut`](Self::cut).
    pub fn read<R: Read>(captures: Vec<Capture<R>>, options: ReadOptions) -> Result<Self, ReadError> {
        let (paths, mut readers): (Vec<_>, Vec<_>) =
            captures.into_iter().map(|capture| (capture.path, capture.reader)).unzip();
        let mut assembly = Assembly::new(paths.len(), options);
        let mut found = Self {
            connections: Vec::new(),
            packets: 0,
            skipped: Skipped::default(),
            unmapped: 0,
            payload_dropped: 0,
            cut: Vec::new(),
            paths,
        };
        let mut next: Vec<Option<Timestamp>> = Vec::new();
        for (index, reader) in readers.iter_mut().enumerate() {
            next.push(found.or_cut(index, reader.peek_time())?.flatten());
        }
        while let Some((_, index)) =
            next.iter().enumerate().filter_map(|(index, time)| time.map(|time| (time, index))).min()
        {
            let reader = &mut readers[index];
            if let Some(Some(record)) = found.or_cut(index, reader.next_record())? {
                found.packets += 1;
                match record.segment() {
                    Ok(segment) => assembly.segment(PathId(index), record.time, &segment),
                    Err(skip) => found.skipped.count(skip),
                }
            }
            next[index] = found.or_cut(index, reader.peek_time())?.flatten();
        }
        Assembled {
            connections: found.connections,
            unmapped: found.unmapped,
            payload_dropped: found.payload_dropped,
        } = assembly.finish();
        Ok(found)
    }

    /// The paths, in the order in which their captures were given.
    pub fn paths(&self) -> impl Iterator<Item = (PathId, &Path)> {
        self.paths.iter().enumerate().map(|(index, path)| (PathId(index), path))
    }

    /// The first path of this name.
    pub fn path(&self, name: &str) -> Option<PathId> {
        self.paths.iter().position(|path| path.name == name).map(PathId)
    }

    /// Turns damage of a capture into `None`, and takes note of it.
    fn or_cut<T>(&mut self, path: usize, result: Result<T, CaptureError>) -> Result<Option<T>, ReadError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(CaptureError::Io(source)) => Err(ReadError { path: self.paths[path].name.clone(), source }),
            Err(error) => {
                self.cut.push(Cut { path: PathId(path), error });
                Ok(None)
            }
        }
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
