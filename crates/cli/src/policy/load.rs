//! `plait policy load` and `plait policy unload`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use plait_config::Role;
use plait_gateway::Roles;
use plait_linux::interfaces::{Interface, interfaces};
use plait_policy::engine::{AttachMode, Attachment, Engine, EngineError, LoadedPolicy};
use serde_json::json;

use super::check::summary;
use super::list::attachment_text;
use super::read;
use crate::gateway::Paths;
use crate::stderr::eprintln;
use crate::stdout::{Stdout, print_json, print_text};

/// Load a policy into this network namespace until it is unloaded
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    /// The policy in TOML; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Atomically replace the loaded policy with the same name, if there is one
    #[arg(long)]
    replace: bool,
    /// Avoid this attach mode where another works: native, generic (both XDP), tcx, clsact
    #[arg(long, value_name = "MODE", value_parser = mode)]
    avoid: Vec<AttachMode>,
    /// Use XDP on virtual interfaces, too; this makes them much slower
    #[arg(long)]
    xdp: bool,
    #[command(flatten)]
    paths: Paths,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Unload a policy
#[derive(clap::Args)]
pub(crate) struct UnloadArgs {
    /// The policy
    #[arg(value_name = "NAME", required_unless_present = "all")]
    name: Option<String>,
    /// Unload all policies
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn mode(text: &str) -> Result<AttachMode, String> {
    let modes = [AttachMode::Native, AttachMode::Generic, AttachMode::Tcx, AttachMode::Clsact];
    let named = modes.into_iter().find(|mode| mode.to_string() == text);
    named.ok_or_else(|| "expected native, generic, tcx or clsact".into())
}

pub(super) fn load(args: &LoadArgs) -> anyhow::Result<()> {
    let policy = read(&args.file)?;
    let roles = args.paths.config()?.roles;
    let mut engine = Engine::current()?.avoid_modes(&args.avoid);
    if args.xdp {
        engine = engine.prefer_xdp();
    }
    if roles != Roles::default() {
        engine = engine.with_roles(by_name(&roles)?);
    }
    let done =
        if args.replace { engine.replace(std::slice::from_ref(&policy)) } else { engine.load(&policy) };
    match done {
        Err(EngineError::Exists(name)) => {
            bail!("a policy named '{name}' is already loaded: use --replace to replace it atomically")
        }
        other => other?,
    }
    let wanted: Vec<_> = policy.chains.iter().map(|chain| chain.hook).collect();
    let attachments: Vec<_> =
        engine.attachments()?.into_iter().filter(|attachment| wanted.contains(&attachment.hook)).collect();
    let absent = engine.policy(&policy.name)?.map(|loaded| loaded.absent).unwrap_or_default();
    if args.json {
        print_json(&json!({ "loaded": policy.name, "attachments": attachments, "absent": absent }))?;
    } else {
        let lines = attachments.iter().map(|attachment| format!("  {}\n", attachment_text(attachment)));
        print_text(&format!("loaded: {}\n{}", summary(&policy), lines.collect::<String>()))?;
    }
    warn(&absent, &attachments);
    Ok(())
}

pub(super) fn unload(args: &UnloadArgs) -> anyhow::Result<()> {
    let engine = Engine::current()?;
    let (unloaded, expired): (Vec<_>, Vec<_>) = match &args.name {
        Some(name) if engine.unload(name)? => (vec![name.clone()], Vec::new()),
        Some(name) => (Vec::new(), vec![name.clone()]),
        None => {
            let is_active = |loaded: &LoadedPolicy| loaded.remaining != Some(Duration::ZERO);
            let (active, expired): (Vec<_>, Vec<_>) = engine.policies()?.into_iter().partition(is_active);
            engine.unload_all()?;
            let names =
                |loaded: Vec<LoadedPolicy>| loaded.into_iter().map(|loaded| loaded.policy.name).collect();
            (names(active), names(expired))
        }
    };
    if args.json {
        return print_json(&json!({ "unloaded": unloaded, "expired": expired }));
    }
    let mut out = Stdout::new();
    if !unloaded.is_empty() {
        writeln!(out, "unloaded: {}", unloaded.join(", "))?;
    }
    if !expired.is_empty() {
        writeln!(out, "expired and removed: {}", expired.join(", "))?;
    }
    if unloaded.is_empty() && expired.is_empty() {
        writeln!(out, "no policy was loaded")?;
    }
    Ok(out.flush()?)
}

/// The roles of existing interfaces.
fn by_name(roles: &Roles) -> anyhow::Result<BTreeMap<String, Role>> {
    let interfaces = interfaces()?.into_iter().filter(|interface| !interface.loopback);
    let with_role = |interface: Interface| roles.of(&interface).map(|role| (interface.name, role));
    Ok(interfaces.filter_map(with_role).collect())
}

/// Warns about missing interfaces, which are allowed but may be a mistake.
fn warn(absent: &[String], attachments: &[Attachment]) {
    if !absent.is_empty() {
        eprintln!(
            "plait: {} not found: parts of the policy that need it have no effect; load the policy again with --replace \
             when it exists",
            absent.join(", ")
        );
    } else if attachments.is_empty() {
        eprintln!(
            "plait: the policy is not attached: its chains apply to none of the existing interfaces (assign roles with \
             --trusted and --untrusted)"
        );
    }
}
