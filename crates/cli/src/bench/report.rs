//! The outcome as tables or JSON.

use std::fs;
use std::io::Write;

use plait_proto::xor64::InstructionSet;
use serde_json::{Value, json};

use super::candidates::Direction;
use super::measure::{Measured, REFERENCE, ROUNDS, SIZES};
use crate::stdout::Stdout;

/// The size of which expansion is told: that of the largest record of `sealed`.
const EXPANSION_SIZE: usize = SIZES[2];

pub(super) fn json(measured: &[Measured]) -> anyhow::Result<()> {
    let results: Vec<Value> = measured
        .iter()
        .map(|m| {
            json!({"name": m.name, "direction": m.direction.name(), "size": m.size, "gb_per_s": m.gb_per_s,
                   "wire_bytes": m.wire_bytes})
        })
        .collect();
    let ratios: Vec<Value> = measured
        .iter()
        .map(|m| json!({"name": m.name, "direction": m.direction.name(), "size": m.size, "ratio": m.ratio}))
        .collect();
    let reveals: Vec<Value> =
        each_once(measured).map(|m| json!({"name": m.name, "one_path_of_two": m.one_path_of_two})).collect();
    let report = json!({
        "cpu": cpu(),
        "kernel": kernel(),
        "simd": InstructionSet::best().name(),
        "rounds": ROUNDS,
        "results": results,
        "ratios": {"to": REFERENCE, "results": ratios},
        "reveals": reveals,
    });
    let mut out = Stdout::new();
    writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    Ok(out.flush()?)
}

pub(super) fn text(measured: &[Measured]) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    writeln!(out, "{}, Linux {}, one core, in place, medians of {ROUNDS} rounds", cpu(), kernel())?;
    writeln!(out, "simd is xor64 with {}; x is the speed relative to {REFERENCE}", InstructionSet::best())?;
    for size in SIZES {
        writeln!(out, "\nbuffers of {size} bytes")?;
        writeln!(out, "{:24}{:>12}{:>8}{:>14}{:>8}", "", "encode GB/s", "x", "decode GB/s", "x")?;
        let here = || measured.iter().filter(|m| m.size == size);
        for encode in here().filter(|m| m.direction == Direction::Encode) {
            let decode = here().find(|m| m.direction == Direction::Decode && m.name == encode.name);
            writeln!(
                out,
                "{:24}{:>12.3}{:>8.2}{}",
                encode.name,
                encode.gb_per_s,
                encode.ratio,
                decode_columns(decode)
            )?;
        }
    }
    writeln!(out, "\n{:24}{:>12}  one path of two reveals", "", "expansion")?;
    for m in each_once(measured) {
        let expansion = m.wire_bytes as f64 / m.size as f64;
        writeln!(out, "{:24}{expansion:>12.3}  {}", m.name, m.one_path_of_two)?;
    }
    writeln!(
        out,
        "\nExpansion is bytes on all paths for a byte of buffers of {EXPANSION_SIZE}. What is revealed: to somebody who"
    )?;
    writeln!(
        out,
        "captures all of one path and computes, and was not told keys. sealed, GCM and Poly1305 also detect changes."
    )?;
    writeln!(
        out,
        "DES and TDEA are the papers' comparison, sharing, pairs and chaining what they rejected: not to be used."
    )?;
    Ok(out.flush()?)
}

/// Every candidate once, at the size of which expansion is told.
fn each_once(measured: &[Measured]) -> impl Iterator<Item = &Measured> {
    measured.iter().filter(|m| m.size == EXPANSION_SIZE && m.direction == Direction::Encode)
}

fn decode_columns(decode: Option<&Measured>) -> String {
    decode.map(|m| format!("{:>14.3}{:>8.2}", m.gb_per_s, m.ratio)).unwrap_or_default()
}

pub(super) fn cpu() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(
        || format!("unnamed {} processor", std::env::consts::ARCH),
        |(_, name)| name.trim().to_owned(),
    )
}

pub(super) fn kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
