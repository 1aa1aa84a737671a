//! `plait bench`: what the transforms cost, beside what else could be used; and what a policy costs (policy.rs).
//!
//! # Method of `plait bench codec`
//!
//! - One thread on one processor. All figures come from one run.
//! - Everything works **in place** on the same memory: as many buffers of the measured size as fill 32 KiB, at
//!   least one. One *pass* transforms each of them once. (`memcpy` copies them to other memory of the same size.)
//! - Each pass is timed by itself, so that what must be done between passes is not: opening with an AEAD needs
//!   sealed buffers, which are sealed between passes, off the clock. The clock's own cost, some 25 ns a pass, is in
//!   all figures; it makes the fastest look up to a few percent slower than they are.
//! - Keys are set up beforehand. `xor64`, `stream` and `sealed` go on with one stream, an AEAD takes a new nonce for
//!   each buffer and makes or checks a tag, CBC goes on with one chain.
//! - `sealed` works in place on records in memory of its own, laid out off the clock as a gateway reads them.
//! - Secret sharing writes its shares elsewhere; the random bytes that it needs are drawn on the clock.
//! - The candidates take turns: in each *round* each runs for a short while, so that a slower or disturbed spell of
//!   the machine meets all of them. Speeds are medians over the rounds. Ratios are medians of the ratios within
//!   a round.

mod candidates;
mod measure;
mod policy;
mod report;

/// Arguments of `plait bench`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// Speed of the modes, beside memcpy, ciphers and what the papers rejected (about 30 seconds)
    Codec(Codec),
    /// What a policy costs each packet, by BPF test runs (about 20 seconds)
    Policy(policy::Args),
}

/// Arguments of `plait bench codec`.
#[derive(clap::Args)]
pub(crate) struct Codec {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args {
        Args::Codec(Codec { json }) => {
            let measured = measure::all()?;
            if json { report::json(&measured) } else { report::text(&measured) }
        }
        Args::Policy(args) => policy::run(&args),
    }
}
