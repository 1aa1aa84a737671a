//! `plait policy check`: what is wrong in policies.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use plait_policy::{Policy, SpecificationError};
use serde_json::{Value, json};

use super::read;
use crate::stdout::Stdout;
use plait_config::pluralize;

/// Say what is wrong in policies; takes no privileges
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Policies in TOML; - reads stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Looks at every file; fails if there is a mistake in any.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = Stdout::new();
    let mut documents = Vec::new();
    let mut is_right = true;
    for file in &args.files {
        let found = read(file);
        is_right &= found.is_ok();
        let name = file.display().to_string();
        if args.json {
            documents.push(document(&name, found));
            continue;
        }
        match found {
            Ok(policy) => writeln!(out, "{name}: {}", summary(&policy))?,
            Err(error) => eprintln!("{error:#}"),
        }
    }
    if args.json {
        let document = json!({ "ok": is_right, "files": documents });
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    }
    out.flush()?;
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A policy in one line.
pub(super) fn summary(policy: &Policy) -> String {
    let actors = policy.chains.iter().map(|chain| chain.actors.len()).sum();
    let chains = pluralize(policy.chains.len(), "chain");
    format!("policy '{}', {chains} with {}", policy.name, pluralize(actors, "actor"))
}

fn document(file: &str, found: anyhow::Result<Policy>) -> Value {
    match found {
        Ok(policy) => {
            let chains: Vec<_> = policy.chains.iter().map(|chain| &chain.name).collect();
            json!({ "file": file, "policy": policy.name, "chains": chains, "mistakes": [] })
        }
        Err(error) => {
            json!({ "file": file, "policy": null, "chains": [], "mistakes": mistakes(&error) })
        }
    }
}

/// With the place of each where there is one.
fn mistakes(error: &anyhow::Error) -> Vec<Value> {
    match error.downcast_ref() {
        Some(SpecificationError::Mistakes(mistakes)) => {
            let place = |mistake: &plait_policy::Mistake| json!({ "line": mistake.line, "column": mistake.column, "message": mistake.message });
            mistakes.iter().map(place).collect()
        }
        _ => vec![json!({ "line": null, "column": null, "message": format!("{error:#}") })],
    }
}
