//! `plait lab`: links, topologies and experiments in network namespaces.

mod control;
mod description;
mod down;
mod event;
mod exec;
mod figure;
mod keeper;
mod link;
mod ps;
mod reader;
mod results;
mod run;
mod up;

use std::process::ExitCode;

/// Arguments of `plait lab`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// Build the hosts, links and services of a topology, and keep them until `plait lab down`
    Up(up::Args),
    /// Run a program on a host of a lab
    Exec(exec::ExecArgs),
    /// Open a shell on a host of a lab
    Shell(exec::ShellArgs),
    /// Labs that are up: hosts, links with what they did, services
    Ps(ps::Args),
    /// Let something happen to a link of a lab now
    Event(event::Args),
    /// End a lab: its services, programs, links and hosts
    Down(down::Args),
    /// A link between two namespaces, with a rate, delay, jitter, loss and queue, until Ctrl-C
    Link(Box<link::Args>),
    /// Run an experiment: repeat, capture, measure, compare with what a paper printed
    Run(Box<run::Args>),
    /// Write the page of results from what `plait lab run` left
    Results(results::Args),
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args {
        Args::Up(args) => up::run(&args),
        Args::Exec(args) => exec::exec(&args),
        Args::Shell(args) => exec::shell(&args),
        Args::Ps(args) => ps::run(&args),
        Args::Event(args) => event::run(&args),
        Args::Down(args) => down::run(&args),
        Args::Link(args) => link::run(&args),
        Args::Run(args) => run::run(&args),
        Args::Results(args) => results::run(&args),
    }
}
