//! The outcome as tables or JSON.

use std::io::Write as _;

use serde_json::json;

use super::cost::Bound;
use super::{Measured, REPEATS, SINGLE};
use crate::bench::report::{cpu, kernel};
use crate::stdout::Stdout;

pub(super) fn json(measured: &[Measured], bounds: &[Bound], rounds: u32) -> anyhow::Result<()> {
    let document = json!({
        "cpu": cpu(),
        "kernel": kernel(),
        "rounds": rounds,
        "repeats": REPEATS,
        "single": SINGLE,
        "results": measured,
        "bounds": bounds,
    });
    let mut out = Stdout::new();
    writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    Ok(out.flush()?)
}

pub(super) fn text(measured: &[Measured], bounds: &[Bound], rounds: u32) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    writeln!(out, "{}, Linux {}, BPF test runs, medians of {rounds} rounds", cpu(), kernel())?;
    let in_a_row = format!("at XDP, {REPEATS} times in a row");
    table(&mut out, &in_a_row, "above empty", measured, |case| case.above_empty_ns)?;
    let beside = format!(
        "beside a policy that matches none of the packets; actors and many subflows {SINGLE} times, each by itself"
    );
    table(&mut out, &beside, "above no match", measured, |case| case.above_no_match_ns)?;
    if !bounds.is_empty() {
        writeln!(out)?;
    }
    for Bound { what, most, found, unit, met } in bounds {
        let met = if *met { "met" } else { "MISSED" };
        writeln!(out, "{what}: {found:.1} {unit}, at most {most}: {met}")?;
    }
    Ok(out.flush()?)
}

/// The cases that were compared with the same.
fn table(
    out: &mut Stdout,
    how: &str,
    above: &str,
    measured: &[Measured],
    difference: fn(&Measured) -> Option<f64>,
) -> anyhow::Result<()> {
    let rows: Vec<_> = measured.iter().filter_map(|case| Some((case, difference(case)?))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{how}\n{:26}{:>10}{above:>18}", "", "ns")?;
    for (Measured { case, ns, .. }, above) in rows {
        writeln!(out, "{case:26}{ns:>10.0}{above:>18.0}")?;
    }
    Ok(())
}
