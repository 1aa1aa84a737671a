//! How a connection was protected and why it ended, in one line of the log.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use plait_config::{format_duration, format_size};
use plait_linux::interfaces::{Interface, interfaces};

use crate::carry_error::CarryError;
use crate::connections::Connection;
use crate::report::ConnectionReport;

/// The summary of a connection that has ended, such as `sealed 2/2 via eth0, wlan0, 3.2 s, 88 B sent, 19.7 MB received; closed by
/// both ends`.
pub(crate) fn summary(connection: &Connection, ended: &Result<(), CarryError>) -> String {
    let report = connection.last_report();
    let locals = connection.local_addresses();
    let paths = paths(&locals, &interfaces().unwrap_or_default());
    let reason = match ended {
        Ok(()) => "closed by both ends".to_owned(),
        Err(error) => error.to_string(),
    };
    line(&report, &paths, &reason)
}

fn line(report: &ConnectionReport, paths: &[String], reason: &str) -> String {
    let to = report.service.as_ref().map(|service| format!(" to {service}")).unwrap_or_default();
    format!(
        "{}{to}: {}, {}, {} sent, {} received; {reason}",
        report.peer,
        report.protection(paths),
        format_duration(Duration::from_secs_f64(report.age_s)),
        format_size(report.sent),
        format_size(report.received)
    )
}

/// The interfaces that have these addresses, or the addresses of those that have gone.
fn paths(locals: &BTreeSet<IpAddr>, interfaces: &[Interface]) -> Vec<String> {
    let mut paths = Vec::new();
    for local in locals {
        let owner = interfaces.iter().find(|interface| interface.has_address(*local));
        let path = owner.map_or_else(|| local.to_string(), |interface| interface.name.clone());
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use plait_proto::option::Mode;

    use super::*;

    #[test]
    fn a_line_has_mode_level_paths_duration_bytes_and_reason() {
        let report = ConnectionReport {
            id: 1,
            application: "127.0.0.1:80".parse().expect("an address"),
            service: Some("127.0.0.1:80".into()),
            peer: "192.0.2.1:40000".parse().expect("an address"),
            mode: Mode::Sealed,
            level: Some("2/2".into()),
            identity: Some("pinned".into()),
            negotiated: true,
            protocol: "mptcp".into(),
            token: None,
            key_updates: None,
            redundancy: None,
            sent: 88,
            received: 19_704_985,
            age_s: 3.25,
            subflows: Vec::new(),
        };
        let paths = ["eth0".to_owned(), "wlan0".to_owned()];
        assert_eq!(
            line(&report, &paths, "closed by both ends"),
            "192.0.2.1:40000 to 127.0.0.1:80: sealed 2/2 via eth0, wlan0, identity pinned, 3.2 s, 88 B sent, 19.7 MB received; \
             closed by both ends"
        );
        let single = ConnectionReport { level: Some("1/1".into()), identity: None, ..report.clone() };
        assert_eq!(single.protection(&paths[..1]), "sealed (single path) via eth0");
        let plain = ConnectionReport { mode: Mode::Off, level: None, protocol: "tcp".into(), ..single };
        assert_eq!(plain.protection(&[]), "off, over TCP");
    }
}
