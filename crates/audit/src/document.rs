//! What an audit found, as `plait audit --json` prints it (docs/reference/json.md). Recovered content is not in it.

use std::net::SocketAddr;

use plait_trace::document::{Both, Damaged, Exposure};
use serde::Serialize;

use crate::mode::{Mode, ModeFrom};
use crate::names::Name;

/// All paths, as a listener on each alone sees them.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Audit {
    pub paths: Vec<PathView>,
    pub packets: u64,
    pub payload_dropped: u64,
    pub damaged: Vec<Damaged>,
}

/// What a listener on one path has.
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
    pub seconds: f64,
    pub verdict: String,
    pub attack: Option<Attack>,
    pub connections: Vec<ConnectionView>,
}

/// What attacks on runs came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Attack {
    pub runs: usize,
    pub broken: usize,
    pub by_seed: usize,
    pub by_beginning: usize,
    pub by_known_text: usize,
    pub by_language: usize,
    pub known_texts: Vec<&'static str>,
    pub bytes_before_runs: u64,
    pub best_evidence_bits: Option<f64>,
    pub structured: usize,
    pub too_short: Left,
    pub left_out: Left,
}

/// Runs that were not attacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Left {
    pub runs: usize,
    pub bytes: u64,
}

/// A connection as it shows on a path.
#[derive(Clone, Debug, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct ConnectionView {
    pub id: u64,
    pub client: SocketAddr,
    pub server: SocketAddr,
    pub mode: Mode,
    pub mode_from: ModeFrom,
    pub keys_captured: bool,
    pub names: Vec<Name>,
    pub directions: Both<DirectionView>,
}

/// What one side sent, as it shows on a path.
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
    /// A piece of it, for people.
    #[serde(skip)]
    pub excerpt: Option<Excerpt>,
}

/// Packets with payload, of all subflows on the path.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "docs/reference/json.md says what each field of a document means")]
pub struct Packets {
    pub count: u64,
    pub bytes: u64,
    pub shortest: u32,
    pub longest: u32,
    pub first: Option<f64>,
    pub last: Option<f64>,
}

/// The same bytes as they crossed a path, and as a listener reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// Where in the stream.
    pub position: u64,
    /// As they crossed.
    pub wire: Vec<u8>,
    /// As they are read; `None` where they are not.
    pub plain: Vec<Option<u8>>,
}

impl Attack {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.runs += other.runs;
        self.broken += other.broken;
        self.by_seed += other.by_seed;
        self.by_beginning += other.by_beginning;
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
        self.left_out.merge(other.left_out);
    }
}

impl Left {
    pub(crate) fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.bytes += other.bytes;
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.merge(Self { runs: 1, bytes });
    }
}
