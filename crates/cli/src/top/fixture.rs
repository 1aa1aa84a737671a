//! Sample connections for the tests of this directory.

use plait_linux::diag::Sample;
use serde_json::json;

use super::list::List;
use crate::snapshot::{ConnectionSnapshot, Snapshot, SubflowSnapshot};

/// A subflow: interface, local and remote address, rate, share.
type SubflowSpec<'a> = (&'a str, &'a str, &'a str, f64, f64);

/// Two connections: a busy one over two paths, the second a backup, and an idle one.
pub(super) fn list() -> List {
    let mut list = List::new(snapshot(0.0));
    for step in 1..=12 {
        list.update(snapshot(f64::from(step) / 12.0));
    }
    list
}

pub(super) fn snapshot(part: f64) -> Snapshot {
    let busy = connection(
        "5f0c21aa",
        &[
            ("eth0", "192.0.2.2:40002", "198.51.100.7:443", 48.2e6 * part, 0.91),
            ("wlan0", "203.0.113.9:51999", "198.51.100.7:443", 4.7e6 * part, 0.09),
        ],
        1_200_000,
    );
    let idle = connection(
        "0a0b0c0d",
        &[("eth0", "[2001:db8::17]:40010", "[2001:db8:ffff::1234:5678]:8443", 0.0, 0.0)],
        0,
    );
    Snapshot { time: 1_795_243_119.0, interval_s: 1.0, connections: vec![idle, busy] }
}

fn connection(token: &str, subflows: &[SubflowSpec], reinjected: u64) -> ConnectionSnapshot {
    let (_, local, remote, ..) = subflows[0];
    let subflow_documents: Vec<serde_json::Value> = subflows
        .iter()
        .enumerate()
        .map(|(index, (interface, local, remote, rate, _))| {
            json!({
                "id": u64::from_str_radix(token, 16).unwrap_or(0) * 10 + index as u64,
                "local": local, "remote": remote, "interface": interface,
                "joined": index > 0, "backup_local": index > 0, "backup_remote": false,
                "local_id": index, "remote_id": 0, "congestion_control": "cubic",
                "state": "established", "rtt_us": 5_970 * (1 + 9 * index), "rtt_variance_us": 300,
                "min_rtt_us": 4_000, "rto_us": 204_000, "cwnd": 32 + index, "ssthresh": null, "mss": 1448,
                "peer_window": 65_536, "unacked": 10, "lost": index, "retransmissions": 3 * index,
                "bytes_retransmitted": 4_344 * index, "bytes_sent": *rate as u64 / 8, "bytes_acked": 1,
                "bytes_received": 0, "bytes_not_sent": 0, "segments_sent": 100, "segments_received": 50,
                "delivery_rate": 6_000_000, "pacing_rate": null, "busy_us": 1, "window_limited_us": 0,
                "buffer_limited_us": 0, "closed": null
            })
        })
        .collect();
    let sample = json!({
        "time": 1_795_243_119.0, "token": token,
        "connection": {
            "local": local, "remote": remote, "state": "established", "uid": 0, "inode": 7, "fallback": false,
            "checksums": false, "bytes_sent": 1, "bytes_acked": 1, "bytes_received": 0,
            "bytes_reinjected": reinjected, "timeouts": 0, "bytes_unacked": 0, "addresses_announced": 0,
            "addresses_accepted": 0
        },
        "subflows": subflow_documents
    });
    let sample: Sample = serde_json::from_value(sample).expect("a sample");
    ConnectionSnapshot {
        token: sample.token,
        connection: sample.connection,
        sent_bps: subflows.iter().map(|(.., rate, _)| rate).sum(),
        received_bps: 0.0,
        interval_reinjected_bytes: 0,
        subflows: sample
            .subflows
            .into_iter()
            .zip(subflows)
            .map(|(subflow, (.., rate, share))| SubflowSnapshot {
                retransmitted_bps: 0.0,
                interval_retransmissions: u64::from(subflow.tcp.retransmissions),
                subflow,
                sent_bps: *rate,
                received_bps: 0.0,
                share: (*rate > 0.0).then_some(*share),
                scheduling: None,
            })
            .collect(),
    }
}
