//! `plait policy`: chains of selectors and actors in the packet path.

mod check;
mod dry_run;
mod list;
mod load;
mod stats;
mod trace;

use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use plait_policy::Policy;
use plait_policy::controller::guard;

/// Arguments of `plait policy`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// Check policy files; needs no privileges
    Check(check::Args),
    /// Load a policy into this network namespace until it is unloaded
    Load(load::LoadArgs),
    /// List the loaded policies and where they are attached
    List(list::ListArgs),
    /// Print a loaded policy as TOML
    Show(list::ShowArgs),
    /// Print the counters of chains and actors
    Stats(stats::Args),
    /// Print matching packets, and what was done with them, until Ctrl-C
    Trace(trace::Args),
    /// Run the packets of a capture through a policy without attaching it
    DryRun(dry_run::Args),
    /// Unload a policy
    Unload(load::UnloadArgs),
    /// Wait until the policy of a controller has expired, then revert what it left
    #[command(hide = true)]
    Guard {
        /// The policy
        name: String,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args {
        Args::Check(args) => return check::run(&args),
        Args::Load(args) => load::load(&args)?,
        Args::List(args) => list::list(&args)?,
        Args::Show(args) => list::show(&args)?,
        Args::Stats(args) => stats::run(&args)?,
        Args::Trace(args) => trace::run(&args)?,
        Args::DryRun(args) => dry_run::run(&args)?,
        Args::Unload(args) => load::unload(&args)?,
        Args::Guard { name } => guard(&name)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a policy from a file, or from stdin for `-`.
fn read(file: &Path) -> anyhow::Result<Policy> {
    if file != Path::new("-") {
        return Ok(Policy::read(file)?);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
    Ok(Policy::parse(&text, "stdin")?)
}

/// The hint if a command needs a loaded policy.
const NOTHING_LOADED: &str = "no policy is loaded: load one with `plait policy load FILE`";
