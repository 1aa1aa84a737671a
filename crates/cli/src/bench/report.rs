//! The outcome as tables or JSON.

use std::fs;
use std::io::Write;

use plait_codec::xor64::InstructionSet;
use serde_json::{Value, json};

use super::candidates::Direction;
use super::measure::{Measured, REFERENCE, ROUNDS, SIZES};
use crate::stdout::Stdout;

pub(super) fn json(measured: &[Measured]) -> anyhow::Result<()> {
    let results: Vec<Value> = measured
        .iter()
        .map(|m| json!({"name": m.name, "direction": m.direction.name(), "size": m.size, "gb_per_s": m.gb_per_s}))
        .collect();
    let ratios: Vec<Value> = measured
        .iter()
        .map(|m| json!({"name": m.name, "direction": m.direction.name(), "size": m.size, "ratio": m.ratio}))
        .collect();
    let report = json!({
        "cpu": cpu(),
        "kernel": kernel(),
        "simd": InstructionSet::best().name(),
        "rounds": ROUNDS,
        "results": results,
        "ratios": {"to": REFERENCE, "results": ratios},
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
    writeln!(
        out,
        "\nThis compares cost, not strength: xor64 only hides text from somebody who looks at it and is undone"
    )?;
    writeln!(
        out,
        "without the key by whoever computes. AES and ChaCha20 are encryption; the GCM and Poly1305 forms"
    )?;
    writeln!(out, "also detect changes. DES and TDEA are the papers' comparison and not to be used.")?;
    Ok(out.flush()?)
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
