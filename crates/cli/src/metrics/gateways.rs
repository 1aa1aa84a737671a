//! Counts of gateways, accumulated over gateways that start and stop.

use std::collections::BTreeMap;

use plait_gateway::{Counts, DatagramPathReport, FailureReason, Report};

/// The last counts of each running gateway, by process id.
#[derive(Debug, Default)]
pub(super) struct Gateways {
    last: BTreeMap<u32, LastCounts>,
}

/// The counts of a report.
#[derive(Debug, Default)]
struct LastCounts {
    counts: Counts,
    failures: BTreeMap<FailureReason, u64>,
    datagrams: BTreeMap<String, DatagramPathReport>,
}

/// What gateways counted since their previous reports.
#[derive(Debug, Default)]
pub(super) struct NewCounts {
    pub(super) connections: Vec<NewConnections>,
    pub(super) failures: BTreeMap<FailureReason, u64>,
    pub(super) invalid_records: u64,
    pub(super) key_updates: u64,
    /// Datagrams by path.
    pub(super) datagrams: BTreeMap<String, DatagramPathReport>,
}

/// The connections of a gateway since its previous report, for one outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewConnections {
    pub(super) command: String,
    pub(super) outcome: &'static str,
    pub(super) connections: u64,
}

impl Gateways {
    /// Compares with the previous reports. A gateway without one counts from zero.
    pub(super) fn since_last(&mut self, reports: &[Report]) -> NewCounts {
        let mut grown = NewCounts::default();
        let before = std::mem::take(&mut self.last);
        for report in reports {
            let now = &report.counts;
            // Counts that decreased belong to another process with a reused id.
            let before = before.get(&report.pid).filter(|before| {
                let before = &before.counts;
                before.protected <= now.protected
                    && before.plain <= now.plain
                    && before.refused <= now.refused
            });
            let none = LastCounts::default();
            let LastCounts { counts: before, failures, datagrams } = before.unwrap_or(&none);
            for (outcome, connections) in [
                ("protected", now.protected - before.protected),
                ("plain", now.plain - before.plain),
                ("refused", now.refused - before.refused),
            ] {
                grown.connections.push(NewConnections {
                    command: report.command.clone(),
                    outcome,
                    connections,
                });
            }
            grown.invalid_records += now.invalid_records.saturating_sub(before.invalid_records);
            grown.key_updates += now.key_updates.saturating_sub(before.key_updates);
            for (reason, count) in &report.handshake_failures {
                let before = failures.get(reason).copied().unwrap_or(0);
                *grown.failures.entry(*reason).or_default() += count.saturating_sub(before);
            }
            for (path, now) in &report.datagrams.paths {
                let before = datagrams.get(path).cloned().unwrap_or_default();
                let grown = grown.datagrams.entry(path.clone()).or_default();
                grown.sent += now.sent.saturating_sub(before.sent);
                grown.sent_bytes += now.sent_bytes.saturating_sub(before.sent_bytes);
                grown.received += now.received.saturating_sub(before.received);
                grown.received_bytes += now.received_bytes.saturating_sub(before.received_bytes);
                grown.lost += now.lost.saturating_sub(before.lost);
            }
            let failures = report.handshake_failures.clone();
            let datagrams = report.datagrams.paths.clone();
            self.last.insert(report.pid, LastCounts { counts: now.clone(), failures, datagrams });
        }
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plait_gateway::{DatagramReport, Handshakes};
    use plait_proto::option::Mode;

    fn report(pid: u32, protected: u64) -> Report {
        Report {
            pid,
            command: "serve".into(),
            listen: Vec::new(),
            mode: Mode::Xor64,
            require: true,
            required_paths: None,
            counts: Counts { protected, refused: 1, key_updates: protected, ..Counts::default() },
            handshake_failures: [(FailureReason::Timeout, protected)].into(),
            handshakes: Handshakes::default(),
            datagrams: DatagramReport::default(),
            connections: Vec::new(),
        }
    }

    #[test]
    fn reused_process_id_counts_from_zero() {
        let mut gateways = Gateways::default();
        let mut protected = |reports: &[Report]| -> u64 {
            let new = gateways.since_last(reports);
            let failures: u64 = new.failures.values().sum();
            let protected = new
                .connections
                .iter()
                .filter(|new| new.outcome == "protected")
                .map(|new| new.connections)
                .sum();
            assert_eq!((failures, new.key_updates), (protected, protected), "they count alike");
            protected
        };
        assert_eq!(protected(&[report(1, 5), report(2, 1)]), 6);
        assert_eq!(protected(&[report(1, 7), report(2, 1)]), 2);
        assert_eq!(protected(&[report(1, 3)]), 3);
        assert_eq!(protected(&[]), 0);
    }
}
