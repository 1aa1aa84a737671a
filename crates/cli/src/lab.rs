//! `plait lab`: links, topologies and experiments in network namespaces.

mod link;

use std::process::ExitCode;

/// Arguments of `plait lab`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// A link between two namespaces, with a rate, delay, jitter, loss and queue, until Ctrl-C
    Link(Box<link::Args>),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args {
        Args::Link(args) => link::run(&args),
    }
}
