//! `plait cc`: coupled congestion control for the subflows of MPTCP connections.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use plait_congestion::{Algorithm, Connection, Registry, Subflow, Unloaded, Use, connections};
use plait_linux::netns::NetNs;
use serde_json::{Value, json};

use crate::stdout::{Stdout, print_json, print_text};

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

/// What an algorithm is enabled for.
#[derive(clap::Args)]
pub(crate) struct Target {
    /// Control group, such as /sys/fs/cgroup/downloads
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Network namespace, as `ip netns` names it [default: this one]
    #[arg(long, value_name = "NAME", conflicts_with = "cgroup")]
    netns: Option<String>,
}

impl Target {
    fn namespace(&self) -> anyhow::Result<NetNs> {
        Ok(match &self.netns {
            Some(name) => NetNs::named(name)?,
            None => NetNs::current()?,
        })
    }

    /// The network namespace, for messages.
    fn namespace_name(&self) -> String {
        self.netns
            .as_ref()
            .map_or("this network namespace".into(), |name| format!("network namespace {name}"))
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args {
        Args::List(args) => list(&args),
        Args::Load { algorithm, json } => load(algorithm, json),
        Args::Use { algorithm, target, json } => enable(algorithm, &target, json),
        Args::Disable { target, json } => disable(&target, json),
        Args::Unload { algorithm, json, .. } => unload(algorithm, json),
        Args::Show(args) => show(&args),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let registry = Registry::find()?;
    let (loaded, uses) = (registry.loaded()?, registry.uses()?);
    let used_by = |algorithm| uses.iter().filter(move |(used, _)| *used == algorithm).map(|(_, by)| by);
    if args.json {
        let document = |algorithm: Algorithm| {
            json!({
                "name": algorithm,
                "kernel_name": algorithm.kernel_name(),
                "description": algorithm.description(),
                "loaded": loaded.contains(&algorithm),
                "used_by": used_by(algorithm).map(use_as_json).collect::<Vec<_>>(),
            })
        };
        let algorithms: Vec<_> = Algorithm::ALL.into_iter().map(document).collect();
        return print_json(&json!({ "algorithms": algorithms }));
    }
    let mut out = Stdout::new();
    for algorithm in Algorithm::ALL {
        let state = if loaded.contains(&algorithm) { "loaded" } else { "-" };
        writeln!(out, "{algorithm:8} {state:7} {}", algorithm.description())?;
        for by in used_by(algorithm) {
            writeln!(out, "  enabled for {}", describe(by))?;
        }
    }
    Ok(out.flush()?)
}

fn load(algorithm: Algorithm, as_json: bool) -> anyhow::Result<()> {
    let is_new = Registry::find()?.load(algorithm)?;
    if as_json {
        return print_json(
            &json!({ "loaded": algorithm, "kernel_name": algorithm.kernel_name(), "new": is_new }),
        );
    }
    let state = if is_new { "loaded" } else { "already loaded" };
    print_text(&format!("{algorithm}: {state}, as {}\n", algorithm.kernel_name()))
}

fn enable(algorithm: Algorithm, target: &Target, as_json: bool) -> anyhow::Result<()> {
    let registry = Registry::find()?;
    let target = match &target.cgroup {
        Some(group) => format!("control group {}", registry.enable_for_cgroup(algorithm, group)?.display()),
        None => {
            registry.enable_for_namespace(algorithm, &target.namespace()?)?;
            target.namespace_name()
        }
    };
    if as_json {
        return print_json(&json!({ "enabled": algorithm, "for": target }));
    }
    print_text(&format!("{algorithm} is enabled for new connections of {target}\n"))
}

fn disable(target: &Target, as_json: bool) -> anyhow::Result<()> {
    let registry = Registry::find()?;
    let (target, algorithm) = match &target.cgroup {
        Some(group) => {
            let (path, algorithm) = registry.disable_for_cgroup(group)?;
            (format!("control group {}", path.display()), algorithm)
        }
        None => {
            let algorithm = registry.disable_for_namespace(&target.namespace()?);
            (target.namespace_name(), algorithm.with_context(|| target.namespace_name())?)
        }
    };
    if as_json {
        return print_json(&json!({ "disabled": algorithm, "for": target }));
    }
    print_text(&format!("{algorithm} is disabled for new connections of {target}\n"))
}

fn unload(algorithm: Option<Algorithm>, as_json: bool) -> anyhow::Result<()> {
    let registry = Registry::find()?;
    let algorithms = algorithm.map_or_else(|| registry.loaded(), |algorithm| Ok(vec![algorithm]))?;
    let mut done = Vec::new();
    for algorithm in algorithms {
        done.push((algorithm, registry.unload(algorithm)?));
    }
    if as_json {
        let unloaded =
            done.iter().map(|(name, Unloaded { sockets })| json!({ "name": name, "sockets": sockets }));
        return print_json(&json!({ "unloaded": unloaded.collect::<Vec<_>>() }));
    }
    if done.is_empty() {
        return print_text("no algorithm is loaded\n");
    }
    done.iter().try_for_each(|(algorithm, Unloaded { sockets })| match sockets {
        0 => print_text(&format!("unloaded: {algorithm}\n")),
        1 => print_text(&format!("unloaded: {algorithm}; one socket keeps using it until it is closed\n")),
        _ => print_text(&format!(
            "unloaded: {algorithm}; {sockets} sockets keep using it until they are closed\n"
        )),
    })
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

fn use_as_json(by: &Use) -> Value {
    match by {
        Use::ControlGroup { path, .. } => json!({ "kind": "cgroup", "path": path }),
        Use::Namespace { inode, name } => json!({ "kind": "netns", "name": name, "inode": inode }),
    }
}

fn describe(by: &Use) -> String {
    match by {
        Use::ControlGroup { path: Some(path), .. } => format!("control group {}", path.display()),
        Use::ControlGroup { path: None, id } => {
            format!("control group with id {id}, which no longer exists (run `plait doctor --clean`)")
        }
        Use::Namespace { name: Some(name), .. } => format!("network namespace {name}"),
        Use::Namespace { name: None, inode } => format!("network namespace with inode {inode}"),
    }
}
