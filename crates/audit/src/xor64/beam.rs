//! The first guess: class by class, which unknown byte makes all rows read like text.

use std::ops::Range;

use super::chain::{Chain, Keys, LAG};
use crate::model::{Model, SYMBOLS};

/// About how many probabilities one search looks up: a tenth of a second.
const EFFORT: usize = 24_000_000;

/// How many guesses are handed on.
const GUESSES: usize = 24;

/// The most probable unknown bytes of all classes, by what follows two symbols, most probable first.
///
/// The plaintext bytes of `span` are written into rows of 65, so that a class is a column and one unknown byte decides
/// a whole column. From column to column the search keeps the most probable choices so far; of those that agree in the
/// last two columns only the best, since what comes next depends on these alone (Viterbi).
pub(super) fn search(model: &Model, chain: &Chain, span: Range<usize>, known: &Keys) -> Vec<[u8; LAG]> {
    let rows = span.len().div_ceil(LAG);
    let choices = match rows {
        0..=4 => 96,
        5..=10 => 64,
        _ => 40,
    };
    let width = (EFFORT / (rows.max(1) * choices * LAG)).clamp(60, 1200);
    let mut columns: Vec<Column> = Vec::with_capacity(LAG);
    for first in span.start..span.start + LAG {
        let keys = match known[first % LAG] {
            Some(key) => vec![key],
            None => likely_keys(model, chain, first, &span, choices),
        };
        let column = match columns.as_slice() {
            [] => Column::first(model, chain, first, &span, keys),
            [.., before] => {
                let older = columns.len().checked_sub(2).map(|at| &columns[at]);
                Column::after(older, before, model, chain, first, &span, keys, width)
            }
        };
        columns.push(column);
    }
    guesses(&columns, span.start)
}

/// The unknown bytes of a class that make it most probable by itself.
fn likely_keys(model: &Model, chain: &Chain, first: usize, span: &Range<usize>, count: usize) -> Vec<u8> {
    let mut scored: Vec<(f32, u8)> = (0..=255)
        .map(|key| {
            let bits =
                (first..span.end).step_by(LAG).map(|t| model.unigram(model.symbol(chain.link(t) ^ key)));
            (bits.sum(), key)
        })
        .collect();
    scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    scored.truncate(count);
    scored.into_iter().map(|(_, key)| key).collect()
}

/// A class: the unknown bytes that are tried, and the best ways to them.
struct Column {
    keys: Vec<u8>,
    ways: Vec<Way>,
}

/// A choice of unknown bytes up to a column.
#[derive(Clone, Copy)]
struct Way {
    bits: f32,
    /// The place of its byte among the column's.
    key: usize,
    /// The way that it continues, among those of the column before.
    from: usize,
}

impl Column {
    fn first(model: &Model, chain: &Chain, first: usize, span: &Range<usize>, keys: Vec<u8>) -> Self {
        let bits = |key: u8| {
            (first..span.end).step_by(LAG).map(|t| model.unigram(model.symbol(chain.link(t) ^ key))).sum()
        };
        let ways =
            keys.iter().enumerate().map(|(at, key)| Way { bits: bits(*key), key: at, from: 0 }).collect();
        Self { keys, ways }
    }

    #[expect(clippy::too_many_arguments, reason = "it is one step of the search above")]
    fn after(
        older: Option<&Self>,
        before: &Self,
        model: &Model,
        chain: &Chain,
        first: usize,
        span: &Range<usize>,
        keys: Vec<u8>,
        width: usize,
    ) -> Self {
        let places: Vec<usize> = (first..span.end).step_by(LAG).collect();
        let symbols: Vec<u8> = keys
            .iter()
            .flat_map(|key| places.iter().map(move |t| model.symbol(chain.link(*t) ^ key)))
            .collect();
        let mut best: Vec<Option<Way>> = vec![None; before.keys.len() * keys.len()];
        let mut tables: Vec<&[f32]> = Vec::with_capacity(places.len());
        for (from, way) in before.ways.iter().enumerate() {
            let last = before.keys[way.key];
            tables.clear();
            tables.extend(places.iter().map(|t| {
                let newer = model.symbol(chain.link(t - 1) ^ last);
                match older {
                    None => model.after(newer),
                    Some(older) => {
                        let key = older.keys[older.ways[way.from].key];
                        model.after_two(model.symbol(chain.link(t - 2) ^ key), newer)
                    }
                }
            }));
            let slots = &mut best[way.key * keys.len()..][..keys.len()];
            for (key, (slot, symbols)) in
                slots.iter_mut().zip(symbols.chunks_exact(places.len().max(1))).enumerate()
            {
                let row = tables.iter().zip(symbols);
                let bits = way.bits + row.map(|(table, symbol)| lookup(table, *symbol)).sum::<f32>();
                if slot.is_none_or(|slot| bits > slot.bits) {
                    *slot = Some(Way { bits, key, from });
                }
            }
        }
        let mut ways: Vec<Way> = best.into_iter().flatten().collect();
        if ways.len() > width {
            ways.select_nth_unstable_by(width, |a, b| b.bits.total_cmp(&a.bits));
            ways.truncate(width);
        }
        Self { keys, ways }
    }
}

/// A symbol's entry; symbols are below [`SYMBOLS`], which is a table's length.
#[inline]
fn lookup(table: &[f32], symbol: u8) -> f32 {
    debug_assert_eq!(table.len(), SYMBOLS);
    table[usize::from(symbol)]
}

/// The best ways through all columns, by class.
fn guesses(columns: &[Column], start: usize) -> Vec<[u8; LAG]> {
    let Some(last) = columns.last() else { return Vec::new() };
    let mut ends: Vec<&Way> = last.ways.iter().collect();
    ends.sort_unstable_by(|a, b| b.bits.total_cmp(&a.bits));
    let trace = |end: &Way| {
        let mut keys = [0; LAG];
        let mut way = *end;
        for (at, column) in columns.iter().enumerate().rev() {
            keys[(start + at) % LAG] = column.keys[way.key];
            if let Some(before) = at.checked_sub(1) {
                way = columns[before].ways[way.from];
            }
        }
        keys
    };
    ends.into_iter().take(GUESSES).map(trace).collect()
}
