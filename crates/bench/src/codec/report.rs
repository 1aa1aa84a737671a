//! The results as tables or JSON.

use std::fmt::Write as _;

use plait_proto::codec::xor64::InstructionSet;
use serde_json::{Value, json};

use super::measure::{Measurement, REFERENCE, ROUNDS, SIZES};
use super::transform::Direction;
use crate::machine::{cpu, kernel};

/// The size for which expansion is printed: the largest record of `sealed`.
const EXPANSION_SIZE: usize = SIZES[2];

pub(super) fn json(results: &[Measurement]) -> anyhow::Result<String> {
    let speeds: Vec<Value> = results
        .iter()
        .map(|m| {
            json!({"name": m.name, "direction": m.direction.name(), "size": m.size, "gb_per_s": m.gb_per_s,
                   "wire_bytes": m.wire_bytes})
        })
        .collect();
    let ratios: Vec<Value> = results
        .iter()
        .map(|m| json!({"name": m.name, "direction": m.direction.name(), "size": m.size, "ratio": m.ratio}))
        .collect();
    let reveals: Vec<Value> = of_expansion_size(results)
        .map(|m| json!({"name": m.name, "one_path_of_two": m.one_path_of_two}))
        .collect();
    let report = json!({
        "cpu": cpu(),
        "kernel": kernel(),
        "simd": InstructionSet::best().name(),
        "rounds": ROUNDS,
        "results": speeds,
        "ratios": {"to": REFERENCE, "results": ratios},
        "reveals": reveals,
    });
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

pub(super) fn text(results: &[Measurement]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(&mut out, results);
    out
}

fn write_text(out: &mut String, results: &[Measurement]) -> std::fmt::Result {
    writeln!(out, "{}, Linux {}, one core, in place, medians of {ROUNDS} rounds", cpu(), kernel())?;
    writeln!(out, "simd is xor64 with {}; x is the speed relative to {REFERENCE}", InstructionSet::best())?;
    for size in SIZES {
        writeln!(out, "\nbuffers of {size} bytes")?;
        writeln!(out, "{:24}{:>12}{:>8}{:>14}{:>8}", "", "encode GB/s", "x", "decode GB/s", "x")?;
        let of_size = || results.iter().filter(|m| m.size == size);
        for encode in of_size().filter(|m| m.direction == Direction::Encode) {
            let decode = of_size().find(|m| m.direction == Direction::Decode && m.name == encode.name);
            let decode = decode.map(|m| format!("{:>14.3}{:>8.2}", m.gb_per_s, m.ratio)).unwrap_or_default();
            writeln!(out, "{:24}{:>12.3}{:>8.2}{decode}", encode.name, encode.gb_per_s, encode.ratio)?;
        }
    }
    writeln!(out, "\n{:24}{:>12}  one path of two reveals", "", "expansion")?;
    for m in of_expansion_size(results) {
        let expansion = m.wire_bytes as f64 / m.size as f64;
        writeln!(out, "{:24}{expansion:>12.3}  {}", m.name, m.one_path_of_two)?;
    }
    writeln!(
        out,
        "\nexpansion: bytes on all paths per byte of plaintext, in buffers of {EXPANSION_SIZE} bytes.\n\
         reveals: to an eavesdropper who captures all of one path and does not have the keys. sealed, GCM and Poly1305\n\
         also detect changes. DES and TDEA are the papers' comparison; sharing, pairs, chaining, OFB, shuffling and AONT are\n\
         other designs for path dispersion, most of which they rejected. Do not use any of these."
    )
}

/// Every transform once, at [`EXPANSION_SIZE`].
fn of_expansion_size(results: &[Measurement]) -> impl Iterator<Item = &Measurement> {
    results.iter().filter(|m| m.size == EXPANSION_SIZE && m.direction == Direction::Encode)
}
