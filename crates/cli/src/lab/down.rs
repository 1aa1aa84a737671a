//! `plait lab down`: removes labs.

use std::process::ExitCode;

use super::control::Running;
use crate::stdout::print_text;

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
    for lab in labs {
        lab.down()?;
        print_text(&format!("lab {} is down\n", lab.id))?;
    }
    Ok(ExitCode::SUCCESS)
}
