//! The command `plait`: parses arguments, calls the crates, and prints text or JSON.
//!
//! Exit status: 0 success, 1 failure, 2 wrong usage; `plait run` and `plait capture` exit as their program did.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_methods)]

mod analyze;
mod audit;
mod capture;
mod cc;
mod codec;
mod daemon;
mod demo;
mod doctor;
mod error;
mod escape;
mod examples;
mod exit;
mod gateway;
mod generate;
mod help;
mod identity;
mod kernel_algorithms;
mod kmod;
mod lab;
mod listener;
mod metrics;
mod missing_route;
mod monitor;
mod paths;
mod peers;
mod policy;
mod probe;
mod programs;
mod proxy;
mod report;
mod router;
mod run;
mod sched;
mod serve;
mod snapshot;
mod status;
mod stderr;
mod stdout;
mod top;
mod trace;
mod up;
mod version;
mod web;

use std::process::ExitCode;

use clap::builder::Styles;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::stderr::eprintln;

/// Multipath TCP on a stock Linux kernel: programmable, private, measurable
#[derive(Parser)]
#[command(name = "plait", version, max_term_width = 100)]
struct Cli {
    /// Log progress and connections to stderr (-vv: debug messages, -vvv: also those of libbpf)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

/// `plait --help` lists the commands by group (help.rs).
#[derive(Subcommand)]
enum Command {
    /// Run a program with its connections protected
    Run(run::Args),
    /// Accept protected connections for a service
    Serve(serve::Args),
    /// Offer a SOCKS5 and HTTP proxy that protects connections
    Proxy(proxy::Args),
    /// Protect the connections of the hosts behind an interface, transparently
    Router(router::Args),
    /// Do everything that a file says: whole host, proxy, services, exit, metrics
    Daemon(daemon::Args),
    /// Send the connections of the whole host through an exit, from now on
    Up(up::UpArgs),
    /// Undo `plait up`
    Down(up::DownArgs),
    /// Keep what only root can do for a gateway that is not
    #[command(hide = true)]
    Monitor(monitor::Args),
    /// Make this host an exit, which connects to what its clients ask for, and invite its clients
    #[command(subcommand)]
    Exit(exit::ExitCommand),
    /// Create or show the key pair by which peers recognize this host
    Identity(identity::Args),
    /// Show the peers that were reached sealed, and so are never carried in a weaker mode again
    Peers(peers::Args),
    /// Show and configure the kernel module, which protects without a gateway
    #[command(subcommand)]
    Kmod(kmod::Args),
    /// Show running gateways and their connections
    Status(status::Args),
    /// Show this host's interfaces, addresses and roles
    Paths(paths::Args),
    /// Watch the connections and subflows of this host
    Top(top::Args),
    /// Show paths, connections and failovers as they are in a browser
    Web(web::Args),
    /// Export connections, paths, kernel counters and gateways to Prometheus
    Metrics(metrics::Args),
    /// Check what this host has and lacks for plait, or why connections to a host have no further subflow
    Doctor(doctor::Args),
    /// Measure the paths to a host: round trips, loss, MTU, and with plait there rates, options and idle times
    Probe(probe::Args),
    /// Record packets, subflow samples and kernel counters into a directory
    Capture(capture::Args),
    /// Analyze captures: connections and subflows as tables, JSON, CSV, Parquet, plots
    Analyze(analyze::Args),
    /// Write a report of captures as one HTML page
    Report(report::Args),
    /// Convert captures
    #[command(subcommand)]
    Trace(trace::Args),
    /// Attack captures, to show what an eavesdropper on each path learns
    Audit(audit::Args),
    /// Apply policies to packets: selectors and actors in the kernel
    #[command(subcommand)]
    Policy(policy::Args),
    /// Use coupled congestion control for MPTCP subflows
    #[command(subcommand)]
    Cc(cc::Args),
    /// Choose which subflows of MPTCP connections carry data
    #[command(subcommand)]
    Sched(sched::Args),
    /// Emulate links and topologies, and run experiments, in network namespaces
    #[command(subcommand)]
    Lab(lab::Args),
    /// Reproduce the eavesdropping experiment: table, summary.json and captures
    Demo(demo::Args),
    /// Transform stdin to stdout by a mode's codec
    #[command(subcommand)]
    Codec(codec::Args),
    /// Show version, commit and date of this program
    Version(version::Args),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(generate::Args),
}

fn main() -> ExitCode {
    let cli = parse(Styles::styled()).unwrap_or_else(|error| exit_with_usage(&error));
    log_to_stderr(cli.verbose);
    let result = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Capture(args) => capture::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Policy(args) => policy::run(args),
        command => run(command).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {}", error::message(&error));
        ExitCode::FAILURE
    })
}

fn parse(styles: Styles) -> Result<Cli, clap::Error> {
    let matches = help::complete(Cli::command().styles(styles)).try_get_matches()?;
    Cli::from_arg_matches(&matches)
}

/// Prints help, the version or an error; it has styles unless arguments that it quotes are to be escaped.
fn exit_with_usage(styled: &clap::Error) -> ! {
    if let Err(plain) = parse(Styles::plain()) {
        let text = plain.render().ansi().to_string();
        if escape::escape(&text) != text {
            stderr::print(&text);
            std::process::exit(plain.exit_code());
        }
    }
    styled.exit()
}

/// The commands that exit with 0 unless they fail.
fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Proxy(args) => proxy::run(args),
        Command::Router(args) => router::run(args),
        Command::Daemon(args) => daemon::run(args),
        Command::Up(args) => up::up(args),
        Command::Down(args) => up::down(&args),
        Command::Monitor(args) => monitor::run(args),
        Command::Exit(command) => exit::run(command),
        Command::Identity(args) => identity::run(args),
        Command::Peers(args) => peers::run(args),
        Command::Kmod(args) => kmod::run(args),
        Command::Status(args) => status::run(args),
        Command::Paths(args) => paths::run(args),
        Command::Top(args) => top::run(args),
        Command::Web(args) => web::run(args),
        Command::Metrics(args) => metrics::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Probe(args) => probe::run(args),
        Command::Analyze(args) => analyze::run(args),
        Command::Report(args) => report::run(args),
        Command::Trace(args) => trace::run(args),
        Command::Audit(args) => audit::run(args),
        Command::Cc(args) => cc::run(args),
        Command::Sched(args) => sched::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Codec(args) => codec::run(args),
        Command::Version(args) => version::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Run(_) | Command::Capture(_) | Command::Lab(_) | Command::Policy(_) => {
            unreachable!("handled by main, as they exit with a status of their own")
        }
    }
}

/// Logs warnings always, progress and ended connections with -v, plait's debug messages with -vv, and those of libbpf with -vvv;
/// RUST_LOG overrides.
fn log_to_stderr(verbose: u8) {
    let debug = "info,plait_congestion=debug,plait_gateway=debug,plait_linux=debug,plait_lab=debug,plait_emulator=debug,plait_policy=debug";
    let level = match verbose {
        0 => "warn".to_owned(),
        1 => "info".to_owned(),
        2 => debug.to_owned(),
        _ => format!("{debug},libbpf=debug"),
    };
    let requested = std::env::var("RUST_LOG").ok().and_then(|levels| levels.parse().ok());
    let levels: Targets = requested.unwrap_or_else(|| level.parse().expect("valid levels"));
    tracing_subscriber::registry().with(stderr::Log::new().with_filter(levels)).init();
}
