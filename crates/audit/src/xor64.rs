//! The attack on `xor64`: what a listener recovers from a contiguous run of wire bytes, without any key.
//!
//! A run leaves 65 unknown bytes, whatever its length ([`Chain`]). Three things find them, the surest first:
//!
//! 1. **The beginning of a stream.** Before it stand zeros and the seed ([`Before`]). The zeros alone give half of all
//!    bytes; a listener who also captured MPTCP's keys computes the seed and has everything.
//! 2. **Known texts** ([`cribs`]): 64 known bytes in a row, anywhere, give all.
//! 3. **Language**: the unknown bytes under which the run reads like text. A [search](beam) by what follows two symbols
//!    guesses, [longer contexts](refine) correct the guess.
//!
//! # What is believed
//!
//! A reading found by language is believed by its *evidence*: how much more probable the run is if its content is
//! what the model knows than if it is random, as log2 of the ratio. For M content bytes and F unknown ones, it is
//! `8 (M - F) + log2 P(content)`. If the run is random, evidence reaches `e` bits with a probability of 2^-e at most
//! (Markov's inequality, since the model's probabilities sum to at most one), however long one searches. So
//! [`BELIEVED`] bits are not reached by chance. What is not random but no language either (tables of numbers, base64)
//! may have evidence, but takes more than [`LANGUAGE`] bits a byte (of
//! long runs [`LANGUAGE_OF_MANY`]), and is not claimed.
//!
//! Within a believed reading a class is claimed if it is [`SURE`] enough.

mod beam;
mod chain;
mod cribs;
mod refine;

use std::ops::Range;

use crate::model::Model;
use chain::Chain;
pub(crate) use chain::{BEFORE, Keys, LAG};
use refine::Reading;

/// The shortest run that is attacked: with fewer bytes, a wrong reading is often as good as the right one.
pub(crate) const SHORTEST: usize = 100;

/// How much of a run is looked at to find its unknown bytes, which then hold for all of it.
pub(crate) const LOOKED_AT: usize = 256 * 1024;

/// Bits of evidence beyond which chance is ruled out: 2^-64 a run.
const BELIEVED: f32 = 64.0;

/// Bits a byte up to which a reading is language, and up to which one of [`MANY`] bytes and more is, whose columns are
/// too long to be made readable by chance.
const LANGUAGE: f32 = 4.2;
const LANGUAGE_OF_MANY: f32 = 5.5;
const MANY: usize = 10 * LAG;

/// The least probability of a class that is claimed.
const SURE: f32 = 0.9;

/// The longest span that is searched at once: 32 rows.
const SPAN: usize = 32 * LAG;

/// How many spans of a longer run are searched, and how long each is.
const SPANS: usize = 3;
const SPAN_OF_MANY: usize = 16 * LAG;

/// How many guesses are corrected: of few rows the first is not always the best.
const CORRECTED: usize = 3;

/// What is known of the bytes before a run.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    /// Those of the [`BEFORE`] bytes that are known, oldest first.
    pub(crate) known: [Option<u8>; BEFORE],
    /// How many of them are no content: zeros and the seed.
    pub(crate) no_content: usize,
}

impl Before {
    /// Nothing: the run begins somewhere in a stream.
    pub(crate) const UNKNOWN: Self = Self { known: [None; BEFORE], no_content: 0 };

    /// Of a run that begins at a stream's byte `position`. Of the seed's bytes, which are before byte 0, `seed` are
    /// known or not.
    pub(crate) fn at(position: u64, seed: &[Option<u8>]) -> Self {
        let no_content = usize::try_from(position).map_or(0, |position| BEFORE.saturating_sub(position));
        let mut known = [None; BEFORE];
        let zeros = BEFORE.saturating_sub(seed.len());
        let window = std::iter::repeat_n(Some(0), zeros).chain(seed.iter().copied());
        // Of the 64 bytes before the stream the last `no_content` come first.
        for (known, byte) in known.iter_mut().zip(window.skip(BEFORE - no_content)) {
            *known = byte;
        }
        Self { known, no_content }
    }
}

/// What an attack on a run came to.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// The unknown byte of each class that is claimed.
    pub(crate) keys: Keys,
    /// How they were found; `None` if none is claimed.
    pub(crate) by: Option<Means>,
    /// How probable the claimed bytes are, on average, 0 to 1; 0 if none is claimed.
    pub(crate) confidence: f32,
    /// Evidence of the best reading, in bits; `None` where no language was needed.
    pub(crate) evidence: Option<f32>,
    /// Whether there is evidence, but not for a language that the model knows.
    pub(crate) structured: bool,
}

/// How a run was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// By the seed, since MPTCP's keys were captured.
    Seed,
    /// By the zeros before a stream, at least in part.
    Beginning,
    /// By a known text, named here.
    KnownText(&'static str),
    /// By the statistics of language.
    Language,
}

/// Tries to undo a run of wire bytes; what is beyond [`LOOKED_AT`] does not count.
pub(crate) fn attack(model: &Model, wire: &[u8], before: &Before) -> Attempt {
    let wire = &wire[..wire.len().min(LOOKED_AT)];
    if wire.is_empty() {
        return Attempt::failed(None, false);
    }
    let chain = Chain::new(wire, before.no_content);
    let mut known = [None; LAG];
    for (t, byte) in before.known.iter().enumerate() {
        known[t] = byte.map(|byte| byte ^ chain.link(t));
    }
    chain.complete(&mut known);
    if known.iter().all(Option::is_some) {
        return Attempt::certain(known, Means::Seed);
    }
    if let Some(found) = cribs::anywhere(wire, &chain) {
        return Attempt::certain(found.keys, Means::KnownText(found.what));
    }
    let beginning = known
        .iter()
        .any(Option::is_some)
        .then(|| cribs::beginning(&chain, before.no_content, &known))
        .flatten();
    let hypothesis = beginning.as_ref().map_or(&known, |found| &found.keys);
    let mut best = Attempt::failed(None, false);
    for span in spans(wire, &chain) {
        let attempt = read(model, &chain, span, hypothesis);
        if attempt.by.is_some() {
            return attempt;
        }
        if attempt.evidence > best.evidence {
            best = attempt;
        }
    }
    if known.iter().all(Option::is_none) {
        return best;
    }
    let means = beginning.as_ref().map_or(Means::Beginning, |found| Means::KnownText(found.what));
    Attempt { evidence: best.evidence, ..Attempt::certain(*hypothesis, means) }
}

/// The most promising spans of a run's content: all of a short one.
fn spans(wire: &[u8], chain: &Chain) -> Vec<Range<usize>> {
    let content = chain.content();
    if content.len() < 2 * LAG {
        // Two rows are the least that can be compared; a run of 66 bytes has them unless it begins a stream.
        return if content.len() > LAG { vec![content] } else { Vec::new() };
    }
    if content.len() <= SPAN {
        return vec![content];
    }
    let starts = content.clone().step_by(SPAN_OF_MANY);
    let spans = starts.map(|start| start..(start + SPAN_OF_MANY).min(content.end));
    let mut promising: Vec<(usize, Range<usize>)> = spans
        .filter(|span| span.len() >= 2 * LAG)
        .map(|span| {
            // Two characters of text differ in the lower bits alone.
            let first = span.start.saturating_sub(BEFORE);
            let last = span.end.saturating_sub(BEFORE);
            let alike = wire[first..last].windows(2).filter(|pair| (pair[0] ^ pair[1]) < 0x80).count();
            (alike * SPAN_OF_MANY / span.len(), span)
        })
        .collect();
    // Stable: of equally promising ones the first.
    promising.sort_by_key(|(alike, _)| std::cmp::Reverse(*alike));
    promising.into_iter().take(SPANS).map(|(_, span)| span).collect()
}

/// Reads a span by the statistics of language.
fn read(model: &Model, chain: &Chain, span: Range<usize>, known: &Keys) -> Attempt {
    let unknown = known.iter().filter(|key| key.is_none()).count();
    let length = span.len();
    let guesses = beam::search(model, chain, span.clone(), known);
    let readings = guesses.into_iter().map(|keys| Reading::new(model, chain, span.clone(), keys));
    let mut ranked: Vec<(f32, Reading)> = readings.map(|reading| (reading.rank(), reading)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.truncate(if length > MANY { 1 } else { CORRECTED });
    for (rank, reading) in &mut ranked {
        reading.improve(known);
        *rank = reading.rank();
    }
    let Some((_, mut best)) = ranked.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Attempt::failed(None, false);
    };
    let bits = best.bits();
    let evidence = 8.0 * length.saturating_sub(unknown) as f32 + bits;
    let most = if length < MANY { LANGUAGE } else { LANGUAGE_OF_MANY };
    let is_language = -bits <= most * length as f32;
    if evidence < BELIEVED || !is_language {
        return Attempt::failed(Some(evidence), evidence >= BELIEVED);
    }
    let certainty = best.certainty(known);
    let mut keys = [None; LAG];
    for (class, key) in keys.iter_mut().enumerate() {
        *key = (certainty[class] >= SURE).then_some(best.keys[class]);
    }
    let claimed = keys.iter().flatten().count();
    let sum: f32 = certainty.iter().filter(|certainty| **certainty >= SURE).sum();
    if claimed == 0 {
        return Attempt::failed(Some(evidence), true);
    }
    Attempt {
        keys,
        by: Some(Means::Language),
        confidence: sum / claimed as f32,
        evidence: Some(evidence),
        structured: false,
    }
}

impl Attempt {
    fn certain(keys: Keys, by: Means) -> Self {
        Self { keys, by: Some(by), confidence: 1.0, evidence: None, structured: false }
    }

    fn failed(evidence: Option<f32>, structured: bool) -> Self {
        Self { keys: [None; LAG], by: None, confidence: 0.0, evidence, structured }
    }

    /// How many of the [`BEFORE`] bytes before the run are recovered, of the last `unseen` that are content.
    pub(crate) fn recovered_before(&self, before: &Before, unseen: usize) -> usize {
        let first = before.no_content.max(BEFORE.saturating_sub(unseen));
        self.keys[first.min(BEFORE)..BEFORE].iter().flatten().count()
    }
}

/// The plaintext of a run, piece by piece.
pub(crate) struct Plaintext<'a> {
    keys: &'a Keys,
    links: [u8; LAG],
    /// The class of the next byte.
    class: usize,
    last: Option<u8>,
}

impl<'a> Plaintext<'a> {
    /// Of the run that `keys` were found of, from its first byte on.
    pub(crate) fn new(keys: &'a Keys) -> Self {
        Self { keys, links: [0; LAG], class: BEFORE % LAG, last: None }
    }

    /// The next bytes; `None` where a byte is not recovered.
    pub(crate) fn next(&mut self, wire: &[u8], plain: &mut Vec<Option<u8>>) {
        for &byte in wire {
            let link = &mut self.links[self.class];
            if let Some(last) = self.last {
                *link ^= byte ^ last;
            }
            plain.push(self.keys[self.class].map(|key| key ^ *link));
            self.last = Some(byte);
            self.class = (self.class + 1) % LAG;
        }
    }
}

#[cfg(test)]
mod tests;
