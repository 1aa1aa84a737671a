//! What `plait cc` and `plait sched` have in common: algorithms that are registered with the kernel and enabled for network
//! namespaces and control groups.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use plait_congestion::{KernelAlgorithm, Registry, Unloaded, Use};
use plait_linux::netns::NetNs;
use serde_json::{Value, json};

use crate::stdout::{Stdout, print_json, print_text};

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

/// Lists all; `key` is that of the list in JSON.
pub(crate) fn list<A: KernelAlgorithm>(key: &str, as_json: bool) -> anyhow::Result<()> {
    let registry = Registry::<A>::find()?;
    let (loaded, uses) = (registry.loaded()?, registry.uses()?);
    let used_by = |algorithm| uses.iter().filter(move |(used, _)| *used == algorithm).map(|(_, by)| by);
    if as_json {
        let document = |algorithm: A| {
            json!({
                "name": algorithm.name(),
                "kernel_name": algorithm.kernel_name(),
                "description": algorithm.description(),
                "loaded": loaded.contains(&algorithm),
                "used_by": used_by(algorithm).map(use_as_json).collect::<Vec<_>>(),
            })
        };
        let algorithms: Vec<_> = A::ALL.iter().copied().map(document).collect();
        return print_json(&json!({ key: algorithms }));
    }
    let mut out = Stdout::new();
    for &algorithm in A::ALL {
        let state = if loaded.contains(&algorithm) { "loaded" } else { "-" };
        writeln!(out, "{algorithm:14} {state:7} {}", algorithm.description())?;
        for by in used_by(algorithm) {
            writeln!(out, "  enabled for {}", describe(by))?;
        }
    }
    Ok(out.flush()?)
}

pub(crate) fn load(algorithm: impl KernelAlgorithm, as_json: bool) -> anyhow::Result<()> {
    print_loaded(algorithm, Registry::find()?.load(algorithm)?, as_json)
}

pub(crate) fn print_loaded(
    algorithm: impl KernelAlgorithm,
    is_new: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    let name = algorithm.name();
    if as_json {
        return print_json(&json!({ "loaded": name, "kernel_name": algorithm.kernel_name(), "new": is_new }));
    }
    let state = if is_new { "loaded" } else { "already loaded" };
    print_text(&format!("{algorithm}: {state}, as {}\n", algorithm.kernel_name()))
}

pub(crate) fn enable(algorithm: impl KernelAlgorithm, target: &Target, as_json: bool) -> anyhow::Result<()> {
    let registry = Registry::find()?;
    let target = match &target.cgroup {
        Some(group) => {
            let path = registry.enable_for_cgroup(algorithm, group, &target.namespace()?)?;
            format!("control group {}", path.display())
        }
        None => {
            registry.enable_for_namespace(algorithm, &target.namespace()?)?;
            target.namespace_name()
        }
    };
    if as_json {
        return print_json(&json!({ "enabled": algorithm.name(), "for": target }));
    }
    print_text(&format!("{algorithm} is enabled for new connections of {target}\n"))
}

pub(crate) fn disable<A: KernelAlgorithm>(target: &Target, as_json: bool) -> anyhow::Result<()> {
    let registry = Registry::<A>::find()?;
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
        return print_json(&json!({ "disabled": algorithm.name(), "for": target }));
    }
    print_text(&format!("{algorithm} is disabled for new connections of {target}\n"))
}

/// Unloads one, or all of its kind.
pub(crate) fn unload<A: KernelAlgorithm>(algorithm: Option<A>, as_json: bool) -> anyhow::Result<()> {
    let registry = Registry::find()?;
    let algorithms = algorithm.map_or_else(|| registry.loaded(), |algorithm| Ok(vec![algorithm]))?;
    let mut done = Vec::new();
    for algorithm in algorithms {
        done.push((algorithm, registry.unload(algorithm)?));
    }
    if as_json {
        let unloaded = done
            .iter()
            .map(|(name, Unloaded { sockets })| json!({ "name": name.name(), "sockets": sockets }));
        return print_json(&json!({ "unloaded": unloaded.collect::<Vec<_>>() }));
    }
    if done.is_empty() {
        return print_text(&format!("no {} is loaded\n", A::KIND));
    }
    done.iter().try_for_each(|(algorithm, Unloaded { sockets })| match sockets {
        0 => print_text(&format!("unloaded: {algorithm}\n")),
        1 => print_text(&format!("unloaded: {algorithm}; one socket keeps using it until it is closed\n")),
        _ => print_text(&format!(
            "unloaded: {algorithm}; {sockets} sockets keep using it until they are closed\n"
        )),
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
