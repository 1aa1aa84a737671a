//! What is shown: samples, with rates and shares since the samples before.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plait_linux::diag::{Carried, Grown, Sample, Subflow};
use plait_linux::mptcp::Token;
use serde::Serialize;

/// Everything at one moment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct View {
    /// Seconds since 1970.
    pub(super) time: f64,
    /// Seconds since the samples before.
    pub(super) interval_s: f64,
    pub(super) connections: Vec<ConnectionView>,
}

/// A connection; rates are the sums of its subflows'.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ConnectionView {
    pub(super) token: Token,
    pub(super) connection: Option<plait_linux::diag::Connection>,
    pub(super) sent_bps: f64,
    pub(super) received_bps: f64,
    /// Bytes sent again at the data level since the samples before.
    pub(super) reinjected_now: u64,
    pub(super) subflows: Vec<SubflowView>,
}

/// A subflow, with what it carried since the samples before.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SubflowView {
    #[serde(flatten)]
    pub(super) subflow: Subflow,
    /// Bits per second, retransmissions included.
    pub(super) sent_bps: f64,
    pub(super) received_bps: f64,
    /// Part of what the connection carried in both directions; `None` if that was nothing.
    pub(super) share: Option<f64>,
    /// Segments retransmitted since the samples before.
    pub(super) retransmissions_now: u64,
}

impl View {
    /// Samples taken just now, and what grew in the time `elapsed` before.
    pub(super) fn new(samples: Vec<Sample>, grown: &Grown, elapsed: Duration) -> View {
        let seconds = elapsed.as_secs_f64();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let connections = samples.into_iter().map(|sample| ConnectionView::new(sample, grown, seconds));
        View { time, interval_s: seconds, connections: connections.collect() }
    }
}

impl ConnectionView {
    fn new(sample: Sample, grown: &Grown, seconds: f64) -> ConnectionView {
        let of = |subflow: &Subflow| grown.subflows.get(&subflow.id).copied().unwrap_or_default();
        let bps = |bytes: u64| if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
        let both = |carried: Carried| carried.bytes_sent + carried.bytes_received;
        let total: u64 = sample.subflows.iter().map(|subflow| both(of(subflow))).sum();
        let subflows: Vec<SubflowView> = sample
            .subflows
            .into_iter()
            .map(|subflow| {
                let carried = of(&subflow);
                SubflowView {
                    sent_bps: bps(carried.bytes_sent),
                    received_bps: bps(carried.bytes_received),
                    share: (total > 0).then(|| both(carried) as f64 / total as f64),
                    retransmissions_now: carried.retransmissions,
                    subflow,
                }
            })
            .collect();
        ConnectionView {
            token: sample.token,
            connection: sample.connection,
            sent_bps: subflows.iter().map(|subflow| subflow.sent_bps).sum(),
            received_bps: subflows.iter().map(|subflow| subflow.received_bps).sum(),
            reinjected_now: grown.reinjected.get(&sample.token).copied().unwrap_or(0),
            subflows,
        }
    }

    /// Segments that its subflows retransmitted.
    pub(super) fn retransmissions(&self) -> u64 {
        self.subflows.iter().map(|subflow| u64::from(subflow.subflow.tcp.retransmissions)).sum()
    }

    /// The greatest round-trip time of its subflows, microseconds.
    pub(super) fn greatest_rtt(&self) -> u32 {
        self.subflows.iter().map(|subflow| subflow.subflow.tcp.rtt_us).max().unwrap_or(0)
    }
}
