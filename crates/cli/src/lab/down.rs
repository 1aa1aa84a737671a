//! `plait lab down`: removes labs.

use std::io::Write as _;
use std::process::ExitCode;

use super::control::Running;
use crate::stdout::Stdout;

/// Remove a lab: its services, programs, links and hosts
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The lab, if several are up
    #[arg(long, value_name = "ID")]
    lab: Option<String>,
    /// All labs that are up
    #[arg(long, conflicts_with = "lab")]
    all: bool,
}

/// Returns once nothing is left of them.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let labs = if args.all { Running::all()? } else { vec![Running::find(args.lab.as_deref())?] };
    let mut out = Stdout::new();
    for lab in labs {
        lab.down()?;
        writeln!(out, "lab {} is down", lab.id)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
