//! What gateways count, kept growing although gateways come and go.

use std::collections::BTreeMap;

use plait_gateway::{Counts, Report};

/// The counts of gateways that were seen, by their process.
#[derive(Debug, Default)]
pub(super) struct Gateways {
    seen: BTreeMap<u32, Counts>,
}

/// What a gateway's connections came to since it was last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct New {
    pub(super) command: String,
    pub(super) outcome: &'static str,
    pub(super) connections: u64,
}

impl Gateways {
    /// Compares with the reports before. A gateway that was not there before counts from zero: all that it carried
    /// was carried while somebody watched, or is worth knowing at the start.
    pub(super) fn since_last(&mut self, reports: &[Report]) -> Vec<New> {
        let mut grown = Vec::new();
        let before = std::mem::take(&mut self.seen);
        for report in reports {
            let now = &report.counts;
            // Counts that fell are those of another process with the same number.
            let before = before.get(&report.pid).filter(|before| {
                before.protected <= now.protected
                    && before.plain <= now.plain
                    && before.refused <= now.refused
            });
            let none = Counts::default();
            let before = before.unwrap_or(&none);
            for (outcome, connections) in [
                ("protected", now.protected - before.protected),
                ("plain", now.plain - before.plain),
                ("refused", now.refused - before.refused),
            ] {
                grown.push(New { command: report.command.clone(), outcome, connections });
            }
            self.seen.insert(report.pid, now.clone());
        }
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plait_gateway::Handshakes;
    use plait_proto::option::Mode;

    fn report(pid: u32, protected: u64) -> Report {
        Report {
            pid,
            command: "serve".into(),
            listen: Vec::new(),
            mode: Mode::Xor64,
            require: true,
            counts: Counts { protected, refused: 1, ..Counts::default() },
            handshakes: Handshakes::default(),
            connections: Vec::new(),
        }
    }

    #[test]
    fn a_process_number_used_again_counts_from_zero() {
        let mut gateways = Gateways::default();
        let mut protected = |reports: &[Report]| -> u64 {
            let new = gateways.since_last(reports);
            new.iter().filter(|new| new.outcome == "protected").map(|new| new.connections).sum()
        };
        assert_eq!(protected(&[report(1, 5), report(2, 1)]), 6);
        assert_eq!(protected(&[report(1, 7), report(2, 1)]), 2);
        assert_eq!(protected(&[report(1, 3)]), 3);
        assert_eq!(protected(&[]), 0);
    }
}
