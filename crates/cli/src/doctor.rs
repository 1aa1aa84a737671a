//! `plait doctor`: what this host has and lacks for plait, and removing what killed runs left behind.

use std::io::{self, Write};

use anyhow::bail;
use plait_congestion::Registry;
use plait_emulator::Backend;
use plait_linux::probe::{self, Feature};
use plait_linux::{cgroup, clean_run_directory, pm, run_directory};
use serde::Serialize;
use serde_json::json;

use crate::stdout::{Stdout, print_json, print_text};

/// Arguments of `plait doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Remove what killed runs left behind, and list it, instead of looking for features
    #[arg(long)]
    clean: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Fails if something is missing that protected connections need, or something left behind cannot be removed.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.clean { clean(args.json) } else { diagnose(args.json) }
}

fn diagnose(as_json: bool) -> anyhow::Result<()> {
    let features = features();
    let missing = features.iter().filter(|feature| feature.essential && !feature.present).count();
    let system = rustix::system::uname();
    let kernel = format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy());
    if as_json {
        let list: Vec<_> = features.iter().map(feature_as_json).collect();
        print_json(&json!({ "kernel": kernel, "ok": missing == 0, "features": list }))?;
    } else {
        let mut out = Stdout::new();
        let user = rustix::process::geteuid();
        let user = if user.is_root() { "root".into() } else { format!("user {}", user.as_raw()) };
        writeln!(out, "{kernel}, as {user}\n")?;
        features.iter().try_for_each(|feature| print(feature, &mut out))?;
        writeln!(out)?;
        if missing == 0 {
            writeln!(out, "Everything that protected connections need is here.")?;
        }
        out.flush()?;
    }
    match missing {
        0 => Ok(()),
        1 => bail!("one thing that protected connections need is missing: see above"),
        _ => bail!("{missing} things that protected connections need are missing: see above"),
    }
}

/// What the host has, and what links can be made of.
fn features() -> Vec<Feature> {
    let link = |backend: Backend, name, detail: &str, lost_without, how_to_get| {
        let tried = backend.probe();
        let present = tried.is_ok();
        let detail = tried.map_or_else(|error| error.to_string(), |()| detail.into());
        Feature { name, present, essential: false, detail, lost_without, how_to_get }
    };
    let mut features = probe::features();
    features.push(link(
        Backend::Emu,
        "links by plait's emulator (emu)",
        "a link of two TAP interfaces was created and removed",
        "links in labs that are slow, late or lossy, unless netem is there; trace-driven and shared ones",
        "root; a kernel with CONFIG_TUN, and /dev/net/tun",
    ));
    features.push(link(
        Backend::Netem,
        "links by the kernel (netem and tbf)",
        "a link with these qdiscs was created and removed",
        "comparing plait's emulator with the kernel's; labs lose nothing",
        "root; ip and tc (iproute2); modprobe sch_netem sch_tbf, or a kernel that has them",
    ));
    let tried = plait_congestion::probe();
    features.push(Feature {
        name: "congestion control by BPF (struct_ops)",
        present: tried.is_ok(),
        essential: false,
        detail: tried.map_or_else(
            |error| error.to_string(),
            |()| "the programs of lia were loaded and removed".into(),
        ),
        lost_without: "plait cc: each subflow is controlled as if it were alone",
        how_to_get: "a kernel of version 6.4 or later with MPTCP, BTF and the BPF JIT compiler; root",
    });
    features
}

fn feature_as_json(feature: &Feature) -> serde_json::Value {
    json!({
        "name": feature.name,
        "present": feature.present,
        "essential": feature.essential,
        "detail": feature.detail,
        "lost_without": feature.lost_without,
        "how_to_get": feature.how_to_get,
    })
}

fn print(feature: &Feature, out: &mut impl Write) -> io::Result<()> {
    let Feature { name, detail, lost_without, how_to_get, .. } = feature;
    if feature.present {
        return writeln!(out, "  present   {name}: {detail}");
    }
    let state = if feature.essential { "MISSING " } else { "optional" };
    writeln!(out, "  {state}  {name}: {detail}")?;
    writeln!(out, "            lost without it: {lost_without}")?;
    writeln!(out, "            how to get it:   {how_to_get}")
}

/// Something removed.
#[derive(Serialize)]
struct Removed {
    kind: &'static str,
    name: String,
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
            let congestion = Registry::find().and_then(|registry| registry.clean_leftovers());
            gather("congestion control", congestion.map(paths).map_err(Into::into));
            gather("rule", plait_gateway::kmod::clean_leftovers().map_err(Into::into));
            gather("file", clean_run_directory().map(paths).map_err(Into::into));
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
