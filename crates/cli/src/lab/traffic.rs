//! `plait lab traffic`: traffic for experiments.

use std::env;
use std::net::{Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use plait_lab::traffic::{Arrivals, FlowSize, Periodic, Server, Sizes, TransferDirection, Workload};
use plait_lab::{Rate, Seed};

use crate::gateway::address_and_port;
use crate::stdout::print_json;

/// Generate traffic between hosts of a lab, and measure when it arrives
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Answer the other two until Ctrl-C
    Serve(ServeArgs),
    /// Open a connection for each of many flows, and print how long each takes, as JSON
    Flows(FlowsArgs),
    /// Send messages at a fixed interval over one connection, and print when they arrive, as JSON
    Periodic(PeriodicArgs),
}

#[derive(clap::Args)]
struct ServeArgs {
    /// The TCP port
    #[arg(long, value_name = "N", default_value_t = 5400)]
    port: u16,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(clap::Args)]
struct ConnectionArgs {
    /// Congestion control of the connections, such as cubic, or plait_lia after `plait cc load lia` [default: the
    /// host's]
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
}

#[derive(clap::Args)]
struct FlowsArgs {
    /// The server, such as 10.77.1.2:5400
    #[arg(value_name = "ADDRESS:PORT", value_parser = address_and_port)]
    server: SocketAddr,
    /// web-search, data-mining, a size such as 100kB, a range such as 20kB-220kB, or a file
    #[arg(long, value_name = "SIZES", default_value = "web-search")]
    sizes: Sizes,
    /// Number of flows
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Flows begin at random times, with this mean rate of payload
    #[arg(long, value_name = "RATE", conflicts_with = "parallel")]
    load: Option<Rate>,
    /// Flows at a time, if there is no --load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    parallel: u32,
    /// Send to the server instead of receiving from it
    #[arg(long)]
    upload: bool,
    /// Largest size of the flows that are summarised as small
    #[arg(long, value_name = "SIZE", default_value = "100kB")]
    small: FlowSize,
    /// Seed of sizes and times [default: PLAIT_SEED, else random]
    #[arg(long, value_name = "N")]
    seed: Option<Seed>,
    #[command(flatten)]
    connection: ConnectionArgs,
    /// How long a flow may wait for the network
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = plait_config::parse_time)]
    timeout: Duration,
}

#[derive(clap::Args)]
struct PeriodicArgs {
    /// The server, such as 10.77.1.2:5400, on this machine
    #[arg(value_name = "ADDRESS:PORT", value_parser = address_and_port)]
    server: SocketAddr,
    /// Time between messages
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = plait_config::parse_delay)]
    interval: Duration,
    /// Bytes of a message
    #[arg(long, value_name = "N", default_value_t = 172, value_parser = clap::value_parser!(u16).range(1..))]
    size: u16,
    /// For how long
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = plait_config::parse_time)]
    duration: Duration,
    /// Delay above which a message is late
    #[arg(long, value_name = "TIME", value_parser = plait_config::parse_delay)]
    deadline: Option<Duration>,
    #[command(flatten)]
    connection: ConnectionArgs,
    /// How long to wait for the network
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = plait_config::parse_time)]
    timeout: Duration,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Serve(args) => serve(args),
        Command::Flows(args) => flows(args),
        Command::Periodic(args) => periodic(args),
    }
}

fn serve(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.port));
    let server = Server::listen(address, args.connection.congestion_control)
        .with_context(|| format!("cannot listen on port {}", args.port))?;
    server.run().context("cannot accept connections")?;
    Ok(ExitCode::SUCCESS)
}

/// The exit status is 1 if a flow failed.
fn flows(args: FlowsArgs) -> anyhow::Result<ExitCode> {
    let workload = Workload {
        sizes: args.sizes,
        count: args.count,
        arrivals: args.load.map_or(Arrivals::Parallel(args.parallel), Arrivals::Load),
        direction: if args.upload { TransferDirection::Upload } else { TransferDirection::Download },
        small: args.small,
        congestion_control: args.connection.congestion_control,
        timeout: positive("--timeout", args.timeout)?,
    };
    let report = workload.run(args.server, args.seed.map_or_else(inherited_seed, Ok)?);
    print_json(&report)?;
    Ok(if report.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The exit status is 1 if a message was lost.
fn periodic(args: PeriodicArgs) -> anyhow::Result<ExitCode> {
    let periodic = Periodic {
        interval: positive("--interval", args.interval)?,
        size: args.size,
        duration: positive("--for", args.duration)?,
        deadline: args.deadline,
        congestion_control: args.connection.congestion_control,
        timeout: positive("--timeout", args.timeout)?,
    };
    let report = periodic.run(args.server).with_context(|| format!("cannot connect to {}", args.server))?;
    print_json(&report)?;
    Ok(if report.lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// That of the lab, for its programs.
fn inherited_seed() -> anyhow::Result<Seed> {
    match env::var(Seed::VARIABLE) {
        Ok(text) => text.parse().map_err(|error| anyhow::anyhow!("{}: {error}", Seed::VARIABLE)),
        Err(_) => Ok(Seed::random()),
    }
}

fn positive(option: &str, time: Duration) -> anyhow::Result<Duration> {
    anyhow::ensure!(!time.is_zero(), "{option}: expected more than 0, got 0");
    Ok(time)
}
