//! What a gateway carries per second: the growth between two of its reports.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use plait_config::format_size;
use plait_gateway::Report;

use crate::stdout::aligned;

/// Bytes per second to the peers and from them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    up: f64,
    down: f64,
}

impl Rate {
    fn add(&mut self, up: u64, down: u64, elapsed: Duration) {
        self.up += up as f64 / elapsed.as_secs_f64();
        self.down += down as f64 / elapsed.as_secs_f64();
    }

    fn row(self, name: &str) -> [String; 3] {
        // Never negative; a rate beyond 64 bits is none.
        let text = |rate: f64| format!("{}/s", format_size(rate as u64));
        [name.to_owned(), text(self.up), text(self.down)]
    }
}

/// The rates of the paths, which `path` names by their local address, and of the applications' bytes in total, in lines of a table. None
/// without connections.
pub(super) fn lines(
    before: &Report,
    now: &Report,
    elapsed: Duration,
    path: impl Fn(IpAddr) -> String,
) -> Vec<String> {
    if now.connections.is_empty() || elapsed.is_zero() {
        return Vec::new();
    }
    let earlier: HashMap<_, _> =
        before.connections.iter().map(|connection| ((connection.id, connection.peer), connection)).collect();
    let mut paths: BTreeMap<String, Rate> = BTreeMap::new();
    let mut total = Rate::default();
    for connection in &now.connections {
        let earlier = earlier.get(&(connection.id, connection.peer));
        let (sent, received) = earlier.map_or((0, 0), |earlier| (earlier.sent, earlier.received));
        total.add(
            connection.sent.saturating_sub(sent),
            connection.received.saturating_sub(received),
            elapsed,
        );
        for subflow in &connection.subflows {
            let ends = (subflow.local, subflow.remote);
            let earlier = earlier.and_then(|earlier| {
                earlier.subflows.iter().find(|earlier| (earlier.local, earlier.remote) == ends)
            });
            let (acked, received) = earlier.map_or((0, 0), |earlier| (earlier.acked, earlier.received));
            let rate = paths.entry(path(subflow.local.ip())).or_default();
            rate.add(subflow.acked.saturating_sub(acked), subflow.received.saturating_sub(received), elapsed);
        }
    }
    let mut rows = vec![["PATH", "UP", "DOWN"].map(ToOwned::to_owned)];
    rows.extend(paths.iter().map(|(path, rate)| rate.row(path)));
    rows.push(total.row("total"));
    aligned(&rows, &[0]).into_iter().map(|line| format!("  {line}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn report(connections: &[Value]) -> Report {
        serde_json::from_value(json!({
            "pid": 1, "command": "run", "listen": [], "mode": "sealed", "require": true, "required_paths": null,
            "counts": {"protected": 1, "invalid_records": 0, "key_updates": 1, "plain": 0, "refused": 0,
                       "rejected_identity": 0},
            "handshake_failures": {},
            "handshakes": {"waiting": 0, "complete": 0, "dropped": 0, "displaced": 0, "refused": 0},
            "connections": connections
        }))
        .expect("a report")
    }

    fn connection(id: u64, sent: u64, received: u64, subflows: &[(&str, u64, u64)]) -> Value {
        let subflow = |(local, acked, received): &(&str, u64, u64)| json!({"local": local, "remote": "10.77.1.2:8443", "acked": acked, "received": received, "rtt_us": 1800});
        json!({
            "id": id, "application": "127.0.0.1:35898", "peer": "10.77.1.2:8443", "mode": "sealed", "level": "2/2",
            "identity": "pinned", "negotiated": true, "protocol": "mptcp", "token": "5f0c21aa", "key_updates": 1,
            "sent": sent, "received": received, "age_s": 185.0,
            "subflows": subflows.iter().map(subflow).collect::<Vec<_>>()
        })
    }

    fn words(lines: &[String]) -> Vec<Vec<&str>> {
        lines.iter().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn rates_are_those_of_paths_and_of_all() {
        let before = report(&[
            connection(1, 1000, 5000, &[("10.77.1.1:1", 1100, 3000), ("10.77.2.1:1", 0, 2000)]),
            connection(2, 7, 7, &[("10.77.1.1:2", 7, 7)]),
        ]);
        let now = report(&[
            connection(1, 3000, 2_005_000, &[("10.77.1.1:1", 3100, 1_203_000), ("10.77.2.1:1", 0, 802_000)]),
            // One that began in between.
            connection(3, 2000, 0, &[("10.77.1.1:3", 2000, 0)]),
        ]);
        let path = |local: IpAddr| if local.to_string() == "10.77.1.1" { "eth0" } else { "wlan0" }.to_owned();
        let shown = lines(&before, &now, Duration::from_millis(500), path);
        let expected = [
            vec!["PATH", "UP", "DOWN"],
            vec!["eth0", "8.00", "kB/s", "2.40", "MB/s"],
            vec!["wlan0", "0", "B/s", "1.60", "MB/s"],
            vec!["total", "8.00", "kB/s", "4.00", "MB/s"],
        ];
        assert_eq!(words(&shown), expected, "{shown:?}");
    }

    #[test]
    fn gateway_without_connections_has_no_rates() {
        let idle = report(&[]);
        assert!(lines(&idle, &idle, Duration::from_secs(1), |local| local.to_string()).is_empty());
    }
}
