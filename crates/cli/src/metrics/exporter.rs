//! The metrics, updated from samples.
//!
//! Counters never decrease: the traffic of a subflow since the previous sample is added to its path, even if the subflow
//! has closed since. A path is a pair of addresses without ports, so that the number of series does not grow with the
//! number of connections.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_gateway::{GatewayStatus, Report};
use plait_linux::counters::counters;
use plait_linux::diag::{Growth, Sample, Subflow, Watch};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::gateways::Gateways;

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

#[derive(Default)]
struct Metrics {
    connections: Family<FallbackLabel, Gauge>,
    subflows: Family<BackupLabel, Gauge>,
    path_subflows: Family<Path, Gauge>,
    path_rtt: Family<Path, Gauge<f64, AtomicU64>>,
    path_sent_bytes: Family<Path, Counter>,
    path_received_bytes: Family<Path, Counter>,
    path_retransmitted_bytes: Family<Path, Counter>,
    path_retransmitted_segments: Family<Path, Counter>,
    reinjected_bytes: Counter,
    established: Gauge<i64, AtomicI64>,
    fallbacks: Family<FallbackReason, Counter>,
    kernel_events: Family<KernelCounter, Counter>,
    gateways: Family<RunningGateway, Gauge>,
    active_connections: Family<ActiveConnection, Gauge>,
    gateway_connections: Family<Outcome, Counter>,
    missed_notifications: Counter,
    samples: Counter,
    sample_duration: Gauge<f64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Path {
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FallbackLabel {
    fallback: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BackupLabel {
    backup: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FallbackReason {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KernelCounter {
    counter: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunningGateway {
    command: String,
    mode: String,
    require: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActiveConnection {
    command: String,
    mode: String,
    protocol: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    command: String,
    outcome: &'static str,
}

impl Exporter {
    /// Starts counting.
    pub(super) fn new(max_paths: usize) -> anyhow::Result<Exporter> {
        let metrics = Metrics::default();
        let registry = metrics.register();
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
        let mut present: HashMap<Path, (i64, u64)> = HashMap::new();
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
        metrics.connections.get_or_create(&FallbackLabel { fallback: "true" }).set(fallen);
        metrics.connections.get_or_create(&FallbackLabel { fallback: "false" }).set(all - fallen);
        metrics.subflows.get_or_create(&BackupLabel { backup: "true" }).set(backup);
        metrics.subflows.get_or_create(&BackupLabel { backup: "false" }).set(regular);
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
                let reason = FallbackReason { reason: name.to_owned() };
                self.metrics.fallbacks.get_or_create(&reason).inner().store(value, Ordering::Relaxed);
            }
            let counter = KernelCounter { counter: name.to_owned() };
            self.metrics.kernel_events.get_or_create(&counter).inner().store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn update_gateways(&mut self, reports: &[Report]) {
        let metrics = &self.metrics;
        metrics.gateways.clear();
        metrics.active_connections.clear();
        for report in reports {
            let require = if report.require { "true" } else { "false" };
            let running =
                RunningGateway { command: report.command.clone(), mode: report.mode.to_string(), require };
            metrics.gateways.get_or_create(&running).inc();
            for connection in &report.connections {
                let active = ActiveConnection {
                    command: report.command.clone(),
                    mode: connection.mode.to_string(),
                    protocol: connection.protocol.clone(),
                };
                metrics.active_connections.get_or_create(&active).inc();
            }
        }
        for new in self.gateways.since_last(reports) {
            let outcome = Outcome { command: new.command, outcome: new.outcome };
            metrics.gateway_connections.get_or_create(&outcome).inc_by(new.connections);
        }
    }

    /// The label of a subflow's path: `other` beyond the maximum number of paths.
    fn path(&mut self, subflow: &Subflow) -> Path {
        let path = format!("{}-{}", subflow.local.ip(), subflow.remote.ip());
        if self.known_paths.contains(&path) || self.known_paths.len() < self.max_paths {
            self.known_paths.insert(path.clone());
            return Path { path };
        }
        Path { path: "other".into() }
    }
}

impl Metrics {
    fn register(&self) -> Registry {
        let mut registry = Registry::with_prefix("plait");
        let r = &mut registry;
        r.register(
            "mptcp_connections",
            "Current MPTCP connections, by whether they fell back to TCP",
            self.connections.clone(),
        );
        r.register(
            "mptcp_subflows",
            "Current subflows of MPTCP connections, by whether they are backups",
            self.subflows.clone(),
        );
        r.register("path_subflows", "Current subflows on a path", self.path_subflows.clone());
        r.register_with_unit(
            "path_rtt",
            "Mean smoothed round-trip time of the subflows on a path",
            Unit::Seconds,
            self.path_rtt.clone(),
        );
        r.register_with_unit(
            "path_sent",
            "Payload bytes sent on a path, including retransmissions",
            Unit::Bytes,
            self.path_sent_bytes.clone(),
        );
        r.register_with_unit(
            "path_received",
            "Payload bytes received in order on a path",
            Unit::Bytes,
            self.path_received_bytes.clone(),
        );
        r.register_with_unit(
            "path_retransmitted",
            "Payload bytes retransmitted on a path",
            Unit::Bytes,
            self.path_retransmitted_bytes.clone(),
        );
        r.register(
            "path_retransmitted_segments",
            "Segments retransmitted on a path",
            self.path_retransmitted_segments.clone(),
        );
        r.register_with_unit(
            "mptcp_reinjected",
            "Payload bytes reinjected on another subflow",
            Unit::Bytes,
            self.reinjected_bytes.clone(),
        );
        r.register(
            "mptcp_connections_established",
            "Established MPTCP connections according to the kernel's MPCurrEstab",
            self.established.clone(),
        );
        r.register(
            "mptcp_fallbacks",
            "Fallbacks to TCP, by the kernel counter that recorded them",
            self.fallbacks.clone(),
        );
        r.register(
            "mptcp_kernel_events",
            "MPTCP counters of the kernel (MPTcpExt)",
            self.kernel_events.clone(),
        );
        r.register("gateways", "RunningGateway gateways", self.gateways.clone());
        r.register(
            "gateway_active_connections",
            "Connections currently carried by gateways, by negotiated mode",
            self.active_connections.clone(),
        );
        r.register(
            "gateway_connections",
            "Gateway connections by outcome: protected, plain or refused",
            self.gateway_connections.clone(),
        );
        r.register("samples", "Samples taken since the start", self.samples.clone());
        r.register(
            "sample_missed_notifications",
            "Overflows of the kernel's queue of closed subflows, whose last counters are missing",
            self.missed_notifications.clone(),
        );
        r.register_with_unit(
            "sample_duration",
            "Duration of the last sample",
            Unit::Seconds,
            self.sample_duration.clone(),
        );
        registry
    }
}
