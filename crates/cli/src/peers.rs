//! `plait peers`: the peers that gateways of this user reached in mode `sealed`.

use std::io::Write;

use anyhow::{Context, bail};
use plait_gateway::SealedPeers;
use serde_json::json;

use crate::stdout::{Stdout, aligned, print_json};

/// Arguments of `plait peers`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Forget peers, so that they may be carried in a weaker mode again
    Forget {
        /// Peers as `plait peers` lists them
        #[arg(required = true, value_name = "NAME:PORT")]
        peers: Vec<String>,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let memory = SealedPeers::of_user();
    match args.action {
        Some(Action::Forget { peers }) => forget(&memory, &peers),
        None => list(&memory, args.json),
    }
}

fn list(memory: &SealedPeers, json: bool) -> anyhow::Result<()> {
    let peers = memory.list()?;
    let file = memory.file().map(|file| file.display().to_string());
    if json {
        let peers: Vec<_> = peers
            .iter()
            .map(|(name, peer)| {
                json!({
                    "peer": name,
                    "first": peer.first.to_string(),
                    "last": peer.last.to_string(),
                    "address": peer.address,
                })
            })
            .collect();
        return print_json(&json!({ "peers": peers, "file": file }));
    }
    let mut out = Stdout::new();
    if peers.is_empty() {
        let file = file.context("expected STATE_DIRECTORY, XDG_STATE_HOME or HOME in the environment")?;
        writeln!(out, "no peer was reached sealed ({file})")?;
    } else {
        let head = ["peer", "first sealed", "last sealed", "address"].map(str::to_owned);
        let rows = peers.into_iter().map(|(name, peer)| {
            [name, peer.first.to_string(), peer.last.to_string(), peer.address.to_string()]
        });
        let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
        aligned(&rows, &[0, 1, 2, 3]).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    Ok(out.flush()?)
}

fn forget(memory: &SealedPeers, peers: &[String]) -> anyhow::Result<()> {
    for peer in peers {
        if !memory.forget(peer)? {
            bail!("expected a peer that `plait peers` lists, got '{peer}'");
        }
    }
    Ok(())
}
