//! `plait policy check`: diagnostics of policy files.

use std::path::PathBuf;
use std::process::ExitCode;

use plait_policy::{Policy, PolicyError};
use serde_json::{Value, json};

use super::read;
use crate::stderr::eprintln;
use crate::stdout::{print_json, print_text};
use plait_config::pluralize;

/// Check policy files; needs no privileges
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policies in TOML; - reads stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks every file; fails if any is invalid.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut documents = Vec::new();
    let mut valid = true;
    for file in &args.files {
        let found = read(file);
        valid &= found.is_ok();
        let name = file.display().to_string();
        if args.json {
            documents.push(document(&name, found));
            continue;
        }
        match found {
            Ok(policy) => print_text(&format!("{name}: {}\n", summary(&policy)))?,
            Err(error) => eprintln!("{error:#}"),
        }
    }
    if args.json {
        print_json(&json!({ "ok": valid, "files": documents }))?;
    }
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A one-line summary of a policy.
pub(super) fn summary(policy: &Policy) -> String {
    let actors = policy.chains.iter().map(|chain| chain.actors.len()).sum();
    let chains = pluralize(policy.chains.len(), "chain");
    format!("policy '{}', {chains} with {}", policy.name, pluralize(actors, "actor"))
}

fn document(file: &str, found: anyhow::Result<Policy>) -> Value {
    match found {
        Ok(policy) => {
            let chains: Vec<_> = policy.chains.iter().map(|chain| &chain.name).collect();
            json!({ "file": file, "policy": policy.name, "chains": chains, "diagnostics": [] })
        }
        Err(error) => {
            json!({ "file": file, "policy": null, "chains": [], "diagnostics": diagnostics(&error) })
        }
    }
}

/// The diagnostics, with positions where known.
fn diagnostics(error: &anyhow::Error) -> Vec<Value> {
    match error.downcast_ref() {
        Some(PolicyError::Invalid(diagnostics)) => {
            let place = |diagnostic: &plait_policy::Diagnostic| json!({ "line": diagnostic.line, "column": diagnostic.column, "message": diagnostic.message });
            diagnostics.iter().map(place).collect()
        }
        _ => vec![json!({ "line": null, "column": null, "message": format!("{error:#}") })],
    }
}
