//! `plait lab`: links, topologies and experiments in network namespaces.

mod broken_pipe;
mod control;
mod description;
mod down;
mod exec;
mod inject;
mod link;
mod number;
mod ps;
mod results;
mod run;
mod supervisor;
mod traffic;
mod up;

use std::process::ExitCode;

/// Arguments of `plait lab`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// Build the hosts, links and services of a topology, and run them until `plait lab down`
    Up(up::Args),
    /// Run a program on a host of a lab
    Exec(exec::ExecArgs),
    /// Open a shell on a host of a lab
    Shell(exec::ShellArgs),
    /// List labs: hosts, links with their counters, services
    Ps(ps::Args),
    /// Apply an event to a link of a running lab
    Inject(inject::Args),
    /// Remove a lab: its services, programs, links and hosts
    Down(down::Args),
    /// Run a link between two namespaces, with a rate, delay, jitter, loss and queue, until Ctrl-C
    Link(Box<link::Args>),
    /// Run an experiment: repeat, capture, measure, compare with published results
    Run(Box<run::Args>),
    /// Generate traffic between hosts of a lab, and measure when it arrives
    Traffic(Box<traffic::Args>),
    /// Write the pages of results, in Markdown, from what `plait lab run` measured
    Results(results::Args),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args {
        Args::Up(args) => up::run(&args),
        Args::Exec(args) => exec::exec(&args),
        Args::Shell(args) => exec::shell(&args),
        Args::Ps(args) => ps::run(&args),
        Args::Inject(args) => inject::run(&args),
        Args::Down(args) => down::run(&args),
        Args::Link(args) => link::run(&args),
        Args::Run(args) => run::run(&args),
        Args::Traffic(args) => traffic::run(*args),
        Args::Results(args) => results::run(&args),
    }
}
