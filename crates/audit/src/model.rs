//! A language model of English text, HTML and HTTP headers: the probability of a byte given those before it.
//!
//! It is an n-gram model of order zero to five; each order is smoothed by the one below it (Witten and Bell, "The
//! zero-frequency problem", 1991, method C). The probabilities of all 256 bytes sum to at most one; the attack's
//! guarantee depends on that.
//!
//! The training text is part of plait (`crates/audit/model`); training takes a fraction of a second.

use std::collections::HashMap;
use std::sync::LazyLock;

use foldhash::fast::FixedState;

/// How many preceding symbols the probability of a byte depends on.
pub(crate) const CONTEXT: usize = 5;

/// The number of symbols: one for each byte that is common in text, and [`OTHER`].
pub(crate) const SYMBOLS: usize = EXTRA_TEXT_BYTES.len() + 95 + 1;

/// Bytes common in text besides printable ASCII: white space, and those of quotation marks, dashes and accented letters
/// in UTF-8.
const EXTRA_TEXT_BYTES: [u8; 17] = *b"\n\r\t\xe2\x80\x93\x94\x98\x99\x9c\x9d\xa6\xa0\xc2\xc3\xa9\xbc";

/// The symbol of all other bytes, which share its probability equally.
const OTHER: u8 = (SYMBOLS - 1) as u8;

/// Bits of a symbol in a key of [`Model::grams`].
const BITS: usize = 7;
const _: () = assert!(SYMBOLS <= 1 << BITS);

/// The training text, compressed.
const TRAINING_TEXT: &[u8] = include_bytes!("../model/text.zst");

/// A trained model.
pub(crate) struct Model {
    symbols: [u8; 256],
    /// log2 of the number of bytes that a symbol stands for.
    log2_bytes: [f32; SYMBOLS],
    /// log2 probabilities of a byte: unconditional, by `[previous][byte]`, and by `[second previous][previous][byte]`.
    unigrams: Vec<f32>,
    bigrams: Vec<f32>,
    trigrams: Vec<f32>,
    /// Counts of three and more symbols.
    grams: HashMap<u64, Gram, FixedState>,
}

/// Counts of a sequence of symbols.
#[derive(Clone, Copy, Default)]
struct Gram {
    count: u32,
    /// How many different symbols followed it.
    followers: u32,
}

impl Model {
    /// The model trained on the text that is part of plait.
    pub(crate) fn bundled() -> &'static Self {
        static MODEL: LazyLock<Model> = LazyLock::new(|| {
            Model::train(&zstd::decode_all(TRAINING_TEXT).expect("the embedded text can be decompressed"))
        });
        &MODEL
    }

    /// Trains a model on a text.
    pub(crate) fn train(text: &[u8]) -> Self {
        let symbols = symbols();
        let mut bytes_of = [0u32; SYMBOLS];
        symbols.iter().for_each(|symbol| bytes_of[usize::from(*symbol)] += 1);
        let log2_bytes = bytes_of.map(|bytes| (bytes as f32).log2());

        let text: Vec<u8> = text.iter().map(|byte| symbols[usize::from(*byte)]).collect();
        let uniform: Vec<f32> = bytes_of.iter().map(|bytes| *bytes as f32 / 256.0).collect();
        let unigrams = table(&text, 1, &uniform);
        let bigrams = table(&text, 2, &unigrams);
        let trigrams = table(&text, 3, &bigrams);
        let per_byte = |table: Vec<f32>| -> Vec<f32> {
            table.iter().enumerate().map(|(at, p)| p.log2() - log2_bytes[at % SYMBOLS]).collect()
        };
        Self {
            symbols,
            log2_bytes,
            unigrams: per_byte(unigrams),
            bigrams: per_byte(bigrams),
            trigrams: per_byte(trigrams),
            grams: grams(&text),
        }
    }

    /// The symbol of a byte, below [`SYMBOLS`].
    pub(crate) fn symbol(&self, byte: u8) -> u8 {
        self.symbols[usize::from(byte)]
    }

    /// log2 of the unconditional probability of a byte, given by its symbol.
    pub(crate) fn unigram(&self, symbol: u8) -> f32 {
        self.unigrams[usize::from(symbol)]
    }

    /// log2 probabilities of all symbols after one symbol.
    pub(crate) fn after(&self, before: u8) -> &[f32] {
        let start = usize::from(before) * SYMBOLS;
        &self.bigrams[start..start + SYMBOLS]
    }

    /// log2 probabilities of all symbols after two symbols, the older one first.
    pub(crate) fn after_two(&self, older: u8, before: u8) -> &[f32] {
        let start = (usize::from(older) * SYMBOLS + usize::from(before)) * SYMBOLS;
        &self.trigrams[start..start + SYMBOLS]
    }

    /// log2 of the probability of the last byte, given the [`CONTEXT`] symbols before it. 0 for no symbols.
    pub(crate) fn bits(&self, symbols: &[u8]) -> f32 {
        let Some((&last, before)) = symbols.split_last() else { return 0.0 };
        let &[.., older, newer] = before else {
            return before
                .last()
                .map_or_else(|| self.unigram(last), |before| self.after(*before)[usize::from(last)]);
        };
        let log2_bytes = self.log2_bytes[usize::from(last)];
        let trigram = self.after_two(older, newer)[usize::from(last)];
        let mut probability = None;
        let recent = &before[before.len().saturating_sub(CONTEXT)..];
        let packed = recent.iter().fold(0u64, |packed, symbol| packed << BITS | u64::from(*symbol));
        for length in 3..=recent.len() {
            let context = key(packed, length);
            let Some(&Gram { count, followers }) = self.grams.get(&context) else { break };
            if followers == 0 {
                break;
            }
            let seen = self.grams.get(&(context << BITS | u64::from(last))).map_or(0, |gram| gram.count);
            let lower = probability.unwrap_or_else(|| (trigram + log2_bytes).exp2());
            let (count, followers) = (count as f32, followers as f32);
            probability = Some((seen as f32 + followers * lower) / (count + followers));
        }
        probability.map_or(trigram, |probability| probability.log2() - log2_bytes)
    }
}

/// The symbol of each byte.
fn symbols() -> [u8; 256] {
    let mut symbols = [OTHER; 256];
    for (symbol, byte) in EXTRA_TEXT_BYTES.into_iter().chain(b' '..=b'~').enumerate() {
        symbols[usize::from(byte)] = symbol as u8;
    }
    symbols
}

/// Probabilities of all symbols after each `order - 1` symbols, smoothed by those of the order below.
fn table(text: &[u8], order: usize, lower: &[f32]) -> Vec<f32> {
    let mut counts = vec![0u32; SYMBOLS.pow(order as u32)];
    for gram in text.windows(order) {
        counts[gram.iter().fold(0, |at, symbol| at * SYMBOLS + usize::from(*symbol))] += 1;
    }
    let mut probabilities = Vec::with_capacity(counts.len());
    for (context, counts) in counts.chunks(SYMBOLS).enumerate() {
        let total = counts.iter().sum::<u32>() as f32;
        let followers = counts.iter().filter(|count| **count > 0).count() as f32;
        // The row for the same context without its oldest symbol.
        let start = context * SYMBOLS % lower.len();
        let lower = &lower[start..start + SYMBOLS];
        let smoothed = counts.iter().zip(lower).map(|(count, lower)| match followers > 0.0 {
            true => (*count as f32 + followers * lower) / (total + followers),
            false => *lower,
        });
        probabilities.extend(smoothed);
    }
    probabilities
}

/// Counts all sequences of three and more symbols.
fn grams(text: &[u8]) -> HashMap<u64, Gram, FixedState> {
    let mut grams: HashMap<u64, Gram, FixedState> =
        HashMap::with_capacity_and_hasher(text.len(), FixedState::default());
    let mut packed = 0u64;
    for (at, symbol) in text.iter().enumerate() {
        packed = packed << BITS | u64::from(*symbol);
        for length in 3..=(CONTEXT + 1).min(at + 1) {
            let gram = grams.entry(key(packed, length)).or_default();
            gram.count += 1;
            if gram.count == 1 && length > 3 {
                grams.entry(key(packed >> BITS, length - 1)).or_default().followers += 1;
            }
        }
    }
    grams
}

/// The last `length` symbols as one number, different for all sequences of all lengths.
fn key(packed: u64, length: usize) -> u64 {
    let bits = length * BITS;
    packed & ((1 << bits) - 1) | 1 << bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// One byte for each symbol, and the number of bytes the symbol stands for.
    fn representatives(model: &Model) -> Vec<(u8, f64)> {
        let mut bytes = vec![(0, 0.0); SYMBOLS];
        for byte in 0..=255 {
            let found = &mut bytes[usize::from(model.symbol(byte))];
            *found = (byte, found.1 + 1.0);
        }
        bytes
    }

    proptest! {
        /// The reason that random bytes are never taken for text.
        #[test]
        fn probabilities_sum_to_at_most_one(text in vec(prop_oneof![0..8u8, b'a'..b'e', any::<u8>()], 0..200), at in 0..200usize) {
            let model = Model::train(&text);
            let before: Vec<u8> = text.iter().take(at).map(|byte| model.symbol(*byte)).collect();
            let sum: f64 = representatives(&model).into_iter().map(|(byte, bytes)| {
                let row: Vec<u8> = before.iter().copied().chain([model.symbol(byte)]).collect();
                f64::from(model.bits(&row)).exp2() * bytes
            }).sum();
            prop_assert!((0.5..1.0 + 1e-3).contains(&sum), "{}", sum);
        }
    }

    #[test]
    fn training_text_is_more_probable_than_a_variation() {
        let text = b"the cat sat on the mat and the dog sat on the cat and the mat ".repeat(20);
        let model = Model::train(&text);
        let bits = |text: &[u8]| {
            let symbols: Vec<u8> = text.iter().map(|byte| model.symbol(*byte)).collect();
            (1..=symbols.len()).map(|end| model.bits(&symbols[..end])).sum::<f32>()
        };
        assert!(bits(b"the dog sat on the mat") > bits(b"the dgo sat on the mat") + 10.0);
        assert!(bits(b"\x00\xff\x01") < -24.0, "unseen bytes are less probable than uniform");
    }
}
