//! `plait trace`: captures into other captures.

use std::path::PathBuf;

use clap::Subcommand;
use plait_config::{AtomicFile, grouped, pluralize};
use plait_trace::{Direction, Reassembled, StreamGaps, reassemble};

use crate::analyze::{progress_bar, warn_if_damaged};
use crate::stdout::print_text;

/// Subcommands of `plait trace`.
#[derive(Subcommand)]
pub(crate) enum Args {
    /// Write each connection as one TCP stream, for tools that know no MPTCP
    Reassemble(ReassembleArgs),
}

/// Arguments of `plait trace reassemble`.
#[derive(clap::Args)]
pub(crate) struct ReassembleArgs {
    /// Captures of one measurement, or directories of captures; - reads stdin
    #[arg(required = true, value_name = "CAPTURE|DIR")]
    captures: Vec<PathBuf>,
    /// The pcap file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Maximum number of streams with gaps that are listed.
const MAX_GAPS: usize = 20;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args::Reassemble(ReassembleArgs { captures, output }) = args;
    let progress = progress_bar(&plait_trace::input_files(&captures)?);
    let file = AtomicFile::create(output)?;
    let done = reassemble(&captures, file, &|bytes| {
        progress.inc(bytes);
        Ok(())
    });
    progress.finish_and_clear();
    let (found, totals, file) = done?;
    file.publish()?;
    warn_if_damaged(&totals);
    print_text(&describe(&found))
}

fn describe(found: &Reassembled) -> String {
    let streams = pluralize(found.connections as usize, "stream");
    let mut text =
        format!("{streams} with {} bytes; {} of MPTCP connections\n", grouped(found.bytes), found.mptcp);
    if found.partial > 0 {
        text += &format!("{} began before the capture and start where it does\n", found.partial);
    }
    if found.missing > 0 {
        text += &format!("{} bytes were not captured and are missing:\n", grouped(found.missing));
    }
    for StreamGaps { connection, direction, count, bytes } in found.gaps.iter().take(MAX_GAPS) {
        let sender = match direction {
            Direction::ClientToServer => "client",
            Direction::ServerToClient => "server",
        };
        let gaps = pluralize(*count as usize, "gap");
        text +=
            &format!("  connection {connection}, sent by the {sender}: {gaps}, {} bytes\n", grouped(*bytes));
    }
    match found.gaps.len().saturating_sub(MAX_GAPS) {
        0 => text,
        more => text + &format!("  and {more} more\n"),
    }
}
