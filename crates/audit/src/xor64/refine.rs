//! Refines a candidate: longer contexts correct what trigrams got wrong, and give a confidence for each class.

use std::ops::Range;

use super::run::{ClassKeys, LAG, WireRun};
use crate::model::{CONTEXT, Model};

/// How many passes over all classes are made at most.
const MAX_PASSES: usize = 8;

/// How many alternatives of a class are scored with long contexts.
const ALTERNATIVES: usize = 5;

/// The factor by which differences in log2 probability are too large: the model counts errors in neighbouring columns as
/// evidence and overestimates the regularity of text. Measured on text it was not trained on.
const OVERCONFIDENCE: f32 = 3.0;

/// The penalty, in bits, of a candidate whose unknown bytes have the wrong sum: only one in 256 wrong candidates has the
/// right one.
const WRONG_SUM_PENALTY: f32 = 8.0;

/// The unknown bytes of all classes, and the symbols of a span decoded with them.
pub(super) struct Candidate<'a> {
    model: &'a Model,
    run: &'a WireRun,
    span: Range<usize>,
    pub(super) keys: [u8; LAG],
    symbols: Vec<u8>,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(model: &'a Model, run: &'a WireRun, span: Range<usize>, keys: [u8; LAG]) -> Self {
        let symbols = span.clone().map(|t| model.symbol(run.delta(t) ^ keys[t % LAG])).collect();
        Self { model, run, span, keys, symbols }
    }

    /// log2 of the probability of the span's plaintext.
    pub(super) fn bits(&self) -> f32 {
        (0..self.symbols.len()).map(|at| self.bits_at(at)).sum()
    }

    /// The same minus the penalty for a wrong sum: the score that candidates are compared by.
    pub(super) fn rank(&self) -> f32 {
        self.bits() - if self.sum_error() == 0 { 0.0 } else { WRONG_SUM_PENALTY }
    }

    /// Changes the bytes that are not known, one class at a time, as long as that makes the span more probable.
    pub(super) fn refine(&mut self, known: &ClassKeys) {
        self.hill_climb(known);
        // The most frequent remaining error is a single class, and the sum reveals its correct byte.
        let sum_error = self.sum_error();
        if sum_error != 0 {
            let free = (0..LAG).filter(|class| known[*class].is_none());
            let repaired = free.map(|class| (self.gain(class, self.keys[class] ^ sum_error), class));
            if let Some((gain, class)) = repaired.max_by(|a, b| a.0.total_cmp(&b.0))
                && gain > -WRONG_SUM_PENALTY
            {
                self.set(class, self.keys[class] ^ sum_error);
            }
        }
    }

    /// The probability of the byte of each class, 0 to 1, given that all others are correct.
    pub(super) fn confidence(&mut self, known: &ClassKeys) -> [f32; LAG] {
        let mut confidence = [1.0; LAG];
        for class in (0..LAG).filter(|class| known[*class].is_none()) {
            let alternatives = self.alternatives(class);
            let odds: f32 =
                alternatives.into_iter().map(|key| (self.gain(class, key) / OVERCONFIDENCE).exp2()).sum();
            confidence[class] = 1.0 / (1.0 + odds);
        }
        confidence
    }

    fn hill_climb(&mut self, known: &ClassKeys) {
        for _ in 0..MAX_PASSES {
            let mut changed = false;
            for class in (0..LAG).filter(|class| known[*class].is_none()) {
                let alternatives = self.alternatives(class);
                let gains = alternatives.into_iter().map(|key| (self.gain(class, key), key));
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

    /// The other bytes of a class that are most probable under the trigram model.
    fn alternatives(&self, class: usize) -> Vec<u8> {
        let mut bits = [0.0f32; 256];
        let positions: Vec<usize> = self.positions(class).collect();
        for &at in &positions {
            let byte = self.run.delta(self.span.start + at);
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
        keys.select_nth_unstable_by(ALTERNATIVES, |a, b| {
            bits[usize::from(*b)].total_cmp(&bits[usize::from(*a)])
        });
        keys.truncate(ALTERNATIVES);
        keys
    }

    /// By how many bits another byte of a class makes the span more probable.
    fn gain(&mut self, class: usize, key: u8) -> f32 {
        let mut gain = 0.0;
        for at in self.positions(class) {
            let touched = at..(at + CONTEXT + 1).min(self.symbols.len());
            let old = self.symbols[at];
            let new = self.model.symbol(self.run.delta(self.span.start + at) ^ key);
            // Bytes that share a symbol are equally probable.
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
        for at in self.positions(class) {
            self.symbols[at] = self.model.symbol(self.run.delta(self.span.start + at) ^ key);
        }
    }

    /// The indices of a class's bytes in the span.
    fn positions(&self, class: usize) -> impl Iterator<Item = usize> + use<> {
        let first = (class + LAG - self.span.start % LAG) % LAG;
        (first..self.span.len()).step_by(LAG)
    }

    fn bits_at(&self, at: usize) -> f32 {
        self.model.bits(&self.symbols[at.saturating_sub(CONTEXT)..=at])
    }

    /// The difference between the sum of the unknown bytes and the known sum.
    fn sum_error(&self) -> u8 {
        self.keys.iter().fold(self.run.sum(), |sum, key| sum ^ key)
    }
}
