//! `plait cc`: coupled congestion control for the subflows of MPTCP connections.

use std::io::{self, Write};

use plait_congestion::{Algorithm, Connection, Subflow, connections};
use serde_json::{Value, json};

use crate::kernel_algorithms::{self, Target};
use crate::stdout::{Stdout, print_json};

/// Arguments of `plait cc`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// List the algorithms, which are loaded, and what they are enabled for
    List(ListArgs),
    /// Register an algorithm with the kernel as plait_NAME, until it is unloaded
    Load {
        /// ewtcp, coupled, lia, olia or balia
        #[arg(value_name = "NAME")]
        algorithm: Algorithm,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Enable an algorithm for new connections of a network namespace or a control group
    Use {
        /// ewtcp, coupled, lia, olia or balia; loaded if it is not yet
        #[arg(value_name = "NAME")]
        algorithm: Algorithm,
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Undo `use`; existing connections keep their algorithm
    Disable {
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Disable an algorithm everywhere and unregister it; existing connections keep it until they are closed
    Unload {
        /// ewtcp, coupled, lia, olia or balia
        #[arg(value_name = "NAME", required_unless_present = "all")]
        algorithm: Option<Algorithm>,
        /// Unload all algorithms
        #[arg(long, conflicts_with = "algorithm")]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the connections of this network namespace: algorithm, windows, round-trip times, window increases
    Show(ListArgs),
}

/// Arguments of `plait cc list` and `plait cc show`.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args {
        Args::List(args) => kernel_algorithms::list::<Algorithm>("algorithms", args.json),
        Args::Load { algorithm, json } => kernel_algorithms::load(algorithm, json),
        Args::Use { algorithm, target, json } => kernel_algorithms::enable(algorithm, &target, json),
        Args::Disable { target, json } => kernel_algorithms::disable::<Algorithm>(&target, json),
        Args::Unload { algorithm, json, .. } => kernel_algorithms::unload(algorithm, json),
        Args::Show(args) => show(&args),
    }
}

fn show(args: &ListArgs) -> anyhow::Result<()> {
    let connections = connections()?;
    if args.json {
        let connections: Vec<_> = connections.iter().map(connection_as_json).collect();
        return print_json(&json!({ "connections": connections }));
    }
    let mut out = Stdout::new();
    if connections.is_empty() {
        writeln!(out, "no MPTCP connection in this network namespace")?;
    }
    connections.iter().try_for_each(|connection| print(connection, &mut out))?;
    Ok(out.flush()?)
}

fn print(connection: &Connection, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}: {}", connection.token, algorithms_of(connection).join(" and "))?;
    for subflow in &connection.subflows {
        let Subflow { local, remote, window, rtt, increase, .. } = subflow;
        let rtt = rtt.map_or("-".into(), |rtt| format!("{:.1} ms", rtt.as_secs_f64() * 1e3));
        let increase = increase.map_or("-".into(), |increase| format!("{increase:.3} of reno's"));
        writeln!(out, "  {local} - {remote}: window {window}, round trip {rtt}, increase {increase}")?;
    }
    Ok(())
}

/// The kernel's names of the algorithms, each once. Subflows created before another one was enabled keep theirs.
fn algorithms_of(connection: &Connection) -> Vec<&str> {
    let mut names: Vec<_> =
        connection.subflows.iter().map(|subflow| subflow.congestion_control.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn connection_as_json(connection: &Connection) -> Value {
    let subflow = |subflow: &Subflow| {
        json!({
            "local": subflow.local,
            "remote": subflow.remote,
            "congestion_control": subflow.congestion_control,
            "cwnd": subflow.window,
            "ssthresh": subflow.threshold,
            "rtt_ms": subflow.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            "increase": subflow.increase,
        })
    };
    let subflows: Vec<_> = connection.subflows.iter().map(subflow).collect();
    json!({
        "token": connection.token.to_string(),
        "algorithms": algorithms_of(connection),
        "subflows": subflows,
    })
}
