//! The metrics, updated from samples.
//!
//! Counters never decrease: the traffic of a subflow since the previous sample is added to its path, even if the subflow
//! has closed since. A path is an address of this host, so that the number of series does not grow with the number of
//! connections or peers, and so that nobody learns from the metrics who the peers are: every user of the host can read them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_gateway::{FailureReason, GatewayStatus, Report};
use plait_linux::counters::counters;
use plait_linux::diag::{Growth, Sample, Subflow, Watch};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::gateways::{Gateways, NewConnections, NewCounts};

/// The exporter.
pub(super) struct Exporter {
    watch: Watch,
    growth: Growth,
    gateways: Gateways,
    known_paths: HashSet<String>,
    max_paths: usize,
    /// When the last sample was completed, and how long it took.
    sampled: Option<(Instant, Duration)>,
    registry: Registry,
    metrics: Metrics,
}

/// Names of labels with their values.
type Labels<const N: usize> = [(&'static str, String); N];
type FloatGauge = Gauge<f64, AtomicU64>;

/// Defines the metrics, and registers them in this order: type, name, unit, help.
macro_rules! metrics {
    ($($field:ident: $type:ty = $name:literal $(in $unit:ident)?, $help:literal;)*) => {
        struct Metrics {
            $($field: $type,)*
        }

        impl Metrics {
            fn register(registry: &mut Registry) -> Metrics {
                Metrics { $($field: add(registry, $name, None$(.or(Some(Unit::$unit)))?, $help),)* }
            }
        }
    };
}

metrics! {
    connections: Family<Labels<1>, Gauge> = "mptcp_connections",
        "Current MPTCP connections, by whether they fell back to TCP";
    subflows: Family<Labels<1>, Gauge> = "mptcp_subflows",
        "Current subflows of MPTCP connections, by whether they are backups";
    path_subflows: Family<Labels<1>, Gauge> = "path_subflows", "Current subflows on a path";
    path_rtt: Family<Labels<1>, FloatGauge> = "path_rtt" in Seconds,
        "Mean smoothed round-trip time of the subflows on a path";
    path_sent_bytes: Family<Labels<1>, Counter> = "path_sent" in Bytes,
        "Payload bytes sent on a path, including retransmissions";
    path_received_bytes: Family<Labels<1>, Counter> = "path_received" in Bytes,
        "Payload bytes received in order on a path";
    path_retransmitted_bytes: Family<Labels<1>, Counter> = "path_retransmitted" in Bytes,
        "Payload bytes retransmitted on a path";
    path_retransmitted_segments: Family<Labels<1>, Counter> = "path_retransmitted_segments",
        "Segments retransmitted on a path";
    reinjected_bytes: Counter = "mptcp_reinjected" in Bytes, "Payload bytes reinjected on another subflow";
    established: Gauge<i64, AtomicI64> = "mptcp_connections_established",
        "Established MPTCP connections according to the kernel's MPCurrEstab";
    fallbacks: Family<Labels<1>, Counter> = "mptcp_fallbacks",
        "Fallbacks to TCP, by the kernel counter that recorded them";
    kernel_events: Family<Labels<1>, Counter> = "mptcp_kernel_events",
        "MPTCP counters of the kernel (MPTcpExt)";
    gateways: Family<Labels<3>, Gauge> = "gateways", "Running gateways";
    active_connections: Family<Labels<3>, Gauge> = "gateway_active_connections",
        "Connections currently carried by gateways, by negotiated mode";
    gateway_connections: Family<Labels<2>, Counter> = "gateway_connections",
        "Gateway connections by outcome: protected, plain or refused";
    invalid_records: Counter = "gateway_invalid_records",
        "Connections in mode sealed reset because a record was invalid or a key update failed";
    key_updates: Counter = "gateway_key_updates",
        "Key updates of connections in mode sealed, each of which gave this end new keys";
    handshake_failures: Family<Labels<1>, Counter> = "handshake_failures",
        "Failed handshakes of gateways, by reason";
    samples: Counter = "samples", "Samples taken since the start";
    missed_notifications: Counter = "sample_missed_notifications",
        "Overflows of the kernel's queue of closed subflows, whose last counters are missing";
    sample_duration: FloatGauge = "sample_duration" in Seconds, "Duration of the last sample";
}

impl Exporter {
    /// Starts counting.
    pub(super) fn new(max_paths: usize) -> anyhow::Result<Exporter> {
        let mut registry = Registry::with_prefix("plait");
        let metrics = Metrics::register(&mut registry);
        let mut exporter = Exporter {
            watch: Watch::open()?,
            growth: Growth::default(),
            gateways: Gateways::default(),
            known_paths: HashSet::new(),
            max_paths,
            sampled: None,
            registry,
            metrics,
        };
        exporter.sample()?;
        Ok(exporter)
    }

    /// Whether the last sample is recent enough to serve again, so that frequent scrapes do not keep the exporter sampling.
    pub(super) fn is_fresh(&self) -> bool {
        self.sampled.is_some_and(|(end, duration)| end.elapsed() < 4 * duration)
    }

    /// Updates all metrics.
    pub(super) fn sample(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let samples = self.watch.sample()?;
        self.update_path_counters(&samples);
        self.update_gauges(&samples);
        self.update_kernel_counters()?;
        self.update_gateways(&GatewayStatus::query().unwrap_or_default().reports);
        self.metrics.missed_notifications.inner().store(self.watch.lost(), Ordering::Relaxed);
        let duration = begin.elapsed();
        self.metrics.sample_duration.set(duration.as_secs_f64());
        self.metrics.samples.inc();
        self.sampled = Some((Instant::now(), duration));
        Ok(())
    }

    /// The metrics in the OpenMetrics text format.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        encode(&mut text, &self.registry).context("cannot write the metrics")?;
        Ok(text)
    }

    fn update_path_counters(&mut self, samples: &[Sample]) {
        let Some(grown) = self.growth.since_last(samples) else { return };
        for subflow in samples.iter().flat_map(|sample| &sample.subflows) {
            let Some(carried) = grown.subflows.get(&subflow.id) else { continue };
            let path = self.path(subflow);
            let metrics = &self.metrics;
            metrics.path_sent_bytes.get_or_create(&path).inc_by(carried.bytes_sent);
            metrics.path_received_bytes.get_or_create(&path).inc_by(carried.bytes_received);
            metrics.path_retransmitted_bytes.get_or_create(&path).inc_by(carried.bytes_retransmitted);
            metrics.path_retransmitted_segments.get_or_create(&path).inc_by(carried.retransmissions);
        }
        self.metrics.reinjected_bytes.inc_by(grown.reinjected.values().sum());
    }

    fn update_gauges(&mut self, samples: &[Sample]) {
        let mut present: HashMap<Labels<1>, (i64, u64)> = HashMap::new();
        let (mut regular, mut backup) = (0, 0);
        let subflows = samples.iter().flat_map(|sample| &sample.subflows);
        for subflow in subflows.filter(|subflow| subflow.closed.is_none()) {
            let (count, rtt) = present.entry(self.path(subflow)).or_default();
            *count += 1;
            *rtt += u64::from(subflow.tcp.rtt_us);
            *(if subflow.backup() { &mut backup } else { &mut regular }) += 1;
        }
        let metrics = &self.metrics;
        let connections = samples.iter().filter_map(|sample| sample.connection.as_ref());
        let fallen = connections.clone().filter(|connection| connection.fallback).count() as i64;
        let all = connections.count() as i64;
        metrics.connections.get_or_create(&[("fallback", "true".into())]).set(fallen);
        metrics.connections.get_or_create(&[("fallback", "false".into())]).set(all - fallen);
        metrics.subflows.get_or_create(&[("backup", "true".into())]).set(backup);
        metrics.subflows.get_or_create(&[("backup", "false".into())]).set(regular);
        metrics.path_subflows.clear();
        metrics.path_rtt.clear();
        for (path, (count, rtt)) in present {
            metrics.path_rtt.get_or_create(&path).set(rtt as f64 / count as f64 / 1e6);
            metrics.path_subflows.get_or_create(&path).set(count);
        }
    }

    fn update_kernel_counters(&self) -> anyhow::Result<()> {
        for (name, value) in counters()? {
            let Some(name) = name.strip_prefix("MPTcpExt") else { continue };
            let value = u64::try_from(value).unwrap_or(0);
            if name == "MPCurrEstab" {
                self.metrics.established.set(value.try_into().unwrap_or(i64::MAX));
                continue;
            }
            if name.contains("Fallback") && name != "FallbackFailed" {
                let fallbacks = self.metrics.fallbacks.get_or_create(&[("reason", name.to_owned())]);
                fallbacks.inner().store(value, Ordering::Relaxed);
            }
            let events = self.metrics.kernel_events.get_or_create(&[("counter", name.to_owned())]);
            events.inner().store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn update_gateways(&mut self, reports: &[Report]) {
        let metrics = &self.metrics;
        metrics.gateways.clear();
        metrics.active_connections.clear();
        for report in reports {
            let command = ("command", report.command.clone());
            let running =
                [command.clone(), ("mode", report.mode.to_string()), ("require", report.require.to_string())];
            metrics.gateways.get_or_create(&running).inc();
            for connection in &report.connections {
                let (mode, protocol) = (connection.mode.to_string(), connection.protocol.clone());
                let active = [command.clone(), ("mode", mode), ("protocol", protocol)];
                metrics.active_connections.get_or_create(&active).inc();
            }
        }
        let NewCounts { connections, failures, invalid_records, key_updates } =
            self.gateways.since_last(reports);
        for NewConnections { command, outcome, connections } in connections {
            let labels = [("command", command), ("outcome", outcome.to_owned())];
            metrics.gateway_connections.get_or_create(&labels).inc_by(connections);
        }
        metrics.invalid_records.inc_by(invalid_records);
        metrics.key_updates.inc_by(key_updates);
        // From the start, so that the first failure is an increase.
        for reason in FailureReason::ALL {
            let count = failures.get(reason).copied().unwrap_or(0);
            metrics.handshake_failures.get_or_create(&[("reason", reason.to_string())]).inc_by(count);
        }
    }

    /// The label of a subflow's path: `other` beyond the maximum number of paths.
    fn path(&mut self, subflow: &Subflow) -> Labels<1> {
        let path = subflow.local.ip().to_string();
        if self.known_paths.contains(&path) || self.known_paths.len() < self.max_paths {
            self.known_paths.insert(path.clone());
            return [("path", path)];
        }
        [("path", "other".into())]
    }
}

fn add<M: Metric + Clone + Default>(
    registry: &mut Registry,
    name: &str,
    unit: Option<Unit>,
    help: &str,
) -> M {
    let metric = M::default();
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric.clone()),
        None => registry.register(name, help, metric.clone()),
    }
    metric
}
