//! `plait doctor`: checks what this host has and lacks for plait, or why a connection to another host has no further subflow,
//! and removes what killed processes left behind.

pub(crate) mod connection;

use std::io::{self, Write};

use anyhow::bail;
use plait_congestion::{Algorithm, Registry};
use plait_emulator::Backend;
use plait_gateway::KillSwitch;
use plait_linux::probe::{self, Feature};
use plait_linux::{cgroup, clean_run_directory, local_delivery, pm, run_directory};
use serde::Serialize;
use serde_json::json;

use self::connection::Target;
use crate::daemon::HostLock;
use crate::stdout::{ATTENTION, BAD, GOOD, Stdout, StyledText, print_json, print_text};

/// Arguments of `plait doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Open a connection to this host, and find out why it has no subflow on some path [default port: 443]
    #[arg(value_name = "HOST[:PORT]")]
    target: Option<Target>,
    /// Consider this interface only (may be repeated) [default: all with a route to HOST or an MPTCP endpoint]
    #[arg(long, value_name = "NAME", requires = "target")]
    interface: Vec<String>,
    /// Remove and list what killed processes left behind, instead of checking features
    #[arg(long, conflicts_with = "target")]
    clean: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Fails if a requirement of protected connections is missing, if there is a fault on the way to a host, or if something left
/// behind cannot be removed.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.target {
        Some(target) => connection::diagnose(&target, &args.interface, args.json),
        None if args.clean => clean(args.json),
        None => diagnose(args.json),
    }
}

fn diagnose(as_json: bool) -> anyhow::Result<()> {
    let features = features();
    let missing = features.iter().filter(|feature| feature.essential && !feature.present).count();
    let system = rustix::system::uname();
    let kernel = format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy());
    if as_json {
        print_json(&json!({ "kernel": kernel, "ok": missing == 0, "features": features }))?;
    } else {
        let mut out = Stdout::new();
        let user = rustix::process::geteuid();
        let user = if user.is_root() { "root".into() } else { format!("user {}", user.as_raw()) };
        writeln!(out, "{kernel}, as {user}\n")?;
        features.iter().try_for_each(|feature| print(feature, &mut out))?;
        writeln!(out)?;
        if missing == 0 {
            writeln!(out, "All requirements of protected connections are met.")?;
        }
        out.flush()?;
    }
    match missing {
        0 => Ok(()),
        1 => bail!("one requirement of protected connections is missing: see above"),
        _ => bail!("{missing} requirements of protected connections are missing: see above"),
    }
}

/// The features of this host, and the backends of links.
fn features() -> Vec<Feature> {
    fn tried(
        name: &'static str,
        result: Result<(), impl ToString>,
        detail: &str,
        lost_without: &'static str,
        how_to_get: &'static str,
    ) -> Feature {
        let present = result.is_ok();
        let detail = result.map_or_else(|error| error.to_string(), |()| detail.into());
        Feature { name, present, essential: false, detail, lost_without, how_to_get }
    }
    let mut features = probe::features();
    features.push(tried(
        "links by plait's emulator (emu)",
        Backend::Emu.probe(),
        "a link of two TAP interfaces was created and removed",
        "lab links with rate, delay or loss, unless netem is available; trace-driven and shared links",
        "root; a kernel with CONFIG_TUN, and /dev/net/tun",
    ));
    features.push(tried(
        "links by the kernel (netem and tbf)",
        Backend::Netem.probe(),
        "a link with these qdiscs was created and removed",
        "comparing plait's emulator with the kernel's; labs do not need it",
        "root; ip and tc (iproute2); modprobe sch_netem sch_tbf, or a kernel that has them",
    ));
    features.push(tried(
        "congestion control by BPF (struct_ops)",
        plait_congestion::probe(),
        "the programs of lia were loaded and removed",
        "plait cc: each subflow is controlled independently",
        "a kernel of version 6.4 or later with MPTCP, BTF and the BPF JIT compiler; root",
    ));
    features.push(tried(
        "schedulers by BPF (struct_ops)",
        plait_scheduler::probe(),
        "the program of ecf was loaded and removed",
        "plait sched: the kernel hands data to every idle subflow, however slow",
        "the same, and CONFIG_TCP_CONG_CUBIC=y",
    ));
    features
}

fn print(feature: &Feature, out: &mut Stdout) -> io::Result<()> {
    let Feature { name, detail, lost_without, how_to_get, .. } = feature;
    let (style, state) = match (feature.present, feature.essential) {
        (true, _) => (GOOD, "present"),
        (false, true) => (BAD, "MISSING"),
        (false, false) => (ATTENTION, "optional"),
    };
    out.write_styled(&StyledText::new(style, format_args!("  {state:8}")))?;
    writeln!(out, "  {name}: {detail}")?;
    if feature.present {
        return Ok(());
    }
    writeln!(out, "            lost without it: {lost_without}")?;
    writeln!(out, "            how to get it:   {how_to_get}")
}

/// Something removed.
#[derive(Serialize)]
struct Removed {
    kind: &'static str,
    name: String,
}

/// Removes the kill switches of network namespaces that no longer exist. That of this one remains, because its purpose is to outlive
/// the daemon.
fn kill_switches() -> anyhow::Result<Vec<String>> {
    let removed = KillSwitch::clean_leftovers()?;
    if KillSwitch::is_engaged()? && HostLock::holder()?.is_none() {
        bail!(
            "a kill switch is in force, and no daemon runs: nothing leaves this host; `plait down` removes it"
        );
    }
    Ok(removed.iter().map(|path| path.display().to_string()).collect())
}

fn clean(as_json: bool) -> anyhow::Result<()> {
    let mut removed = Vec::new();
    let mut failures = Vec::new();
    let mut gather = |kind, result: anyhow::Result<Vec<String>>| match result {
        Ok(names) => removed.extend(names.into_iter().map(|name| Removed { kind, name })),
        Err(error) => failures.push(format!("{error:#}")),
    };
    let paths =
        |paths: Vec<std::path::PathBuf>| paths.iter().map(|path| path.display().to_string()).collect();
    gather("cgroup", cgroup::clean_leftovers().map(paths).map_err(Into::into));
    gather("routing", local_delivery::clean_leftovers().map_err(Into::into));
    // Everything else is recorded in the run directory.
    match run_directory() {
        Err(error) => gather("file", Err(error.into())),
        Ok(_) => {
            match plait_lab::remove_leftovers() {
                Ok(left) => {
                    gather("namespace", Ok(left.namespaces));
                    gather("directory", Ok(paths(left.directories)));
                }
                Err(error) => gather("namespace", Err(error.into())),
            }
            gather("policy", plait_policy::engine::clean_leftovers().map(paths).map_err(Into::into));
            let congestion = Registry::<Algorithm>::find().and_then(|registry| registry.clean_leftovers());
            gather("congestion control", congestion.map(paths).map_err(Into::into));
            gather("rule", plait_gateway::kmod::clean_leftovers().map_err(Into::into));
            gather("kill switch", kill_switches());
            gather("file", clean_run_directory().map(paths).map_err(Into::into));
            gather("file", HostLock::clean_leftovers().map(paths));
            let setting = pm::restore_after_crash().map(|setting| setting.into_iter().collect());
            gather("setting", setting.map_err(Into::into));
        }
    }

    if as_json {
        print_json(&json!({ "removed": removed, "failures": failures }))?;
    } else if removed.is_empty() && failures.is_empty() {
        print_text("nothing was left behind\n")?;
    } else {
        let lines = removed.iter().map(|Removed { kind, name }| format!("removed: {kind} {name}\n"));
        print_text(&lines.collect::<String>())?;
    }
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
}
