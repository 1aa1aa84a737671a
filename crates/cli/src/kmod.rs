//! `plait kmod`: protection by the kernel module plait.ko, in the sockets of unmodified programs.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use plait_config::Role;
use plait_gateway::Roles;
use plait_gateway::kmod::{Enabled, Enabler, Enablers, Mark, Module, ModuleMode, Options, Ports};
use plait_gateway::kmod::{ModuleError, disable, enablers};
use serde_json::json;

use crate::gateway::{block_on, stop_signal};
use crate::stdout::{Stdout, json_line, print_json, print_text};

/// Arguments of `plait kmod`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// Protect the MPTCP sockets that the programs of a control group create, until stopped
    Enable {
        /// Control group whose programs are protected, such as /sys/fs/cgroup/private
        #[arg(long, value_name = "PATH")]
        cgroup: PathBuf,
        /// The trusted path, on which every connection starts: an interface, or an address that it has now
        #[arg(long, value_name = "IFACE|ADDRESS")]
        trusted: Option<String>,
        /// An untrusted path, likewise [default: all others]
        #[arg(long, value_name = "IFACE|ADDRESS")]
        untrusted: Vec<String>,
        /// How connections are protected: xor64 (obfuscation only; compatible with gateways), stream (confidential unless
        /// an attacker listens on the trusted path; requires the module at both ends)
        #[arg(long, value_name = "MODE", default_value_t = ModuleMode::Xor64)]
        mode: ModuleMode,
        /// Refuse connections that cannot be protected, instead of carrying them unprotected
        #[arg(long)]
        require: bool,
        /// Only connections to these ports, such as 80,443,5000-5010 [default: all]
        #[arg(long, value_name = "LIST")]
        port: Option<Ports>,
        /// Only sockets with this mark (SO_MARK), such as 0x1 or 0x1/0xff [default: all]
        #[arg(long, value_name = "N/MASK")]
        mark: Option<Mark>,
        /// Print JSON once started
        #[arg(long)]
        json: bool,
    },
    /// Show whether the module is loaded, its rules and counters, and running `plait kmod enable`
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the `plait kmod enable` of this network namespace
    Disable,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args {
        Args::Enable { cgroup, trusted, untrusted, mode, require, port, mark, json } => {
            let mut roles = Roles::default();
            trusted.iter().for_each(|name| roles.set(name, Role::Trusted));
            untrusted.iter().for_each(|name| roles.set(name, Role::Untrusted));
            let ports = port.unwrap_or_default();
            enable(Options { cgroup, mode, require, roles, ports, mark }, json)
        }
        Args::Status { json } => status(json),
        Args::Disable => {
            let Enabled { pid, cgroup, .. } = disable()?;
            print_text(&format!("ended: `plait kmod enable` for {cgroup} (process {pid})\n"))
        }
    }
}

fn enable(options: Options, as_json: bool) -> anyhow::Result<()> {
    block_on(async {
        let mut stop = stop_signal()?;
        let mut enabler = Enabler::start(options)?;
        announce(enabler.describe(), as_json)?;
        let ran = tokio::select! {
            ran = enabler.run() => ran.context("cannot observe connections any longer"),
            _ = stop.next() => Ok(()),
        };
        tokio::select! {
            () = enabler.stop() => {}
            // A second signal skips the wait.
            _ = stop.next() => {}
        }
        ran
    })
}

fn announce(enabled: &Enabled, as_json: bool) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    if as_json {
        writeln!(out, "{}", json_line(enabled)?)?;
    } else {
        write!(out, "from now on: ")?;
        print(enabled, &mut out)?;
    }
    Ok(out.flush()?)
}

fn status(as_json: bool) -> anyhow::Result<()> {
    let module = Module::read();
    let Enablers { running, killed } = enablers().context("cannot list running `plait kmod enable`")?;
    if as_json {
        let module = match &module {
            Some(module) => json!({ "loaded": true, "version": module.version, "rules": module.rules,
                                    "counters": module.counters }),
            None => json!({ "loaded": false, "version": null, "rules": null, "counters": null }),
        };
        return print_json(&json!({ "module": module, "enablers": running, "killed": killed }));
    }
    let mut out = Stdout::new();
    match &module {
        Some(module) => print_module(module, &mut out)?,
        None => writeln!(out, "{}", ModuleError::NotLoaded)?,
    }
    running.iter().try_for_each(|enabled| print(enabled, &mut out))?;
    for Enabled { pid, cgroup, .. } in &killed {
        writeln!(
            out,
            "process {pid} was killed: new connections of {cgroup} are refused; `plait doctor --clean` removes its rule"
        )?;
    }
    if running.is_empty() && killed.is_empty() && module.is_some() {
        writeln!(out, "`plait kmod enable` is not running")?;
    }
    Ok(out.flush()?)
}

fn print_module(module: &Module, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "plait.ko {} is loaded", module.version.as_deref().unwrap_or("(unknown version)"))?;
    match &module.rules {
        None => writeln!(out, "  rules: visible to root only")?,
        Some(rules) if rules.is_empty() => writeln!(out, "  no rules in this network namespace")?,
        Some(rules) => rules.iter().try_for_each(|rule| writeln!(out, "  rule: {rule}"))?,
    }
    module.counters.iter().try_for_each(|(name, count)| writeln!(out, "  {name}: {count}"))
}

fn print(enabled: &Enabled, out: &mut impl Write) -> io::Result<()> {
    let Enabled { pid, cgroup, mode, trusted, rule, .. } = enabled;
    let strictness = if enabled.require { "required" } else { "preferred" };
    let trusted = trusted.as_deref().map_or("no trusted path".to_owned(), |name| format!("trusted {name}"));
    writeln!(out, "programs in {cgroup}: {mode} {strictness}, {trusted} (process {pid}; rule: {rule})")
}
