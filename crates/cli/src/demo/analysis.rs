//! What the captures of a transfer show, path by path.
//!
//! The stream is the server's response, which ends with the document. So the position of the document in the stream is
//! known, whether or not it is readable; in mode `sealed`, whose records add to the stream, it is approximate.

use std::fs::File;
use std::ops::Range;

use anyhow::{Context as _, ensure};
use plait_config::Role;
use plait_proto::option::Mode;
use plait_trace::document::Exposure;
use plait_trace::{
    ByteRanges, Capture, Connection, Connections, Direction, Path, Payload, Protocol, ReadOptions, Stream,
    readable,
};
use plait_wire::capture::CaptureReader;
use serde::Serialize;

use super::document::Document;
use super::transfer::{CapturedPath, Transfer};

/// An analyzed transfer: an element of `runs` in summary.json.
#[derive(Serialize)]
pub(super) struct Run {
    pub(super) mode: Mode,
    bytes: u64,
    pub(super) sha256_ok: bool,
    /// Received bytes over the time curl took, in 10^6 bits per second.
    pub(super) throughput_mbps: f64,
    /// Whether no untrusted path carried payload before the client's first flight was acknowledged at the data level.
    pub(super) first_payload_after_data_ack: bool,
    pub(super) paths: Vec<PathResult>,
}

/// A path, and what a capture of it contains.
#[derive(Serialize)]
pub(super) struct PathResult {
    pub(super) name: String,
    pub(super) role: Role,
    rate_bps: u64,
    pub(super) exposure: Exposure,
    pub(super) readable_fraction: f64,
    #[serde(skip)]
    payload: Payload,
    /// The position of the document in the stream.
    #[serde(skip)]
    document: Range<u64>,
}

impl PathResult {
    /// The ranges of the document that crossed the path, in whatever form.
    pub(super) fn ranges(&self) -> Vec<Range<usize>> {
        let offset = |position: u64| (position - self.document.start) as usize;
        let parts = self.payload.present().within(self.document.clone());
        parts.map(|part| offset(part.start)..offset(part.end)).collect()
    }

    /// The captured bytes at this range of the document; `None` unless all of them crossed the path.
    pub(super) fn bytes(&self, range: Range<usize>) -> Option<Vec<u8>> {
        let position = |offset: usize| self.document.start + offset as u64;
        self.payload.bytes(position(range.start)..position(range.end)).into_iter().collect()
    }
}

/// Reads the captures of a transfer. Fails unless they contain one complete MPTCP connection.
pub(super) fn analyze(transfer: Transfer, document: &Document) -> anyhow::Result<Run> {
    let connections = read(&transfer.paths)?;
    let connection = main_connection(&connections)?;
    let stream = connection.stream(Direction::ServerToClient);
    let position = document_position(stream, &connections, document)?;
    let mut first_payload_after_data_ack = true;
    let mut paths = Vec::new();
    for (path, (id, _)) in transfer.paths.into_iter().zip(connections.paths()) {
        first_payload_after_data_ack &= path.role == Role::Trusted || connection.first_flight_precedes(id);
        paths.push(PathResult {
            name: path.name,
            role: path.role,
            rate_bps: path.rate.bits_per_second(),
            exposure: stream.exposure(id),
            readable_fraction: readable(&document.text, stream.payload(id)).fraction(),
            payload: stream.payload(id).clone(),
            document: position.clone(),
        });
    }
    Ok(Run {
        mode: transfer.mode,
        bytes: transfer.bytes,
        sha256_ok: transfer.sha256_ok,
        throughput_mbps: transfer.bytes as f64 * 8.0 / transfer.seconds / 1e6,
        first_payload_after_data_ack,
        paths,
    })
}

fn read(paths: &[CapturedPath]) -> anyhow::Result<Connections> {
    let open = |path: &CapturedPath| {
        let context = || format!("cannot read the capture {}", path.capture.display());
        let reader =
            CaptureReader::new(File::open(&path.capture).with_context(context)?).with_context(context)?;
        Ok(Capture { path: Path { name: path.name.clone(), role: path.role }, reader })
    };
    let captures = paths.iter().map(open).collect::<anyhow::Result<_>>()?;
    // The captures contain little more than the document, which fits into memory.
    let options = ReadOptions { payload_limit: u64::MAX, ..ReadOptions::default() };
    let connections = Connections::read(captures, options)?;
    if let Some(damaged) = connections.totals.damaged.first() {
        anyhow::bail!("a capture is damaged: {}", damaged.error);
    }
    Ok(connections)
}

/// The longest connection: in mode `sealed`, the others are witnesses.
fn main_connection(connections: &Connections) -> anyhow::Result<&Connection> {
    let length = |connection: &&Connection| connection.stream(Direction::ServerToClient).length();
    let connection = connections.connections.iter().max_by_key(length);
    let connection = connection.context("expected a connection in the captures, got none")?;
    let is_mptcp = matches!(connection.protocol, Protocol::Mptcp(_)) && connection.fallback.is_none();
    ensure!(is_mptcp, "expected an MPTCP connection in the captures, got plain TCP");
    ensure!(
        !connection.partial,
        "expected the connection's first packets in the captures, got later ones only"
    );
    Ok(connection)
}

/// The position of the document in the stream, of which every byte must have been captured.
fn document_position(
    stream: &Stream,
    connections: &Connections,
    document: &Document,
) -> anyhow::Result<Range<u64>> {
    let captured: ByteRanges = connections
        .paths()
        .fold(ByteRanges::new(), |captured, (id, _)| captured.union(stream.payload(id).present()));
    let (length, size) = (stream.length(), document.text.len() as u64);
    ensure!(
        captured.contains(&(0..length)),
        "expected all {length} bytes of the server in the captures, got {}",
        captured.total()
    );
    let start = length.checked_sub(size).with_context(|| {
        format!("expected at least the document's {size} bytes from the server, got {length}")
    })?;
    Ok(start..length)
}
