//! The command `plait`: arguments in, the crates called, text or JSON out.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage; `plait run` exits as its program did.

mod analyze;
mod audit;
mod capture;
mod cc;
mod codec;
mod demo;
mod doctor;
mod gateway;
mod identity;
mod kmod;
mod lab;
mod metrics;
mod paths;
mod policy;
mod report;
mod status;
mod stdout;
mod time;
mod top;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Multipath TCP on a stock Linux kernel: programmable, private, measurable.
#[derive(Parser)]
#[command(name = "plait", version, max_term_width = 100)]
struct Cli {
    /// Say more on stderr (-vv: everything)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The eavesdropping experiment from end to end: table and summary.json
    Demo(demo::Args),
    /// Run an unmodified program with its connections protected
    Run(gateway::RunArgs),
    /// Accept protected connections for a service
    Serve(gateway::ServeArgs),
    /// SOCKS5 and HTTP CONNECT entry for programs that speak to a proxy
    Proxy(gateway::ProxyArgs),
    /// Make this host's key pair, or show the key by which peers know it
    Identity(identity::Args),
    /// This host's interfaces, addresses and roles
    Paths(paths::Args),
    /// Running gateways and their connections
    Status(status::Args),
    /// Live connections and subflows of this host
    Top(top::Args),
    /// Record packets, subflow samples and kernel counters of a measurement into one directory
    Capture(capture::Args),
    /// Serve connections, paths, kernel counters and gateways to Prometheus
    Metrics(metrics::Args),
    /// What this host has and lacks for plait, and how to get it
    Doctor(doctor::Args),
    /// The kernel module plait.ko: protection in the sockets of unmodified programs, without a gateway
    #[command(subcommand)]
    Kmod(kmod::Args),
    /// What captures say about connections and their subflows: tables, JSON, CSV, Parquet, report
    Analyze(analyze::Args),
    /// What captures say as one page for the browser, which needs no network
    Report(report::Args),
    /// What an eavesdropper on each path learnt, by really trying
    Audit(audit::Args),
    /// Links, topologies and experiments in network namespaces
    #[command(subcommand)]
    Lab(lab::Args),
    /// Chains of selectors and actors in the packet path
    #[command(subcommand)]
    Policy(policy::Args),
    /// Coupled congestion control for MPTCP subflows
    #[command(subcommand)]
    Cc(cc::Args),
    /// The transforms as filters from stdin to stdout
    #[command(subcommand)]
    Codec(codec::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr(cli.verbose);
    let done = match cli.command {
        Command::Demo(args) => demo::run(args),
        Command::Run(args) => return ended(gateway::run(args)),
        Command::Serve(args) => gateway::serve(args),
        Command::Proxy(args) => gateway::proxy(args),
        Command::Identity(args) => identity::run(args),
        Command::Paths(args) => paths::run(args),
        Command::Status(args) => status::run(args),
        Command::Top(args) => top::run(args),
        Command::Capture(args) => return ended(capture::run(args)),
        Command::Metrics(args) => metrics::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Kmod(args) => kmod::run(args),
        Command::Analyze(args) => analyze::run(args),
        Command::Report(args) => report::run(args),
        Command::Audit(args) => audit::run(args),
        Command::Lab(args) => return ended(lab::run(args)),
        Command::Policy(args) => return ended(policy::run(args)),
        Command::Cc(args) => cc::run(args),
        Command::Codec(args) => codec::run(args),
    };
    ended(done.map(|()| ExitCode::SUCCESS))
}

fn ended(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        eprintln!("plait: {error:#}");
        ExitCode::FAILURE
    })
}

/// Warnings always, progress with -v, everything of plait's own with -vv; RUST_LOG overrides.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => {
            "info,plait_congestion=debug,plait_gateway=debug,plait_linux=debug,plait_lab=debug,plait_emulator=debug,plait_policy=debug"
        }
    };
    let asked_for = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse().ok());
    let levels: Targets = asked_for.unwrap_or_else(|| level.parse().expect("levels as this says them"));
    let colour =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .without_time();
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
}
