//! `plait status`: running gateways and their connections.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use plait_gateway::{ConnectionReport, Counts, GatewayStatus, Handshakes, Report, SubflowReport};
use plait_linux::netns::NetNs;
use plait_proto::option::Mode;
use plait_scheduler::{SteeredSubflow, SteeredSubflows};
use serde_json::{Value, json};

use crate::stdout::{Stdout, print_json};

/// Arguments of `plait status`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let status = GatewayStatus::query().context("cannot list running gateways")?;
    let GatewayStatus { reports, unresponsive } = status;
    let steered: Vec<_> = reports.iter().map(|report| steered_subflows(report.pid)).collect();
    if args.json {
        let gateways = reports.iter().zip(&steered).map(|(report, steered)| as_json(report, steered));
        let gateways = gateways.collect::<Result<Vec<_>, _>>()?;
        return print_json(&json!({ "gateways": gateways, "unresponsive": unresponsive }));
    }
    let mut out = Stdout::new();
    if reports.is_empty() && unresponsive.is_empty() {
        writeln!(out, "no gateway of this user is running (start one with plait run, serve or proxy)")?;
    } else {
        reports.iter().zip(&steered).try_for_each(|(report, steered)| print(report, steered, &mut out))?;
        for pid in unresponsive {
            writeln!(out, "plait (process {pid}): does not respond; it may be stopped or very busy")?;
        }
    }
    Ok(out.flush()?)
}

/// The subflows that schedulers steer in a gateway's network namespace; none without root, who alone can see them.
fn steered_subflows(pid: u32) -> Vec<SteeredSubflow> {
    let list = || SteeredSubflows::open().and_then(|steered| steered.list()).unwrap_or_default();
    let namespace = NetNs::at(Path::new(&format!("/proc/{pid}/ns/net")));
    namespace.and_then(|namespace| namespace.run(list)).unwrap_or_default()
}

fn scheduling<'a>(steered: &'a [SteeredSubflow], subflow: &SubflowReport) -> Option<&'a SteeredSubflow> {
    steered.iter().find(|steered| (steered.local, steered.remote) == (subflow.local, subflow.remote))
}

/// The report, with what schedulers decided.
fn as_json(report: &Report, steered: &[SteeredSubflow]) -> serde_json::Result<Value> {
    let mut document = serde_json::to_value(report)?;
    for (number, connection) in report.connections.iter().enumerate() {
        for (index, subflow) in connection.subflows.iter().enumerate() {
            document["connections"][number]["subflows"][index]["scheduling"] =
                serde_json::to_value(scheduling(steered, subflow))?;
        }
    }
    Ok(document)
}

fn print(gateway: &Report, steered: &[SteeredSubflow], out: &mut impl Write) -> io::Result<()> {
    let Report { pid, command, mode, counts, .. } = gateway;
    let protection = match (mode, gateway.require, &gateway.required_paths) {
        (Mode::Off, ..) => "mode off".to_owned(),
        (mode, true, Some(paths)) => format!("{mode} required ({paths})"),
        (mode, true, None) => format!("{mode} required"),
        (mode, false, _) => format!("{mode} preferred"),
    };
    let listen: Vec<String> = gateway.listen.iter().map(ToString::to_string).collect();
    writeln!(out, "plait {command} (process {pid}): {protection}, listening on {}", listen.join(", "))?;
    let rejected = match counts.rejected_identity {
        0 => String::new(),
        rejected => format!(" ({rejected} with a rejected identity)"),
    };
    let invalid = match counts.invalid_records {
        0 => String::new(),
        invalid => format!(" ({invalid} reset for invalid records)"),
    };
    let Counts { protected, plain, refused, key_updates, .. } = counts;
    let updates = key_updates_text(*key_updates);
    writeln!(out, "  {protected} protected{invalid}{updates}, {plain} plain, {refused} refused{rejected}")?;
    let failures = gateway.handshake_failures.iter().filter(|(_, count)| **count > 0);
    let failures: Vec<String> = failures.map(|(reason, count)| format!("{count} {reason}")).collect();
    if !failures.is_empty() {
        writeln!(out, "  failed handshakes: {}", failures.join(", "))?;
    }
    let Handshakes { waiting, dropped, refused, .. } = gateway.handshakes;
    if waiting + dropped + refused > 0 {
        writeln!(out, "  handshakes: {waiting} half open, {dropped} dropped, {refused} connections refused")?;
    }
    gateway.connections.iter().try_for_each(|connection| print_connection(connection, steered, out))
}

fn key_updates_text(key_updates: u64) -> String {
    match key_updates {
        0 => String::new(),
        1 => ", 1 key update".to_owned(),
        updates => format!(", {updates} key updates"),
    }
}

fn print_connection(
    connection: &ConnectionReport,
    steered: &[SteeredSubflow],
    out: &mut impl Write,
) -> io::Result<()> {
    let ConnectionReport { id, application, peer, mode, level, protocol, sent, received, age_s, .. } =
        connection;
    let level = match level.as_deref() {
        None => String::new(),
        // Nothing witnesses it, so it does not look as if all paths took part.
        Some("1/1") => " (single path)".to_owned(),
        Some(level) => format!(":{level}"),
    };
    let identity =
        connection.identity.as_ref().map(|identity| format!(" identity {identity}")).unwrap_or_default();
    let updates = key_updates_text(connection.key_updates.unwrap_or(0));
    writeln!(
        out,
        "  #{id} {application} <-> {peer}  {mode}{level}{identity} over {protocol}, {age_s:.0} s, {sent} B sent, {received} B received{updates}"
    )?;
    for subflow in &connection.subflows {
        writeln!(
            out,
            "     {} -> {}  rtt {:.1} ms, {} B acknowledged, {} B received{}",
            subflow.local,
            subflow.remote,
            f64::from(subflow.rtt_us) / 1000.0,
            subflow.acked,
            subflow.received,
            scheduling(steered, subflow).map(|steered| format!(", {}", steered.text())).unwrap_or_default()
        )?;
    }
    Ok(())
}
