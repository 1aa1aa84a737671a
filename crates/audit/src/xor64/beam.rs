//! Beam search for the unknown bytes of all residue classes that make a span read like text.

use std::ops::Range;

use super::run::{ClassKeys, LAG, WireRun};
use crate::model::{Model, SYMBOLS};

/// About how many probabilities one search looks up; this takes a tenth of a second.
const MAX_LOOKUPS: usize = 24_000_000;

/// How many candidates are returned.
const MAX_CANDIDATES: usize = 24;

/// The most probable unknown bytes of all classes under the trigram model, most probable first.
///
/// The plaintext bytes of `span` are arranged in rows of 65, so that a class is a column and one unknown byte decides a
/// whole column. From column to column the search keeps the most probable hypotheses; of those that agree in the last two
/// columns only the best, since the next column depends on these alone (Viterbi).
pub(super) fn search(model: &Model, run: &WireRun, span: Range<usize>, known: &ClassKeys) -> Vec<[u8; LAG]> {
    let rows = span.len().div_ceil(LAG);
    let choices = match rows {
        0..=4 => 96,
        5..=10 => 64,
        _ => 40,
    };
    let width = (MAX_LOOKUPS / (rows.max(1) * choices * LAG)).clamp(60, 1200);
    let mut columns: Vec<Column> = Vec::with_capacity(LAG);
    for first in span.start..span.start + LAG {
        let keys = match known[first % LAG] {
            Some(key) => vec![key],
            None => likely_keys(model, run, first, &span, choices),
        };
        let column = match columns.as_slice() {
            [] => Column::first(model, run, first, &span, keys),
            [.., before] => {
                let older = columns.len().checked_sub(2).map(|at| &columns[at]);
                Column::after(older, before, model, run, first, &span, keys, width)
            }
        };
        columns.push(column);
    }
    backtrace(&columns, span.start)
}

/// The unknown bytes that make a class most probable on its own.
fn likely_keys(model: &Model, run: &WireRun, first: usize, span: &Range<usize>, count: usize) -> Vec<u8> {
    let mut scored: Vec<(f32, u8)> = (0..=255)
        .map(|key| {
            let bits =
                (first..span.end).step_by(LAG).map(|t| model.unigram(model.symbol(run.delta(t) ^ key)));
            (bits.sum(), key)
        })
        .collect();
    scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(count);
    scored.into_iter().map(|(_, key)| key).collect()
}

/// A class: the unknown bytes that are tried, and the best hypotheses that end in them.
struct Column {
    keys: Vec<u8>,
    hypotheses: Vec<Hypothesis>,
}

/// A choice of unknown bytes up to a column.
#[derive(Clone, Copy)]
struct Hypothesis {
    bits: f32,
    /// The index of its byte in the column's keys.
    key: usize,
    /// The index of the hypothesis that it extends, in the previous column.
    from: usize,
}

impl Column {
    fn first(model: &Model, run: &WireRun, first: usize, span: &Range<usize>, keys: Vec<u8>) -> Self {
        let bits = |key: u8| {
            (first..span.end).step_by(LAG).map(|t| model.unigram(model.symbol(run.delta(t) ^ key))).sum()
        };
        let hypotheses = keys
            .iter()
            .enumerate()
            .map(|(at, key)| Hypothesis { bits: bits(*key), key: at, from: 0 })
            .collect();
        Self { keys, hypotheses }
    }

    #[expect(clippy::too_many_arguments, reason = "one step of the search above")]
    fn after(
        older: Option<&Self>,
        before: &Self,
        model: &Model,
        run: &WireRun,
        first: usize,
        span: &Range<usize>,
        keys: Vec<u8>,
        width: usize,
    ) -> Self {
        let places: Vec<usize> = (first..span.end).step_by(LAG).collect();
        let symbols: Vec<u8> = keys
            .iter()
            .flat_map(|key| places.iter().map(move |t| model.symbol(run.delta(*t) ^ key)))
            .collect();
        let mut best: Vec<Option<Hypothesis>> = vec![None; before.keys.len() * keys.len()];
        let mut tables: Vec<&[f32]> = Vec::with_capacity(places.len());
        for (from, hypothesis) in before.hypotheses.iter().enumerate() {
            let last = before.keys[hypothesis.key];
            tables.clear();
            tables.extend(places.iter().map(|t| {
                let newer = model.symbol(run.delta(t - 1) ^ last);
                match older {
                    None => model.after(newer),
                    Some(older) => {
                        let key = older.keys[older.hypotheses[hypothesis.from].key];
                        model.after_two(model.symbol(run.delta(t - 2) ^ key), newer)
                    }
                }
            }));
            let slots = &mut best[hypothesis.key * keys.len()..][..keys.len()];
            for (key, (slot, symbols)) in
                slots.iter_mut().zip(symbols.chunks_exact(places.len().max(1))).enumerate()
            {
                let row = tables.iter().zip(symbols);
                let bits = hypothesis.bits + row.map(|(table, symbol)| lookup(table, *symbol)).sum::<f32>();
                if slot.is_none_or(|slot| bits > slot.bits) {
                    *slot = Some(Hypothesis { bits, key, from });
                }
            }
        }
        let mut hypotheses: Vec<Hypothesis> = best.into_iter().flatten().collect();
        if hypotheses.len() > width {
            hypotheses.select_nth_unstable_by(width, |a, b| b.bits.total_cmp(&a.bits));
            hypotheses.truncate(width);
        }
        Self { keys, hypotheses }
    }
}

/// The entry of a symbol in a table of length [`SYMBOLS`].
#[inline]
fn lookup(table: &[f32], symbol: u8) -> f32 {
    debug_assert_eq!(table.len(), SYMBOLS);
    table[usize::from(symbol)]
}

/// The best hypotheses over all columns, by class.
fn backtrace(columns: &[Column], start: usize) -> Vec<[u8; LAG]> {
    let Some(last) = columns.last() else { return Vec::new() };
    let mut ends: Vec<&Hypothesis> = last.hypotheses.iter().collect();
    ends.sort_unstable_by(|a, b| b.bits.total_cmp(&a.bits));
    let trace = |end: &Hypothesis| {
        let mut keys = [0; LAG];
        let mut hypothesis = *end;
        for (at, column) in columns.iter().enumerate().rev() {
            keys[(start + at) % LAG] = column.keys[hypothesis.key];
            if let Some(before) = at.checked_sub(1) {
                hypothesis = columns[before].hypotheses[hypothesis.from];
            }
        }
        keys
    };
    ends.into_iter().take(MAX_CANDIDATES).map(trace).collect()
}
