//! `plait status`: running gateways and their connections.

mod rates;

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_config::{format_duration, format_size};
use plait_gateway::{
    ConnectionReport, Counts, DatagramPathReport, DatagramReport, GatewayStatus, Handshakes,
    RedundancyReport, Report, SubflowReport,
};
use plait_linux::diag::Sockets;
use plait_linux::interfaces::{Interface, interfaces};
use plait_linux::netns::NetNs;
use plait_proto::option::Mode;
use plait_scheduler::{SteeredSubflow, SteeredSubflows};
use serde_json::{Value, json};

use crate::programs::{Programs, application_inode};
use crate::stdout::{Stdout, aligned, print_json};

/// The time that rates are measured in: long enough for some round trips.
const RATE_INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `plait status`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut status = GatewayStatus::query().context("cannot list running gateways")?;
    let (mut before, begin) = (Vec::new(), Instant::now());
    if !args.json && status.reports.iter().any(|report| !report.connections.is_empty()) {
        thread::sleep(RATE_INTERVAL);
        before = status.reports;
        status = GatewayStatus::query().context("cannot list running gateways")?;
    }
    let elapsed = begin.elapsed();
    let GatewayStatus { reports, unresponsive } = status;
    if args.json {
        let gateways = reports.iter().map(|report| {
            let steered = in_namespace(report.pid, steered_subflows).unwrap_or_default();
            as_json(report, &steered)
        });
        let gateways = gateways.collect::<Result<Vec<_>, _>>()?;
        return print_json(&json!({ "gateways": gateways, "unresponsive": unresponsive }));
    }
    let mut out = Stdout::new();
    if reports.is_empty() && unresponsive.is_empty() {
        writeln!(out, "no gateway of this user is running (start one with plait run, serve or proxy)")?;
    } else {
        let mut programs = Programs::default();
        for report in &reports {
            let around = Surroundings::of(report, &mut programs);
            print(report, &around, &mut out)?;
            let earlier = before.iter().find(|earlier| earlier.pid == report.pid);
            let rates =
                earlier.map(|earlier| rates::lines(earlier, report, elapsed, |local| around.path(local)));
            rates.iter().flatten().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        for pid in unresponsive {
            writeln!(out, "plait (process {pid}): does not respond; it may be stopped or very busy")?;
        }
    }
    Ok(out.flush()?)
}

/// The result of `query` in a gateway's network namespace; `None` for an ordinary user, who cannot enter another one.
fn in_namespace<T: Send>(pid: u32, query: impl FnOnce() -> T + Send) -> Option<T> {
    let namespace = NetNs::at(Path::new(&format!("/proc/{pid}/ns/net")));
    namespace.and_then(|namespace| namespace.run(query)).ok()
}

/// The subflows that schedulers steer in this network namespace; none without root, who alone can see them.
fn steered_subflows() -> Vec<SteeredSubflow> {
    SteeredSubflows::open().and_then(|steered| steered.list()).unwrap_or_default()
}

/// What the host of a gateway tells of its connections.
#[derive(Default)]
struct Surroundings {
    interfaces: Vec<Interface>,
    steered: Vec<SteeredSubflow>,
    /// The names of programs by the id of their connection.
    programs: HashMap<u64, String>,
}

impl Surroundings {
    fn of(report: &Report, programs: &mut Programs) -> Surroundings {
        let query = || (interfaces().unwrap_or_default(), steered_subflows(), application_inodes(report));
        let (interfaces, steered, inodes) = in_namespace(report.pid, query).unwrap_or_default();
        let named = inodes.into_iter().filter_map(|(id, inode)| Some((id, programs.name(inode)?)));
        Surroundings { interfaces, steered, programs: named.collect() }
    }

    /// The interface that has this address, or the address.
    fn path(&self, local: IpAddr) -> String {
        let owner = self.interfaces.iter().find(|interface| interface.has_address(local));
        owner.map_or_else(|| local.to_string(), |interface| interface.name.clone())
    }

    /// The paths of a connection, in the order of its subflows.
    fn paths(&self, connection: &ConnectionReport) -> Vec<String> {
        let mut paths: Vec<String> = Vec::new();
        for subflow in &connection.subflows {
            let path = self.path(subflow.local.ip());
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }
}

/// The inodes of the applications' sockets, by the ids of their connections. Those of services are not known.
fn application_inodes(report: &Report) -> Vec<(u64, u32)> {
    let Some(mut sockets) = Sockets::open().ok().filter(|_| report.command != "serve") else {
        return Vec::new();
    };
    let connections = report.connections.iter();
    let inode = |connection: &ConnectionReport| {
        let inode = application_inode(&mut sockets, connection.application, &report.listen)?;
        Some((connection.id, inode))
    };
    connections.filter_map(inode).collect()
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

fn print(gateway: &Report, around: &Surroundings, out: &mut impl Write) -> io::Result<()> {
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
    if let Some(datagrams) = datagrams_text(&gateway.datagrams) {
        writeln!(out, "  {datagrams}")?;
    }
    table(gateway, around).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The datagrams of a gateway that has had any, by path.
fn datagrams_text(datagrams: &DatagramReport) -> Option<String> {
    let DatagramReport { associations, paths } = datagrams;
    if *associations == 0 && paths.is_empty() {
        return None;
    }
    let s = if *associations == 1 { "" } else { "s" };
    let mut text = format!("datagrams: {associations} association{s}");
    for (name, path) in paths {
        let DatagramPathReport { sent, received, lost, .. } = path;
        let [out, back] = [path.sent_bytes, path.received_bytes].map(format_size);
        text += &format!("; {name}: {sent} sent ({out}), {received} received ({back}), {lost} lost");
    }
    Some(text)
}

fn key_updates_text(key_updates: u64) -> String {
    match key_updates {
        0 => String::new(),
        1 => ", 1 key update".to_owned(),
        updates => format!(", {updates} key updates"),
    }
}

/// The copies of a connection's records, which are of writes up to a number of bytes or of all.
fn redundancy_text(copies: &RedundancyReport) -> String {
    let RedundancyReport { copied, side_connections, sent, dropped, first, late, invalid } = copies;
    let invalid = if *invalid == 0 { String::new() } else { format!(", {invalid} invalid") };
    let s = if *side_connections == 1 { "" } else { "s" };
    format!(
        "redundant {copied}: {side_connections} side connection{s}, {sent} copies sent, {dropped} dropped, {first} received first, {late} late{invalid}"
    )
}

/// Number and program or interface, address, age or round-trip time, bytes sent, bytes received.
type Row = [String; 5];

/// The connections and their subflows in columns, with the protection of each connection below it. With the longest names and
/// addresses, rows have 100 characters.
fn table(gateway: &Report, around: &Surroundings) -> Vec<String> {
    if gateway.connections.is_empty() {
        return Vec::new();
    }
    let mut rows = vec![["", "PEER", "AGE/RTT", "SENT", "RECEIVED"].map(ToOwned::to_owned)];
    // By the row that each follows.
    let mut notes: HashMap<usize, String> = HashMap::new();
    for connection in &gateway.connections {
        rows.push(connection_row(connection, around));
        let mut note = format!("    {}", protection(connection, around));
        if let Some(copies) = &connection.redundancy {
            note += &format!("\n    {}", redundancy_text(copies));
        }
        notes.insert(rows.len() - 1, note);
        for subflow in &connection.subflows {
            rows.push(subflow_row(connection.peer, subflow, around));
            if let Some(steered) = scheduling(&around.steered, subflow) {
                notes.insert(rows.len() - 1, format!("      scheduler: {}", steered.text()));
            }
        }
    }
    let mut lines = Vec::new();
    for (row, line) in aligned(&rows, &[0, 1]).into_iter().enumerate() {
        lines.push(format!("  {line}"));
        lines.extend(notes.remove(&row));
    }
    lines
}

fn connection_row(connection: &ConnectionReport, around: &Surroundings) -> Row {
    let ConnectionReport { id, peer, sent, received, age_s, .. } = connection;
    let program = around.programs.get(id).map(|name| format!(" {name}")).unwrap_or_default();
    let age = Duration::try_from_secs_f64(*age_s).unwrap_or_default();
    let [sent, received] = [sent, received].map(|bytes| format_size(*bytes));
    [format!("#{id}{program}"), peer.to_string(), format_duration(age), sent, received]
}

/// The peer's address is that of the connection unless it says otherwise.
fn subflow_row(peer: SocketAddr, subflow: &SubflowReport, around: &Surroundings) -> Row {
    let remote = if subflow.remote == peer { String::new() } else { subflow.remote.to_string() };
    let rtt = format!("{:.1} ms", f64::from(subflow.rtt_us) / 1000.0);
    let [sent, received] = [subflow.acked, subflow.received].map(format_size);
    [format!("   {}", around.path(subflow.local.ip())), remote, rtt, sent, received]
}

fn protection(connection: &ConnectionReport, around: &Surroundings) -> String {
    let service = connection.service.as_ref().map(|service| format!(", to {service}")).unwrap_or_default();
    let updates = key_updates_text(connection.key_updates.unwrap_or(0));
    crate::escape::escape_line(&format!(
        "{}{service}{updates}",
        connection.protection(&around.paths(connection))
    ))
    .into_owned()
}

#[cfg(test)]
mod tests {
    use plait_linux::interfaces::{Address, Scope};

    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let ip = address.parse().expect("an address");
        Interface {
            index: 1,
            name: name.into(),
            up: true,
            running: true,
            loopback: false,
            ethernet: true,
            software: true,
            bridge: false,
            port: false,
            mtu: 1500,
            addresses: vec![Address { ip, prefix: 24, scope: Scope::Global, usable: true }],
        }
    }

    fn report(peer: &str, subflows: &[(&str, &str)]) -> Report {
        let subflow = |(local, remote): &(&str, &str)| json!({"local": local, "remote": remote, "acked": 194, "received": 27_790_962, "rtt_us": 1800});
        let connection = json!({
            "id": 12, "application": "127.0.0.1:35898", "peer": peer, "mode": "sealed", "level": "2/2",
            "identity": "pinned", "negotiated": true, "protocol": "mptcp", "token": "5f0c21aa", "key_updates": 1,
            "sent": 88, "received": 19_704_985, "age_s": 185.0,
            "subflows": subflows.iter().map(subflow).collect::<Vec<_>>()
        });
        serde_json::from_value(json!({
            "pid": 1, "command": "run", "listen": [], "mode": "sealed", "require": true, "required_paths": null,
            "counts": {"protected": 1, "invalid_records": 0, "key_updates": 1, "plain": 0, "refused": 0,
                       "rejected_identity": 0},
            "handshake_failures": {},
            "handshakes": {"waiting": 0, "complete": 0, "dropped": 0, "displaced": 0, "refused": 0},
            "connections": [connection]
        }))
        .expect("a report")
    }

    #[test]
    fn connections_are_shown_in_columns_with_units_programs_and_paths() {
        let report = report(
            "10.77.1.2:8443",
            &[("10.77.1.1:37384", "10.77.1.2:8443"), ("10.77.2.1:50721", "10.77.2.2:8443")],
        );
        let around = Surroundings {
            interfaces: vec![interface("eth0", "10.77.1.1"), interface("wlan0", "10.77.2.1")],
            programs: HashMap::from([(12, "curl".to_owned())]),
            ..Surroundings::default()
        };
        let expected = "
            PEER            AGE/RTT     SENT  RECEIVED
  #12 curl  10.77.1.2:8443    3m 5s     88 B   19.7 MB
    sealed 2/2 via eth0, wlan0, identity pinned, 1 key update
     eth0                    1.8 ms    194 B   27.8 MB
     wlan0  10.77.2.2:8443   1.8 ms    194 B   27.8 MB";
        let shown: String = table(&report, &around).iter().map(|line| format!("\n{line}")).collect();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&shown), words(expected), "{shown}");
        let ends = |line: &str| line.len();
        let lines: Vec<_> = shown.lines().filter(|line| line.ends_with('B')).map(ends).collect();
        assert!(lines.len() == 3 && lines.iter().all(|end| *end == lines[0]), "{shown}");
    }

    #[test]
    fn datagrams_are_shown_by_path_if_there_are_any() {
        let mut datagrams = DatagramReport::default();
        assert_eq!(datagrams_text(&datagrams), None);
        datagrams.associations = 1;
        let path =
            DatagramPathReport { sent: 3, sent_bytes: 300, received: 2, received_bytes: 2000, lost: 1 };
        datagrams.paths.insert("eth0".to_owned(), path);
        let text = datagrams_text(&datagrams).expect("there are some");
        assert_eq!(text, "datagrams: 1 association; eth0: 3 sent (300 B), 2 received (2.00 kB), 1 lost");
    }

    #[test]
    fn rows_fit_100_characters() {
        let address = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535";
        let report = report(address, &[(address, "[2001:db8:1111:2222:3333:4444:5555:7777]:65535")]);
        let around = Surroundings {
            interfaces: vec![interface("enx0123456789ab", "2001:db8:1111:2222:3333:4444:5555:6666")],
            programs: HashMap::from([(12, "fifteen-letters".to_owned())]),
            ..Surroundings::default()
        };
        for line in table(&report, &around) {
            assert!(line.len() <= 100, "{line}");
        }
    }

    #[test]
    fn a_subflow_whose_interface_has_gone_is_shown_by_its_address() {
        let report = report("10.77.1.2:8443", &[("10.77.3.1:1", "10.77.1.2:8443")]);
        let shown = table(&report, &Surroundings::default()).join("\n");
        assert!(shown.contains("sealed 2/2 via 10.77.3.1, identity pinned"), "{shown}");
    }
}
