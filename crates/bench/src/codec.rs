//! `plait-bench codec`: the speed of each mode, beside memcpy, ciphers and the designs that the papers rejected.
//!
//! # Method
//!
//! - One thread, pinned to one processor. All figures come from one run.
//! - Everything works **in place** on the same memory: enough buffers of the measured size to fill 32 KiB, at least
//!   one. A *pass* transforms each of them once. (`memcpy` copies them to other memory of the same size.)
//! - Each pass is timed on its own, so that preparation between passes is not: opening with an AEAD needs sealed
//!   buffers, which are sealed between passes, off the clock. The cost of reading the clock, some 25 ns per pass, is
//!   included in all figures; it makes the fastest look up to a few percent slower than they are.
//! - Keys are set up beforehand. `xor64`, `stream` and `sealed` continue one stream; an AEAD takes a new nonce for
//!   each buffer and makes or checks a tag; CBC continues one chain.
//! - `sealed` works in place on records in memory of its own, laid out off the clock as a gateway reads them.
//! - Secret sharing writes its shares to separate memory; the random bytes it needs are drawn on the clock.
//! - The transforms take turns: in each *round* each runs for a short while, so that a disturbance of the machine
//!   affects all of them. Speeds are medians over the rounds. Ratios are medians of the ratios within a round.

mod bytewise_aes;
mod ciphers;
mod measure;
mod modes;
mod rejected;
mod report;
mod transform;
mod transforms;

/// Arguments of `plait-bench codec`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Measure only this transform, and the one that ratios refer to; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// Measures all transforms; the result is a table or JSON.
pub(crate) fn run(args: &Args) -> anyhow::Result<String> {
    let results = measure::all(&args.only)?;
    if args.json { report::json(&results) } else { Ok(report::text(&results)) }
}
