//! The results as tables or JSON.

use std::fmt::Write as _;

use serde_json::json;

use super::case::Measurement;
use super::cost::Bound;
use super::trial::{REPEATS, SINGLE};
use crate::machine::{cpu, kernel};

pub(super) fn json(results: &[Measurement], bounds: &[Bound], rounds: u32) -> anyhow::Result<String> {
    let document = json!({
        "cpu": cpu(),
        "kernel": kernel(),
        "rounds": rounds,
        "repeats": REPEATS,
        "single": SINGLE,
        "results": results,
        "bounds": bounds,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

pub(super) fn text(results: &[Measurement], bounds: &[Bound], rounds: u32) -> String {
    let mut out = format!("{}, Linux {}, BPF test runs, medians of {rounds} rounds\n", cpu(), kernel());
    out += &table(
        &format!("at XDP, {REPEATS} times in a row"),
        "above empty",
        results.iter().filter_map(|case| Some((case, case.above_empty_ns?))),
    );
    out += &table(
        &format!(
            "next to a policy that matches none of the packets; actors and many subflows {SINGLE} times, one at a time"
        ),
        "above no match",
        results.iter().filter_map(|case| Some((case, case.above_no_match_ns?))),
    );
    for Measurement { case, memory_ns, .. } in results {
        let _ =
            memory_ns.iter().try_for_each(|ns| writeln!(out, "{case}: a read from its memory {ns:.0} ns"));
    }
    if !bounds.is_empty() {
        out.push('\n');
    }
    for Bound { name, limit, measured, unit, met } in bounds {
        let verdict = if *met { "met" } else { "MISSED" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name}: {measured:.1} {unit}, limit {limit}: {verdict}");
    }
    out
}

/// The cases that share a reference; empty if there are none.
fn table<'a>(method: &str, above: &str, rows: impl Iterator<Item = (&'a Measurement, f64)>) -> String {
    let rows: String = rows
        .map(|(Measurement { case, ns, .. }, above)| format!("{case:26}{ns:>10.0}{above:>18.0}\n"))
        .collect();
    if rows.is_empty() { rows } else { format!("\n{method}\n{:26}{:>10}{above:>18}\n{rows}", "", "ns") }
}
