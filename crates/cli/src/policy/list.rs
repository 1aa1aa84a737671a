//! `plait policy list` and `plait policy show`.

use std::io::Write as _;
use std::time::Duration;

use plait_policy::Chain;
use plait_policy::engine::{Attachment, Engine, EngineError, LoadedPolicy};
use serde_json::{Value, json};

use crate::stdout::{Stdout, print_json, print_text};
use plait_config::pluralize;

/// List the loaded policies and where they are attached
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Print a loaded policy as TOML
#[derive(clap::Args)]
pub(crate) struct ShowArgs {
    /// The policy
    #[arg(value_name = "NAME")]
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<()> {
    let engine = Engine::current()?;
    let (policies, attachments) = (engine.policies()?, engine.attachments()?);
    if args.json {
        let policies: Vec<_> = policies.iter().map(document).collect();
        return print_json(&json!({ "policies": policies, "attachments": attachments }));
    }
    let mut out = Stdout::new();
    if policies.is_empty() {
        writeln!(out, "no policy is loaded")?;
    }
    for loaded in &policies {
        let chains: Vec<_> = loaded.policy.chains.iter().map(|chain| chain.name.as_str()).collect();
        let remaining = loaded.remaining.map(expiry_text).unwrap_or_default();
        writeln!(
            out,
            "{}: {}{}{}{remaining}",
            loaded.policy.name,
            pluralize(chains.len(), "chain"),
            if chains.is_empty() { "" } else { ": " },
            chains.join(", ")
        )?;
        if !loaded.absent.is_empty() {
            writeln!(out, "  MISSING: {}", loaded.absent.join(", "))?;
        }
    }
    for attachment in &attachments {
        writeln!(out, "  {}", attachment_text(attachment))?;
    }
    Ok(out.flush()?)
}

pub(super) fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let policies = Engine::current()?.policies()?;
    let Some(loaded) = policies.iter().find(|loaded| loaded.policy.name == args.name) else {
        let names = policies.into_iter().map(|loaded| loaded.policy.name).collect();
        return Err(EngineError::Unknown { name: args.name.clone(), loaded: names }.into());
    };
    if args.json { print_json(&document(loaded)) } else { print_text(&loaded.policy.to_string()) }
}

/// An attachment as text.
pub(super) fn attachment_text(attachment: &Attachment) -> String {
    let Attachment { interface, hook, mode, .. } = attachment;
    match mode {
        Some(mode) => format!("{hook} of {interface} ({mode})"),
        None => format!("{hook} of {interface}: NOT ATTACHED"),
    }
}

fn expiry_text(remaining: Duration) -> String {
    if remaining.is_zero() {
        return " (expired: no effect any more)".into();
    }
    format!(" (expires in {:.1} s)", remaining.as_secs_f64())
}

fn document(loaded: &LoadedPolicy) -> Value {
    let policy = &loaded.policy;
    let chains: Vec<_> = policy.chains.iter().map(chain).collect();
    json!({
        "name": policy.name,
        "remaining_s": loaded.remaining.map(|remaining| remaining.as_secs_f64()),
        "absent": loaded.absent,
        "chains": chains,
        "toml": policy.to_string(),
    })
}

fn chain(chain: &Chain) -> Value {
    let interfaces: Vec<_> = chain.interfaces.iter().map(ToString::to_string).collect();
    let actors: Vec<_> = chain.actors.iter().map(|actor| actor.name()).collect();
    json!({
        "name": chain.name,
        "hook": chain.hook.name(),
        "interfaces": interfaces,
        "priority": chain.priority,
        "select": chain.select.to_string(),
        "actors": actors,
    })
}
