//! The increase of counters between samples.

use std::collections::{BTreeMap, HashMap};

use super::{Sample, Subflow};
use crate::mptcp::Token;

/// Compares each sample with the previous one.
#[derive(Debug, Default)]
pub struct Growth {
    started: bool,
    subflows: HashMap<u64, Carried>,
    reinjected: BTreeMap<Token, u64>,
}

/// Bytes and segments that a subflow carried, in total or since the previous sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Payload bytes sent, retransmissions included; before kernel 4.19, acknowledged bytes.
    pub bytes_sent: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Segments retransmitted.
    pub retransmissions: u64,
}

/// The growth since the previous sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// By [`Subflow::id`].
    pub subflows: HashMap<u64, Carried>,
    /// Bytes reinjected, by connection; only for open connections.
    pub reinjected: HashMap<Token, u64>,
}

impl Growth {
    /// The growth since the last call; `None` at the first call. Subflows that did not exist at the last call count from
    /// zero.
    pub fn since_last(&mut self, samples: &[Sample]) -> Option<Grown> {
        let mut grown = Grown::default();
        for subflow in samples.iter().flat_map(|sample| &sample.subflows) {
            let now = Carried::by(subflow);
            let before = match subflow.closed {
                None => self.subflows.insert(subflow.id, now),
                Some(_) => self.subflows.remove(&subflow.id),
            };
            grown.subflows.insert(subflow.id, now.since(before.unwrap_or_default()));
        }
        let mut reinjected = BTreeMap::new();
        for sample in samples {
            let bytes = sample.connection.as_ref().and_then(|connection| connection.bytes_reinjected);
            let Some(bytes) = bytes else { continue };
            let before = self.reinjected.get(&sample.token).copied().unwrap_or(0);
            reinjected.insert(sample.token, bytes);
            grown.reinjected.insert(sample.token, bytes.saturating_sub(before));
        }
        self.reinjected = reinjected;
        let first = !std::mem::replace(&mut self.started, true);
        (!first).then_some(grown)
    }
}

impl Carried {
    /// The totals of a subflow.
    pub fn by(subflow: &Subflow) -> Carried {
        let tcp = &subflow.tcp;
        Carried {
            bytes_sent: tcp.bytes_sent.unwrap_or(tcp.bytes_acked),
            bytes_received: tcp.bytes_received,
            bytes_retransmitted: tcp.bytes_retransmitted.unwrap_or(0),
            retransmissions: tcp.retransmissions.into(),
        }
    }

    fn since(self, before: Carried) -> Carried {
        Carried {
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
            bytes_retransmitted: self.bytes_retransmitted.saturating_sub(before.bytes_retransmitted),
            retransmissions: self.retransmissions.saturating_sub(before.retransmissions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A connection that reinjected and a subflow that sent the given numbers of bytes.
    fn sample(sent: u64, reinjected: u64, closed: Option<&str>) -> Vec<Sample> {
        let sample = json!({
            "time": 0.0, "token": "00000001",
            "connection": {
                "local": "10.0.0.1:1", "remote": "10.0.0.2:2", "state": "established", "uid": 0, "inode": 1,
                "fallback": false, "checksums": false, "bytes_sent": null, "bytes_acked": null,
                "bytes_received": null, "bytes_reinjected": reinjected, "timeouts": null, "bytes_unacked": 0,
                "addresses_announced": 0, "addresses_accepted": 0
            },
            "subflows": [{
                "id": 7, "local": "10.0.0.1:1", "remote": "10.0.0.2:2", "interface": null, "joined": null,
                "backup_local": null, "backup_remote": null, "local_id": null, "remote_id": null,
                "congestion_control": null, "state": "established", "rtt_us": 1, "rtt_variance_us": 1,
                "min_rtt_us": null, "rto_us": 1, "cwnd": 1, "ssthresh": null, "mss": 1, "peer_window": null,
                "unacked": 0, "lost": 0, "retransmissions": 0, "bytes_retransmitted": null,
                "bytes_sent": sent, "bytes_acked": 1, "bytes_received": 0, "bytes_not_sent": null,
                "segments_sent": null, "segments_received": null, "delivery_rate": null, "pacing_rate": null,
                "busy_us": null, "window_limited_us": null, "buffer_limited_us": null, "closed": closed
            }]
        });
        vec![serde_json::from_value(sample).expect("sample is taken")]
    }

    #[test]
    fn counts_each_byte_once() {
        let mut growth = Growth::default();
        assert_eq!(growth.since_last(&sample(100, 10, None)), None, "the first sample has no growth");
        let mut grown = |samples: &[Sample]| {
            let grown = growth.since_last(samples).expect("second sample has growth");
            let sent: u64 = grown.subflows.values().map(|carried| carried.bytes_sent).sum();
            (sent, grown.reinjected.values().sum::<u64>())
        };
        assert_eq!(grown(&sample(150, 13, None)), (50, 3));
        // Missing in one sample, then reported as closed.
        assert_eq!(grown(&[]), (0, 0));
        assert_eq!(grown(&sample(170, 13, Some("final"))), (20, 13));
        // A new subflow.
        assert_eq!(grown(&sample(40, 13, None)), (40, 0));
        // Decreasing counters are ignored.
        assert_eq!(grown(&sample(30, 0, None)), (0, 0));
    }
}
