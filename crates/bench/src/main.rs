//! `plait-bench`: the speed of plait's transforms beside ciphers and rejected designs, and the cost of a policy per packet.
//!
//! A program of its own, because it links ciphers and designs that plait itself must not offer. It is not installed.

mod codec;
mod machine;
mod policy;
mod rejected;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;

/// Benchmarks of plait's transforms and policies
#[derive(Parser)]
#[command(name = "plait-bench", version, max_term_width = 100)]
enum Command {
    /// Measure the speed of each mode, beside memcpy, ciphers and rejected designs (about 30 seconds)
    Codec(codec::Args),
    /// Measure what a policy costs each packet, by BPF test runs (about 20 seconds; needs root)
    Policy(policy::Args),
}

fn main() -> ExitCode {
    let output = match Command::parse() {
        Command::Codec(args) => codec::run(&args),
        Command::Policy(args) => policy::run(&args),
    };
    let printed = output.and_then(|text| Ok(std::io::stdout().write_all(text.as_bytes())?));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plait-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
