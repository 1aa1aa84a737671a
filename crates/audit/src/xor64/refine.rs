//! From a guess to a reading: longer contexts decide what two symbols left open, and say how sure that is.

use std::ops::Range;

use super::chain::{Chain, Keys, LAG};
use crate::model::{CONTEXT, Model};

/// How often all classes are looked at again while something changes.
const PASSES: usize = 8;

/// How many other unknown bytes of a class are compared by long contexts.
const RIVALS: usize = 5;

/// How many times too great differences in probability are, in bits: the model counts neighbours' mistakes as evidence,
/// and takes text for more regular than it is. As measured on text that it has not learnt.
const OVERCONFIDENCE: f32 = 3.0;

/// What a reading loses whose unknown bytes have another sum than the wire tells, in bits: of wrong ones only one in
/// 256 has it.
const WRONG_SUM: f32 = 8.0;

/// Unknown bytes of all classes, and what they make of a span.
pub(super) struct Reading<'a> {
    model: &'a Model,
    chain: &'a Chain,
    span: Range<usize>,
    pub(super) keys: [u8; LAG],
    symbols: Vec<u8>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(model: &'a Model, chain: &'a Chain, span: Range<usize>, keys: [u8; LAG]) -> Self {
        let symbols = span.clone().map(|t| model.symbol(chain.link(t) ^ keys[t % LAG])).collect();
        Self { model, chain, span, keys, symbols }
    }

    /// log2 of the probability of the span's plaintext.
    pub(super) fn bits(&self) -> f32 {
        (0..self.symbols.len()).map(|at| self.bits_at(at)).sum()
    }

    /// The same, less where the sum is wrong: what readings are compared by.
    pub(super) fn rank(&self) -> f32 {
        self.bits() - if self.excess() == 0 { 0.0 } else { WRONG_SUM }
    }

    /// Changes the unknown bytes that are not known, one class at a time, as long as that makes the span more probable.
    pub(super) fn improve(&mut self, known: &Keys) {
        self.climb(known);
        // One wrong class is what remains most often, and the sum tells by how much it is wrong.
        let excess = self.excess();
        if excess != 0 {
            let free = (0..LAG).filter(|class| known[*class].is_none());
            let repaired = free.map(|class| (self.gain(class, self.keys[class] ^ excess), class));
            if let Some((gain, class)) = repaired.max_by(|a, b| a.0.total_cmp(&b.0))
                && gain > -WRONG_SUM
            {
                self.set(class, self.keys[class] ^ excess);
            }
        }
    }

    /// How sure each class is: the probability of its unknown byte, 0 to 1, all others being right.
    pub(super) fn certainty(&mut self, known: &Keys) -> [f32; LAG] {
        let mut certainty = [1.0; LAG];
        for class in (0..LAG).filter(|class| known[*class].is_none()) {
            let rivals = self.rivals(class);
            let odds: f32 =
                rivals.into_iter().map(|key| (self.gain(class, key) / OVERCONFIDENCE).exp2()).sum();
            certainty[class] = 1.0 / (1.0 + odds);
        }
        certainty
    }

    fn climb(&mut self, known: &Keys) {
        for _ in 0..PASSES {
            let mut changed = false;
            for class in (0..LAG).filter(|class| known[*class].is_none()) {
                let rivals = self.rivals(class);
                let gains = rivals.into_iter().map(|key| (self.gain(class, key), key));
                if let Some((gain, key)) = gains.max_by(|a, b| a.0.total_cmp(&b.0))
                    && gain > 1e-3
                {
                    self.set(class, key);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
    }

    /// The other unknown bytes of a class that are most probable by what follows two symbols.
    fn rivals(&self, class: usize) -> Vec<u8> {
        let mut bits = [0.0f32; 256];
        let places: Vec<usize> = self.places(class).collect();
        for &at in &places {
            let byte = self.chain.link(self.span.start + at);
            let around = |offset: usize| self.symbols.get(at + offset).copied();
            let (older, before) =
                (at.checked_sub(2).map(|at| self.symbols[at]), at.checked_sub(1).map(|at| self.symbols[at]));
            let here = match (older, before) {
                (Some(older), Some(before)) => Some(self.model.after_two(older, before)),
                (None, Some(before)) => Some(self.model.after(before)),
                _ => None,
            };
            for (key, bits) in bits.iter_mut().enumerate() {
                let symbol = self.model.symbol(byte ^ key as u8);
                *bits += here.map_or_else(|| self.model.unigram(symbol), |table| table[usize::from(symbol)]);
                if let Some(next) = around(1) {
                    *bits += match before {
                        Some(before) => self.model.after_two(before, symbol)[usize::from(next)],
                        None => self.model.after(symbol)[usize::from(next)],
                    };
                    if let Some(second) = around(2) {
                        *bits += self.model.after_two(symbol, next)[usize::from(second)];
                    }
                }
            }
        }
        let mut keys: Vec<u8> = (0..=255).filter(|key| *key != self.keys[class]).collect();
        keys.select_nth_unstable_by(RIVALS, |a, b| bits[usize::from(*b)].total_cmp(&bits[usize::from(*a)]));
        keys.truncate(RIVALS);
        keys
    }

    /// By how many bits another unknown byte makes the span more probable.
    fn gain(&mut self, class: usize, key: u8) -> f32 {
        let mut gain = 0.0;
        for at in self.places(class) {
            let touched = at..(at + CONTEXT + 1).min(self.symbols.len());
            let old = self.symbols[at];
            let new = self.model.symbol(self.chain.link(self.span.start + at) ^ key);
            // Bytes of one symbol, as many that are no text, are equally probable.
            if new != old {
                gain -= touched.clone().map(|at| self.bits_at(at)).sum::<f32>();
                self.symbols[at] = new;
                gain += touched.map(|at| self.bits_at(at)).sum::<f32>();
                self.symbols[at] = old;
            }
        }
        gain
    }

    fn set(&mut self, class: usize, key: u8) {
        self.keys[class] = key;
        for at in self.places(class) {
            self.symbols[at] = self.model.symbol(self.chain.link(self.span.start + at) ^ key);
        }
    }

    /// Where in the span the bytes of a class are.
    fn places(&self, class: usize) -> impl Iterator<Item = usize> + use<> {
        let first = (class + LAG - self.span.start % LAG) % LAG;
        (first..self.span.len()).step_by(LAG)
    }

    fn bits_at(&self, at: usize) -> f32 {
        self.model.bits(&self.symbols[at.saturating_sub(CONTEXT)..=at])
    }

    /// What the sum of the unknown bytes has too much.
    fn excess(&self) -> u8 {
        self.keys.iter().fold(self.chain.sum(), |sum, key| sum ^ key)
    }
}
