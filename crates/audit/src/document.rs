//! The result of an audit, as `plait audit --json` prints it, without recovered content;
//! docs/reference/schema/audit.schema.json is generated from it.

use std::net::SocketAddr;

use plait_trace::document::{DamagedCapture, Exposure, PerDirection};
use schemars::JsonSchema;
use serde::Serialize;

use crate::identifiers::Identifier;
use crate::mode::{Mode, ModeSource};

/// All paths, each as seen by an eavesdropper on that path alone. docs/guide/audit.md defines the figures. Fields may be
/// added.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Audit {
    /// In the order in which their captures were given.
    pub paths: Vec<PathView>,
    /// Packets read.
    pub packets: u64,
    /// Bytes of payload beyond the memory limit, which are not audited.
    pub payload_dropped: u64,
    /// Captures that could not be read to their ends.
    pub damaged: Vec<DamagedCapture>,
}

/// What an eavesdropper on one path has.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct PathView {
    /// The capture.
    pub path: String,
    /// All streams of connections of which at least one byte crossed, together.
    pub exposure: Exposure,
    /// Of its connections; null if there are none.
    pub mode: Option<Mode>,
    /// Bytes recovered as plaintext.
    pub recovered_bytes: u64,
    /// Their share of the bytes that crossed: a lower bound if evidence is missing.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub recovered_fraction: f64,
    /// The share of the ground truth that crossed and was recovered correctly; null without `--ground-truth`, or if none
    /// of it crossed.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub correct_fraction: Option<f64>,
    /// The probability that recovered bytes are correct.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub confidence: f64,
    /// Computing time of the attacks.
    #[schemars(range(min = 0.0))]
    pub attack_seconds: f64,
    /// What the capture allows to conclude.
    pub conclusion: Conclusion,
    /// Why the conclusion may be better for the eavesdropper than it says, in words; empty if everything that crossed was
    /// captured and attacked.
    pub missing_evidence: Vec<String>,
    /// Bytes of payload on the wire, all copies, and packets that could not be parsed.
    pub wire_bytes: u64,
    /// Those that the capture does not contain.
    pub not_captured_bytes: u64,
    /// Their share.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub not_captured_fraction: f64,
    /// Payload bytes of packets that the capture lacks altogether, as far as TCP sequence numbers reveal them.
    pub missing_bytes: u64,
    /// The result in words.
    pub verdict: String,
    /// The outcome of the attacks; null if there were none.
    pub attack: Option<Attack>,
    /// Connections of which at least one byte crossed.
    pub connections: Vec<ConnectionView>,
}

/// What the capture of a path allows to conclude about an eavesdropper.
#[derive(Clone, Copy, Debug, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// No payload crossed the path.
    NothingCrossed,
    /// They read at least the bytes recovered.
    Read,
    /// Nothing was recovered, and everything that crossed was captured and attacked.
    NothingRead,
    /// Nothing was recovered, but evidence is missing.
    CannotJudge,
}

/// The outcome of attacks on runs.
#[derive(Clone, Debug, Default, JsonSchema, PartialEq, Serialize)]
pub struct Attack {
    /// Runs that were attacked.
    pub runs: usize,
    /// Runs of which at least one byte was recovered; the next four fields count them by method.
    pub broken: usize,
    /// With the seed, since the MPTCP keys were captured.
    pub by_seed: usize,
    /// With the zeros that precede a stream, at least in part.
    pub by_stream_start: usize,
    /// With a known text.
    pub by_known_text: usize,
    /// With language statistics.
    pub by_language: usize,
    /// The known texts found.
    pub known_texts: Vec<&'static str>,
    /// Recovered bytes that did not cross the path.
    pub bytes_before_runs: u64,
    /// The highest evidence of any candidate found with language statistics; null if none was needed.
    pub best_evidence_bits: Option<f64>,
    /// Runs that are neither random nor in a known language.
    pub structured: usize,
    /// Runs that are too short to attack.
    pub too_short: Skipped,
    /// Runs beyond the number that is attacked.
    pub skipped: Skipped,
}

/// Runs that were not attacked.
#[derive(Clone, Copy, Debug, Default, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Runs.
    pub runs: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A connection as seen on a path.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ConnectionView {
    /// As `plait analyze` counts.
    #[schemars(range(min = 1))]
    pub id: u64,
    /// Its address, `ADDRESS:PORT`.
    #[schemars(with = "String")]
    pub client: SocketAddr,
    /// Its address.
    #[schemars(with = "String")]
    pub server: SocketAddr,
    /// How it is protected.
    pub mode: Mode,
    /// How that is known.
    pub mode_source: ModeSource,
    /// Whether its opening was not captured.
    pub partial: bool,
    /// Whether it was dropped before it ended, because too many others were open.
    pub evicted: bool,
    /// Whether both MPTCP keys crossed this path.
    pub keys_captured: bool,
    /// Identifiers that are in clear or were recovered at the start of a stream.
    pub identifiers: Vec<Identifier>,
    /// What each side sent.
    pub directions: PerDirection<DirectionView>,
}

/// What one side sent, as seen on a path.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct DirectionView {
    /// Length of the stream.
    pub stream_bytes: u64,
    /// Of this stream.
    pub exposure: Exposure,
    /// Bytes that crossed and that the capture contains.
    pub captured_bytes: u64,
    /// Bytes recovered as plaintext.
    pub recovered_bytes: u64,
    /// Their share of the bytes that crossed.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub recovered_fraction: f64,
    /// The share of the ground truth that crossed and was recovered correctly; null without `--ground-truth`, or if none
    /// of it crossed.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub correct_fraction: Option<f64>,
    /// The probability that recovered bytes are correct.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub confidence: f64,
    /// What the bytes look like on the wire.
    #[schemars(extend("enum" = ["nothing", "text", "data", "random"]))]
    pub content: &'static str,
    /// Entropy of the bytes on the wire in bits per byte; null without bytes.
    #[schemars(range(min = 0.0, max = 8.0))]
    pub entropy_bits: Option<f64>,
    /// Whether they are as uniform as random bytes.
    pub looks_random: bool,
    /// Their packets.
    pub packets: Packets,
    /// The outcome of the attacks; null if there were none.
    pub attack: Option<Attack>,
    /// A sample for people.
    #[serde(skip)]
    pub excerpt: Option<Excerpt>,
}

/// Packets with payload, of all subflows on the path.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Packets {
    /// Their number.
    pub count: u64,
    /// Bytes of payload, retransmissions included.
    pub bytes: u64,
    /// The least payload.
    pub min_bytes: u32,
    /// The most payload.
    pub max_bytes: u32,
    /// When the first was captured, in seconds since 1970; null if there are none.
    pub first: Option<f64>,
    /// When the last was captured.
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
