//! `plait lab ps`: lists the labs that are up.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::Value;

use super::control::Running;
use super::description::{Description, End, LinkDescription};
use crate::stdout::{print_json_list, print_text};

/// List labs: hosts, links with their counters, services
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Labs that end in the meantime are omitted.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let labs: Vec<_> = Running::all()?.iter().filter_map(|lab| lab.describe().ok()).collect();
    if args.json {
        print_json_list(&labs)?;
    } else if labs.is_empty() {
        print_text("no lab is up\n")?;
    } else {
        print_text(&labs.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn text(lab: &Description) -> String {
    let mut text = format!("lab {}: {}, up for {:.1} s\n", lab.id, lab.file, lab.up_s);
    let hosts: Vec<_> = lab.hosts.iter().map(|host| host.name.as_str()).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  hosts     {}", hosts.join(", "));
    for link in &lab.links {
        let _ = writeln!(text, "  link      {} ({}, {})", link.name, link.backend, link.role);
        for (side, end, out) in [("a", &link.a, "a_to_b"), ("b", &link.b, "b_to_a")] {
            let _ = writeln!(text, "    {side}       {}; {}", place(end), traffic(link, out));
        }
        if let Some(late) = link.statistics.pointer("/lateness/p99_ms").and_then(Value::as_f64) {
            let _ = writeln!(text, "            lateness p99 {late:.3} ms");
        }
    }
    for service in &lab.services {
        let state = if service.running { "running" } else { "NOT RUNNING" };
        let port = service.port.map(|port| format!(", port {port}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "  service   {} on {}: {state} (pid {}{port}), writes to {}",
            service.name, service.host, service.pid, service.directory
        );
    }
    for event in &lab.events {
        let outcome = event.error.as_ref().map(|error| format!(": FAILED: {error}")).unwrap_or_default();
        let _ = writeln!(text, "  event     {:.3} s {} {}{outcome}", event.began_s, event.link, event.action);
    }
    text
}

fn place(end: &End) -> String {
    format!("{} {}: {}", end.host, end.interface, end.addresses.join(", "))
}

/// The traffic sent by an end, and its losses.
fn traffic(link: &LinkDescription, direction: &str) -> String {
    let count = |name: &str| link.statistics.get(direction).and_then(|counters| counters.get(name)?.as_u64());
    let Some((frames, bytes)) = count("frames_in").zip(count("bytes_in")) else {
        return "no statistics".into();
    };
    let causes = [
        ("lost", "lost"),
        ("early", "early"),
        ("queue_full", "queue full"),
        ("no_path", "no path"),
        ("refused", "refused"),
        ("overruns", "overruns"),
    ];
    let dropped = causes.iter().filter_map(|(name, cause)| {
        count(name).filter(|count| *count > 0).map(|count| format!(", {count} dropped: {cause}"))
    });
    format!("sent {frames} frames, {bytes} B{}", dropped.collect::<String>())
}
