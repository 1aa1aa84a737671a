//! `plait identity`: creates or shows this host's key pair for mode `sealed`.

use std::path::PathBuf;

use plait_gateway::identity;
use serde_json::json;

use crate::stderr::eprintln;
use crate::stdout::{print_json, print_text};

/// Arguments of `plait identity`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File with the key pair [default: /var/lib/plait/identity.key for root, else
    /// $XDG_STATE_HOME/plait/identity.key]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let file = args.file.map_or_else(identity::default_file, Ok)?;
    let (pair, created) = identity::load_or_create(&file)?;
    let key = pair.public().to_string();
    if created {
        eprintln!("plait: created a key pair in {}", file.display());
    }
    if args.json {
        return print_json(&json!({ "key": key, "file": file.display().to_string(), "created": created }));
    }
    print_text(&format!("{key}\n"))
}
