//! Snapshots: a sample of all connections, with rates and shares since the previous sample.

use std::time::{Duration, Instant};

use plait_linux::clock::unix_seconds;
use plait_linux::diag::{Carried, Grown, Growth, Sample, Subflow, Watch};
use plait_linux::mptcp::Token;
use plait_scheduler::{SteeredSubflow, SteeredSubflows};
use serde::Serialize;

/// All connections at one time.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    /// Seconds since 1970.
    pub(crate) time: f64,
    /// Seconds since the previous sample.
    pub(crate) interval_s: f64,
    pub(crate) connections: Vec<ConnectionSnapshot>,
}

/// A connection; its rates are the sums over its subflows.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ConnectionSnapshot {
    pub(crate) token: Token,
    pub(crate) connection: Option<plait_linux::diag::Connection>,
    pub(crate) sent_bps: f64,
    pub(crate) received_bps: f64,
    /// Bytes reinjected since the previous sample.
    pub(crate) interval_reinjected_bytes: u64,
    pub(crate) subflows: Vec<SubflowSnapshot>,
}

/// A subflow, with the traffic since the previous sample.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SubflowSnapshot {
    #[serde(flatten)]
    pub(crate) subflow: Subflow,
    /// Bits per second, retransmissions included.
    pub(crate) sent_bps: f64,
    pub(crate) received_bps: f64,
    /// The part of `sent_bps` that was sent before.
    pub(crate) retransmitted_bps: f64,
    /// The share of the connection's traffic in both directions; `None` if there was none.
    pub(crate) share: Option<f64>,
    /// Segments retransmitted since the previous sample.
    pub(crate) interval_retransmissions: u64,
    /// What plait's scheduler decided, if it has one.
    pub(crate) scheduling: Option<SteeredSubflow>,
}

impl Snapshot {
    /// Combines samples with the growth of their counters over the preceding `elapsed`, and with what schedulers decided.
    pub(crate) fn new(
        samples: Vec<Sample>,
        grown: &Grown,
        elapsed: Duration,
        steered: &[SteeredSubflow],
    ) -> Snapshot {
        let seconds = elapsed.as_secs_f64();
        let connections =
            samples.into_iter().map(|sample| ConnectionSnapshot::new(sample, grown, seconds, steered));
        Snapshot { time: unix_seconds(), interval_s: seconds, connections: connections.collect() }
    }
}

impl ConnectionSnapshot {
    fn new(sample: Sample, grown: &Grown, seconds: f64, steered: &[SteeredSubflow]) -> ConnectionSnapshot {
        let of = |subflow: &Subflow| grown.subflows.get(&subflow.id).copied().unwrap_or_default();
        let bps = |bytes: u64| if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
        let both = |carried: Carried| carried.bytes_sent + carried.bytes_received;
        let total: u64 = sample.subflows.iter().map(|subflow| both(of(subflow))).sum();
        let subflows: Vec<SubflowSnapshot> = sample
            .subflows
            .into_iter()
            .map(|subflow| {
                let carried = of(&subflow);
                SubflowSnapshot {
                    sent_bps: bps(carried.bytes_sent),
                    received_bps: bps(carried.bytes_received),
                    retransmitted_bps: bps(carried.bytes_retransmitted),
                    share: (total > 0).then(|| both(carried) as f64 / total as f64),
                    interval_retransmissions: carried.retransmissions,
                    scheduling: steered
                        .iter()
                        .find(|steered| (steered.local, steered.remote) == (subflow.local, subflow.remote))
                        .cloned(),
                    subflow,
                }
            })
            .collect();
        ConnectionSnapshot {
            token: sample.token,
            connection: sample.connection,
            sent_bps: subflows.iter().map(|subflow| subflow.sent_bps).sum(),
            received_bps: subflows.iter().map(|subflow| subflow.received_bps).sum(),
            interval_reinjected_bytes: grown.reinjected.get(&sample.token).copied().unwrap_or(0),
            subflows,
        }
    }

    /// Segments retransmitted, over all subflows.
    pub(crate) fn retransmissions(&self) -> u64 {
        self.subflows.iter().map(|subflow| u64::from(subflow.subflow.tcp.retransmissions)).sum()
    }

    /// The highest round-trip time of its subflows, in microseconds.
    pub(crate) fn max_rtt(&self) -> u32 {
        self.subflows.iter().map(|subflow| subflow.subflow.tcp.rtt_us).max().unwrap_or(0)
    }
}

/// Takes snapshots of the connections of the network namespace in which it was started.
pub(crate) struct Snapshots {
    watch: Watch,
    steered: Option<SteeredSubflows>,
    growth: Growth,
    last: Instant,
}

impl Snapshots {
    pub(crate) fn start() -> anyhow::Result<Snapshots> {
        let (watch, steered) = (Watch::open()?, SteeredSubflows::open().ok());
        Ok(Snapshots { watch, steered, growth: Growth::default(), last: Instant::now() })
    }

    /// The first has no rates.
    pub(crate) fn take(&mut self) -> anyhow::Result<Snapshot> {
        let samples = self.watch.sample()?;
        let elapsed = self.last.elapsed();
        self.last = Instant::now();
        let grown = self.growth.since_last(&samples).unwrap_or_default();
        Ok(Snapshot::new(samples, &grown, elapsed, &steered_subflows(self.steered.as_ref())))
    }
}

/// The subflows that schedulers steer; none without root, who alone can see them.
pub(crate) fn steered_subflows(steered: Option<&SteeredSubflows>) -> Vec<SteeredSubflow> {
    steered.and_then(|steered| steered.list().ok()).unwrap_or_default()
}
