//! `plait policy load` and `plait policy unload`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use plait_gateway::Roles;
use plait_linux::interfaces::{Interface, interfaces};
use plait_policy::engine::{Attachment, Engine, Error, Loaded, Mode};
use plait_wire::Role;
use serde_json::json;

use super::check::summary;
use super::list::place;
use super::read;
use crate::gateway::Paths;
use crate::stdout::Stdout;

/// Let a policy act on this network namespace's packets until it is unloaded
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// The policy in TOML; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// In place of the loaded policy of the same name, if there is one, between two packets
    #[arg(long)]
    replace: bool,
    /// Attach in another way than this, where another works: native, generic (both XDP), tcx, clsact
    #[arg(long, value_name = "MODE", value_parser = mode)]
    avoid: Vec<Mode>,
    /// Meet packets that come in by XDP also on virtual interfaces, which makes these much slower
    #[arg(long)]
    xdp: bool,
    #[command(flatten)]
    paths: Paths,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Remove a policy from the packet path
#[derive(clap::Args)]
pub(crate) struct UnloadArgs {
    /// The policy
    #[arg(value_name = "NAME", required_unless_present = "all")]
    name: Option<String>,
    /// All of them
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn mode(text: &str) -> Result<Mode, String> {
    let modes = [Mode::Native, Mode::Generic, Mode::Tcx, Mode::Clsact];
    let named = modes.into_iter().find(|mode| mode.to_string() == text);
    named.ok_or_else(|| "expected native, generic, tcx or clsact".into())
}

pub(super) fn load(args: &LoadArgs) -> anyhow::Result<()> {
    let policy = read(&args.file)?;
    let roles = args.paths.config()?.roles;
    let mut engine = Engine::current()?.avoiding(&args.avoid);
    if args.xdp {
        engine = engine.by_xdp();
    }
    if roles != Roles::default() {
        engine = engine.with_roles(by_name(&roles)?);
    }
    let done =
        if args.replace { engine.replace(std::slice::from_ref(&policy)) } else { engine.load(&policy) };
    match done {
        Err(Error::Exists(name)) => {
            bail!(
                "a policy named '{name}' is loaded already: --replace puts this one in its place, without a gap"
            )
        }
        other => other?,
    }
    let wanted: Vec<_> = policy.chains.iter().map(|chain| chain.hook).collect();
    let attachments: Vec<_> =
        engine.attachments()?.into_iter().filter(|attachment| wanted.contains(&attachment.hook)).collect();
    let absent = engine.policy(&policy.name)?.map(|loaded| loaded.absent).unwrap_or_default();
    let mut out = Stdout::new();
    if args.json {
        let document = json!({ "loaded": policy.name, "attachments": attachments, "absent": absent });
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        writeln!(out, "loaded: {}", summary(&policy))?;
        for attachment in &attachments {
            writeln!(out, "  {}", place(attachment))?;
        }
    }
    out.flush()?;
    warn(&absent, &attachments);
    Ok(())
}

pub(super) fn unload(args: &UnloadArgs) -> anyhow::Result<()> {
    let engine = Engine::current()?;
    let (unloaded, lapsed): (Vec<_>, Vec<_>) = match &args.name {
        Some(name) if engine.unload(name)? => (vec![name.clone()], Vec::new()),
        Some(name) => (Vec::new(), vec![name.clone()]),
        None => {
            let acts = |loaded: &Loaded| loaded.remaining != Some(Duration::ZERO);
            let (acting, lapsed): (Vec<_>, Vec<_>) = engine.policies()?.into_iter().partition(acts);
            engine.unload_all()?;
            let names = |loaded: Vec<Loaded>| loaded.into_iter().map(|loaded| loaded.policy.name).collect();
            (names(acting), names(lapsed))
        }
    };
    let mut out = Stdout::new();
    if args.json {
        let document = json!({ "unloaded": unloaded, "lapsed": lapsed });
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        return Ok(out.flush()?);
    }
    if !unloaded.is_empty() {
        writeln!(out, "unloaded: {}", unloaded.join(", "))?;
    }
    if !lapsed.is_empty() {
        writeln!(out, "had lapsed, and is removed: {}", lapsed.join(", "))?;
    }
    if unloaded.is_empty() && lapsed.is_empty() {
        writeln!(out, "no policy was loaded")?;
    }
    Ok(out.flush()?)
}

/// Of the interfaces that there are.
fn by_name(roles: &Roles) -> anyhow::Result<BTreeMap<String, Role>> {
    let interfaces = interfaces()?.into_iter().filter(|interface| !interface.loopback);
    let with_role = |interface: Interface| roles.of(&interface.name).map(|role| (interface.name, role));
    Ok(interfaces.filter_map(with_role).collect())
}

/// Nothing is wrong with a policy for interfaces that are yet to come, but it may be a slip.
fn warn(absent: &[String], attachments: &[Attachment]) {
    if !absent.is_empty() {
        eprintln!(
            "plait: there is no {} here: what the policy asks for there does not hold; when there is, load it again \
             with --replace",
            absent.join(", ")
        );
    } else if attachments.is_empty() {
        eprintln!(
            "plait: no packet meets this policy: no interface here is one of those that its chains are for (roles are \
             given by --trusted and --untrusted)"
        );
    }
}
