//! `plait policy`: chains of selectors and actors in the packet path.

mod attempt;
mod check;
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
    /// Say what is wrong in policies; takes no privileges
    Check(check::Args),
    /// Let a policy act on this network namespace's packets until it is unloaded
    Load(load::LoadArgs),
    /// Loaded policies, and where packets meet them
    List(list::ListArgs),
    /// A loaded policy as TOML
    Show(list::ShowArgs),
    /// What chains and actors have counted
    Stats(stats::Args),
    /// Tell each packet that matches, and what was done with it, until Ctrl-C
    Trace(trace::Args),
    /// Run the packets of a capture through a policy, attached to nothing
    Try(attempt::Args),
    /// Remove a policy from the packet path
    Unload(load::UnloadArgs),
    /// Wait until the policy of a controller has lapsed, and take back what it leaves
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
        Args::Try(args) => attempt::run(&args)?,
        Args::Unload(args) => load::unload(&args)?,
        Args::Guard { name } => guard(&name)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A policy from a file, or from stdin by the name `-`.
fn read(file: &Path) -> anyhow::Result<Policy> {
    if file != Path::new("-") {
        return Ok(Policy::read(file)?);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
    Ok(Policy::parse(&text, "stdin")?)
}

/// What to do where something needs a policy, and there is none.
const NOTHING_LOADED: &str = "no policy is loaded here: load one with `plait policy load FILE`";
