//! `plait identity`: makes this host's key pair for mode `sealed`, or shows its public half.

use std::io::Write;
use std::path::PathBuf;

use plait_gateway::identity;

use crate::stdout::Stdout;

/// Arguments of `plait identity`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the key pair is kept [default: /var/lib/plait/identity.key, or of a user in the directory for state]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let file = args.file.map_or_else(identity::default_file, Ok)?;
    let (pair, made) = identity::load_or_create(&file)?;
    let key = pair.public().to_string();
    if made {
        eprintln!("plait: made a key pair and keep it in {}", file.display());
    }
    let mut out = Stdout::new();
    if args.json {
        let document = serde_json::json!({ "key": key, "file": file.display().to_string(), "made": made });
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
    } else {
        writeln!(out, "{key}")?;
    }
    Ok(out.flush()?)
}
