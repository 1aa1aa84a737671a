//! The result of an audit, as `plait audit --json` prints it (docs/reference/json.md), without recovered content.

use std::net::SocketAddr;

use plait_trace::document::{DamagedCapture, Exposure, PerDirection};
use serde::Serialize;

use crate::identifiers::Identifier;
use crate::mode::{Mode, ModeSource};

/// All paths, each as seen by an eavesdropper on that path alone.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Audit {
    pub paths: Vec<PathView>,
    pub packets: u64,
    pub payload_dropped: u64,
    pub damaged: Vec<DamagedCapture>,
}

/// What an eavesdropper on one path has.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct PathView {
    pub path: String,
    pub exposure: Exposure,
    pub mode: Option<Mode>,
    pub recovered_bytes: u64,
    pub recovered_fraction: f64,
    pub correct_fraction: Option<f64>,
    pub confidence: f64,
    pub attack_seconds: f64,
    pub verdict: String,
    pub attack: Option<Attack>,
    pub connections: Vec<ConnectionView>,
}

/// The outcome of attacks on runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Attack {
    pub runs: usize,
    pub broken: usize,
    pub by_seed: usize,
    pub by_stream_start: usize,
    pub by_known_text: usize,
    pub by_language: usize,
    pub known_texts: Vec<&'static str>,
    pub bytes_before_runs: u64,
    pub best_evidence_bits: Option<f64>,
    pub structured: usize,
    pub too_short: Skipped,
    pub skipped: Skipped,
}

/// Runs that were not attacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Skipped {
    pub runs: usize,
    pub bytes: u64,
}

/// A connection as seen on a path.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct ConnectionView {
    pub id: u64,
    pub client: SocketAddr,
    pub server: SocketAddr,
    pub mode: Mode,
    pub mode_source: ModeSource,
    pub keys_captured: bool,
    pub identifiers: Vec<Identifier>,
    pub directions: PerDirection<DirectionView>,
}

/// What one side sent, as seen on a path.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct DirectionView {
    pub stream_bytes: u64,
    pub exposure: Exposure,
    pub captured_bytes: u64,
    pub recovered_bytes: u64,
    pub recovered_fraction: f64,
    pub correct_fraction: Option<f64>,
    pub confidence: f64,
    pub content: &'static str,
    pub entropy_bits: Option<f64>,
    pub looks_random: bool,
    pub packets: Packets,
    pub attack: Option<Attack>,
    /// A sample for people.
    #[serde(skip)]
    pub excerpt: Option<Excerpt>,
}

/// Packets with payload, of all subflows on the path.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Packets {
    pub count: u64,
    pub bytes: u64,
    pub min_bytes: u32,
    pub max_bytes: u32,
    pub first: Option<f64>,
    pub last: Option<f64>,
}

/// The same bytes on the wire and as an eavesdropper reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The position in the stream.
    pub position: u64,
    /// The bytes on the wire.
    pub wire: Vec<u8>,
    /// The recovered bytes; `None` where a byte is not recovered.
    pub plain: Vec<Option<u8>>,
}

impl Attack {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.runs += other.runs;
        self.broken += other.broken;
        self.by_seed += other.by_seed;
        self.by_stream_start += other.by_stream_start;
        self.by_known_text += other.by_known_text;
        self.by_language += other.by_language;
        self.known_texts.extend(&other.known_texts);
        self.known_texts.sort_unstable();
        self.known_texts.dedup();
        self.bytes_before_runs += other.bytes_before_runs;
        self.best_evidence_bits = match (self.best_evidence_bits, other.best_evidence_bits) {
            (Some(one), Some(two)) => Some(one.max(two)),
            (one, two) => one.or(two),
        };
        self.structured += other.structured;
        self.too_short.merge(other.too_short);
        self.skipped.merge(other.skipped);
    }
}

impl Skipped {
    pub(crate) fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.bytes += other.bytes;
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.merge(Self { runs: 1, bytes });
    }
}
