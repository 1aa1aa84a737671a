//! What the captures of a transfer prove, path by path.
//!
//! The stream in question is the server's: the response that carries the document. It ends with the document, so the
//! document's place in it is known whatever the listener can or cannot read; but in mode `sealed`, which adds to it.

use std::fs::File;
use std::ops::Range;

use anyhow::{Context as _, ensure};
use plait_lab::Rate;
use plait_linux::signal::StopSignal;
use plait_proto::option::Mode;
use plait_trace::{
    ByteRanges, Capture, Connection, Connections, Direction, Exposure, Path, PathId, Payload, Protocol,
    ReadOptions, Stream, readable,
};
use plait_wire::Role;
use plait_wire::capture::CaptureReader;

use super::document::Document;
use super::transfer::{CapturedPath, Transfer};

/// A transfer and what was found out about it.
pub(super) struct JudgedRun {
    pub(super) mode: Mode,
    pub(super) bytes: u64,
    pub(super) sha256_ok: bool,
    pub(super) seconds: f64,
    /// Whether no path but the trusted one carried a byte of payload, in either direction, before the client's first
    /// flight was acknowledged at the data level.
    pub(super) first_payload_after_data_ack: bool,
    pub(super) paths: Vec<JudgedPath>,
}

/// A path and what its listener has.
pub(super) struct JudgedPath {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) rate: Rate,
    pub(super) exposure: Exposure,
    pub(super) readable_fraction: f64,
    payload: Payload,
    /// Where the document lies in the stream.
    document: Range<u64>,
}

impl JudgedRun {
    /// Received bytes over the time curl took, in 10^6 bits per second.
    pub(super) fn throughput_mbps(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.seconds / 1e6
    }
}

impl JudgedPath {
    /// Which parts of the document crossed the path, in whatever form.
    pub(super) fn ranges(&self) -> Vec<Range<usize>> {
        let offset = |position: u64| (position - self.document.start) as usize;
        let parts = self.payload.present().within(self.document.clone());
        parts.map(|part| offset(part.start)..offset(part.end)).collect()
    }

    /// What crossed the path in the place of these bytes of the document; `None` unless all of them did.
    pub(super) fn bytes(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let position = |offset: usize| self.document.start + offset as u64;
        self.payload.bytes(position(range.start)..position(range.end)).into_iter().collect()
    }
}

/// Reads the captures of a transfer. An error if they do not hold one MPTCP connection as a whole.
pub(super) fn judge(
    transfer: Transfer,
    document: &Document,
    interrupt: &StopSignal,
) -> anyhow::Result<JudgedRun> {
    let found = read(&transfer.paths)?;
    let connection = the_connection(&found)?;
    let stream = connection.stream(Direction::ServerToClient);
    let document_range = place_of_document(stream, &found, document)?;
    let mut paths = Vec::new();
    for (path, (id, _)) in transfer.paths.into_iter().zip(found.paths()) {
        interrupt.check()?;
        paths.push(JudgedPath {
            exposure: stream.exposure(id),
            readable_fraction: readable(&document.text, stream.payload(id)).fraction(),
            payload: stream.payload(id).clone(),
            document: document_range.clone(),
            name: path.name,
            role: path.role,
            rate: path.rate,
        });
    }
    let untrusted = paths.iter().zip(found.paths()).filter(|(path, _)| path.role == Role::Untrusted);
    let first_payload_after_data_ack =
        untrusted.map(|(_, (id, _))| id).all(|id| waited_for_first_flight(connection, id));
    Ok(JudgedRun {
        mode: transfer.mode,
        bytes: transfer.bytes,
        sha256_ok: transfer.sha256_ok,
        seconds: transfer.seconds,
        first_payload_after_data_ack,
        paths,
    })
}

fn read(paths: &[CapturedPath]) -> anyhow::Result<Connections> {
    let open = |path: &CapturedPath| {
        let reader = File::open(&path.capture).map_err(anyhow::Error::from);
        let reader = reader.and_then(|file| Ok(CaptureReader::new(file)?));
        let reader = reader.with_context(|| format!("cannot read the capture {}", path.capture.display()))?;
        Ok(Capture { path: Path { name: path.name.clone(), role: path.role }, reader })
    };
    let captures = paths.iter().map(open).collect::<anyhow::Result<_>>()?;
    // The captures are ours and hold little more than the document.
    let options = ReadOptions { payload_limit: u64::MAX, ..ReadOptions::default() };
    let found = Connections::read(captures, options)?;
    if let Some(damaged) = found.totals.damaged.first() {
        anyhow::bail!("a capture is damaged: {}", damaged.error);
    }
    Ok(found)
}

fn the_connection(found: &Connections) -> anyhow::Result<&Connection> {
    // In mode `sealed` there are short ones besides, which witness it.
    let length = |connection: &&Connection| connection.stream(Direction::ServerToClient).length();
    let connection = found.connections.iter().max_by_key(length);
    let connection = connection.context("expected a connection in the captures, found none")?;
    let is_mptcp = matches!(connection.protocol, Protocol::Mptcp(_)) && connection.fallback.is_none();
    ensure!(is_mptcp, "expected an MPTCP connection in the captures, found one of plain TCP");
    ensure!(!connection.partial, "the captures began after the connection did");
    Ok(connection)
}

/// The stream must be known from its first to its last byte.
fn place_of_document(
    stream: &Stream,
    found: &Connections,
    document: &Document,
) -> anyhow::Result<Range<u64>> {
    let known: ByteRanges =
        found.paths().fold(ByteRanges::new(), |known, (id, _)| known.union(stream.payload(id).present()));
    let (length, size) = (stream.length(), document.text.len() as u64);
    ensure!(
        known.contains(&(0..length)),
        "the captures hold {} of the {length} bytes that the server sent: something crossed neither path",
        known.total()
    );
    let start = length.checked_sub(size);
    let start =
        start.with_context(|| format!("the server sent {length} bytes, fewer than the document's {size}"))?;
    Ok(start..length)
}

fn waited_for_first_flight(connection: &Connection, path: PathId) -> bool {
    let flight = connection.stream(Direction::ClientToServer).first_flight();
    match (connection.first_payload(path), flight.and_then(|flight| flight.acked)) {
        (None, _) => true,
        (Some(payload), Some(acknowledged)) => acknowledged < payload,
        (Some(_), None) => false,
    }
}
