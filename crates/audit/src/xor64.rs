//! The attack on `xor64`: recovers plaintext from a contiguous run of wire bytes, without any key.
//!
//! A run leaves 65 unknown bytes, whatever its length ([`WireRun`]). Three methods find them, the most certain first:
//!
//! 1. **The start of a stream.** It is preceded by zeros and the seed ([`Preceding`]). The zeros alone reveal half of
//!    all bytes; an eavesdropper who also captured the MPTCP keys computes the seed and recovers everything.
//! 2. **Known texts** ([`cribs`]): 64 contiguous known bytes, anywhere, reveal the whole run.
//! 3. **Language**: the unknown bytes that make the run read like text. A [beam search](beam) over trigrams proposes
//!    candidates, [longer contexts](refine) correct them.
//!
//! # What is accepted
//!
//! A candidate found by language is accepted by its *evidence*: the log2 likelihood ratio between content that follows
//! the model and random content. For M content bytes and F unknown ones, it is `8 (M - F) + log2 P(content)`. If the run
//! is random, evidence reaches `e` bits with probability at most 2^-e (Markov's inequality, since the model's
//! probabilities sum to at most one), however long the search. Chance therefore does not reach
//! [`MIN_EVIDENCE_BITS`]. Content that is neither random nor language (tables of numbers, base64) may have evidence, but
//! costs more than [`MAX_BITS_PER_BYTE`] (in long spans [`MAX_BITS_PER_BYTE_LONG`]) and is rejected.
//!
//! In an accepted candidate, the bytes of a residue class count as recovered if their confidence is at least
//! [`MIN_CONFIDENCE`].

mod beam;
mod cribs;
mod refine;
mod run;

use std::ops::Range;

use crate::model::Model;
use refine::Candidate;
use run::WireRun;
pub(crate) use run::{ClassKeys, LAG, WINDOW};

/// The shortest run that is attacked, in bytes: below it, wrong candidates are often as probable as the right one.
pub(crate) const MIN_RUN: usize = 100;

/// How many bytes of a run are used to find its unknown bytes, which then decode all of it.
pub(crate) const MAX_ATTACKED: usize = 256 * 1024;

/// The evidence required of a candidate. Random bytes reach it with probability 2^-64 per run.
const MIN_EVIDENCE_BITS: f32 = 64.0;

/// Bits per byte up to which a candidate is language.
const MAX_BITS_PER_BYTE: f32 = 4.2;
/// The same for spans of [`LONG_SPAN`] bytes and more, whose columns are too long to look like text by chance.
const MAX_BITS_PER_BYTE_LONG: f32 = 5.5;
const LONG_SPAN: usize = 10 * LAG;

/// The confidence from which the bytes of a class count as recovered.
const MIN_CONFIDENCE: f32 = 0.9;

/// The longest run that is searched as a whole: 32 rows.
const MAX_SPAN: usize = 32 * LAG;

/// How many spans of a longer run are searched, and their length.
const PART_COUNT: usize = 3;
const PART_LEN: usize = 16 * LAG;

/// How many candidates are refined: with few rows, the most probable one is not always the best.
const MAX_REFINED: usize = 3;

/// What is known about the plaintext bytes that precede a run.
#[derive(Clone, Debug)]
pub(crate) struct Preceding {
    /// The preceding [`WINDOW`] bytes, oldest first, as far as known.
    pub(crate) known: [Option<u8>; WINDOW],
    /// How many of them are not content but zeros and the seed.
    pub(crate) non_content: usize,
}

impl Preceding {
    /// Nothing is known: the run starts somewhere in a stream.
    pub(crate) const UNKNOWN: Self = Self { known: [None; WINDOW], non_content: 0 };

    /// For a run that starts at byte `position` of a stream, whose byte 0 is preceded by `seed`, as far as known.
    pub(crate) fn at(position: u64, seed: &[Option<u8>]) -> Self {
        let non_content = usize::try_from(position).map_or(0, |position| WINDOW.saturating_sub(position));
        let mut known = [None; WINDOW];
        let zeros = WINDOW.saturating_sub(seed.len());
        let window = std::iter::repeat_n(Some(0), zeros).chain(seed.iter().copied());
        // The window preceding the run starts with the last `non_content` of the 64 bytes preceding the stream.
        for (known, byte) in known.iter_mut().zip(window.skip(WINDOW - non_content)) {
            *known = byte;
        }
        Self { known, non_content }
    }
}

/// The result of an attack on a run.
#[derive(Clone, Debug)]
pub(crate) struct AttackResult {
    /// The byte of each class that was recovered.
    pub(crate) keys: ClassKeys,
    /// How they were found; `None` if none was.
    pub(crate) method: Option<Method>,
    /// The mean probability that a recovered byte is correct, 0 to 1; 0 if none was recovered.
    pub(crate) confidence: f32,
    /// The evidence of the best candidate, in bits; `None` if language was not needed.
    pub(crate) evidence: Option<f32>,
    /// Whether there is evidence, but not for a language known to the model.
    pub(crate) structured: bool,
}

/// How a run was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// With the seed, since the MPTCP keys were captured.
    Seed,
    /// With the zeros preceding a stream, at least in part.
    StreamStart,
    /// With this known text.
    KnownText(&'static str),
    /// With language statistics.
    Language,
}

/// Attacks a run of wire bytes; only the first [`MAX_ATTACKED`] are used.
pub(crate) fn attack(model: &Model, wire: &[u8], preceding: &Preceding) -> AttackResult {
    let wire = &wire[..wire.len().min(MAX_ATTACKED)];
    if wire.is_empty() {
        return AttackResult::failed(None, false);
    }
    let run = WireRun::new(wire, preceding.non_content);
    let mut known = [None; LAG];
    for (t, byte) in preceding.known.iter().enumerate() {
        known[t] = byte.map(|byte| byte ^ run.delta(t));
    }
    run.complete(&mut known);
    if known.iter().all(Option::is_some) {
        return AttackResult::certain(known, Method::Seed);
    }
    if let Some(found) = cribs::anywhere(wire, &run) {
        return AttackResult::certain(found.keys, Method::KnownText(found.name));
    }
    let signature = known
        .iter()
        .any(Option::is_some)
        .then(|| cribs::signature(&run, preceding.non_content, &known))
        .flatten();
    let hypothesis = signature.as_ref().map_or(&known, |found| &found.keys);
    let mut best = AttackResult::failed(None, false);
    for span in spans(wire, &run) {
        let result = attack_language(model, &run, span, hypothesis);
        if result.method.is_some() {
            return result;
        }
        if result.evidence > best.evidence {
            best = result;
        }
    }
    if known.iter().all(Option::is_none) {
        return best;
    }
    let method = signature.as_ref().map_or(Method::StreamStart, |found| Method::KnownText(found.name));
    AttackResult { evidence: best.evidence, ..AttackResult::certain(*hypothesis, method) }
}

/// The most promising spans of a run's content; for a short run, all of it.
fn spans(wire: &[u8], run: &WireRun) -> Vec<Range<usize>> {
    let content = run.content();
    if content.len() < 2 * LAG {
        // Two rows are the minimum; a run of 66 bytes has them unless it starts a stream.
        return if content.len() > LAG { vec![content] } else { Vec::new() };
    }
    if content.len() <= MAX_SPAN {
        return vec![content];
    }
    let starts = content.clone().step_by(PART_LEN);
    let spans = starts.map(|start| start..(start + PART_LEN).min(content.end));
    let mut promising: Vec<(usize, Range<usize>)> = spans
        .filter(|span| span.len() >= 2 * LAG)
        .map(|span| {
            // ASCII characters differ only in the lower seven bits.
            let first = span.start.saturating_sub(WINDOW);
            let last = span.end.saturating_sub(WINDOW);
            let ascii_like = wire[first..last].windows(2).filter(|pair| (pair[0] ^ pair[1]) < 0x80).count();
            (ascii_like * PART_LEN / span.len(), span)
        })
        .collect();
    // Stable: among equally promising spans, the earlier one comes first.
    promising.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    promising.into_iter().take(PART_COUNT).map(|(_, span)| span).collect()
}

/// Attacks a span with language statistics.
fn attack_language(model: &Model, run: &WireRun, span: Range<usize>, known: &ClassKeys) -> AttackResult {
    let unknown = known.iter().filter(|key| key.is_none()).count();
    let length = span.len();
    let found = beam::search(model, run, span.clone(), known);
    let candidates = found.into_iter().map(|keys| Candidate::new(model, run, span.clone(), keys));
    let mut ranked: Vec<(f32, Candidate)> =
        candidates.map(|candidate| (candidate.rank(), candidate)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.truncate(if length > LONG_SPAN { 1 } else { MAX_REFINED });
    for (rank, candidate) in &mut ranked {
        candidate.refine(known);
        *rank = candidate.rank();
    }
    let Some((_, mut best)) = ranked.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return AttackResult::failed(None, false);
    };
    let bits = best.bits();
    let evidence = 8.0 * length.saturating_sub(unknown) as f32 + bits;
    let max_bits_per_byte = if length < LONG_SPAN { MAX_BITS_PER_BYTE } else { MAX_BITS_PER_BYTE_LONG };
    let is_language = -bits <= max_bits_per_byte * length as f32;
    if evidence < MIN_EVIDENCE_BITS || !is_language {
        return AttackResult::failed(Some(evidence), evidence >= MIN_EVIDENCE_BITS);
    }
    let confidence = best.confidence(known);
    let mut keys = [None; LAG];
    for (class, key) in keys.iter_mut().enumerate() {
        *key = (confidence[class] >= MIN_CONFIDENCE).then_some(best.keys[class]);
    }
    let recovered = keys.iter().flatten().count();
    let sum: f32 = confidence.iter().filter(|confidence| **confidence >= MIN_CONFIDENCE).sum();
    if recovered == 0 {
        return AttackResult::failed(Some(evidence), true);
    }
    AttackResult {
        keys,
        method: Some(Method::Language),
        confidence: sum / recovered as f32,
        evidence: Some(evidence),
        structured: false,
    }
}

impl AttackResult {
    fn certain(keys: ClassKeys, method: Method) -> Self {
        Self { keys, method: Some(method), confidence: 1.0, evidence: None, structured: false }
    }

    fn failed(evidence: Option<f32>, structured: bool) -> Self {
        Self { keys: [None; LAG], method: None, confidence: 0.0, evidence, structured }
    }

    /// How many content bytes before the run were recovered, of the `unseen` ones that did not cross the path.
    pub(crate) fn recovered_before(&self, preceding: &Preceding, unseen: usize) -> usize {
        let first = preceding.non_content.max(WINDOW.saturating_sub(unseen));
        self.keys[first.min(WINDOW)..WINDOW].iter().flatten().count()
    }
}

/// Decodes a run incrementally.
pub(crate) struct Decoder<'a> {
    keys: &'a ClassKeys,
    deltas: [u8; LAG],
    /// The class of the next byte.
    class: usize,
    last: Option<u8>,
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte of the run that `keys` were found for.
    pub(crate) fn new(keys: &'a ClassKeys) -> Self {
        Self { keys, deltas: [0; LAG], class: WINDOW % LAG, last: None }
    }

    /// Decodes the next bytes; `None` where a byte is not recovered.
    pub(crate) fn decode(&mut self, wire: &[u8], plain: &mut Vec<Option<u8>>) {
        for &byte in wire {
            let delta = &mut self.deltas[self.class];
            if let Some(last) = self.last {
                *delta ^= byte ^ last;
            }
            plain.push(self.keys[self.class].map(|key| key ^ *delta));
            self.last = Some(byte);
            self.class = (self.class + 1) % LAG;
        }
    }
}

#[cfg(test)]
mod tests;
