//! The metrics, kept up to date by samples.
//!
//! Counters only ever grow: what a subflow carried since the sample before is added to its path, also when it has
//! ended meanwhile. A path is a pair of addresses without ports, so that the number of series does not follow the
//! number of connections.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_gateway::{Answers, Report};
use plait_linux::counters::counters;
use plait_linux::diag::{Growth, Sample, Subflow, Watch};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::gateways::Gateways;

/// Everything that is scraped.
pub(super) struct Exporter {
    watch: Watch,
    growth: Growth,
    gateways: Gateways,
    known_paths: HashSet<String>,
    most_paths: usize,
    /// When the last sample was complete, and how long it took.
    sampled: Option<(Instant, Duration)>,
    registry: Registry,
    metrics: Metrics,
}

#[derive(Default)]
struct Metrics {
    connections: Family<Fallback, Gauge>,
    subflows: Family<Kind, Gauge>,
    path_subflows: Family<Path, Gauge>,
    path_rtt: Family<Path, Gauge<f64, AtomicU64>>,
    sent: Family<Path, Counter>,
    received: Family<Path, Counter>,
    retransmitted: Family<Path, Counter>,
    retransmissions: Family<Path, Counter>,
    reinjected: Counter,
    established: Gauge<i64, AtomicI64>,
    fallbacks: Family<Cause, Counter>,
    kernel: Family<Name, Counter>,
    gateways: Family<Running, Gauge>,
    gateway_connections: Family<Carried, Gauge>,
    gateway_totals: Family<Outcome, Counter>,
    lost: Counter,
    seconds: Gauge<f64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Path {
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Fallback {
    fallback: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    backup: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Cause {
    cause: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Running {
    command: String,
    mode: String,
    require: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Carried {
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
    /// Starts to count.
    pub(super) fn new(most_paths: usize) -> anyhow::Result<Exporter> {
        let metrics = Metrics::default();
        let registry = metrics.register();
        let mut exporter = Exporter {
            watch: Watch::open()?,
            growth: Growth::default(),
            gateways: Gateways::default(),
            known_paths: HashSet::new(),
            most_paths,
            sampled: None,
            registry,
            metrics,
        };
        exporter.sample()?;
        Ok(exporter)
    }

    /// Whether the last sample is so new that, however many ask, most of the time is not spent on sampling.
    pub(super) fn is_fresh(&self) -> bool {
        self.sampled.is_some_and(|(end, duration)| end.elapsed() < 4 * duration)
    }

    /// Brings everything up to date.
    pub(super) fn sample(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let samples = self.watch.sample()?;
        self.count_carried(&samples);
        self.show_present(&samples);
        self.show_kernel()?;
        self.show_gateways(&Answers::ask().unwrap_or_default().reports);
        self.metrics.lost.inner().store(self.watch.lost(), Ordering::Relaxed);
        let duration = begin.elapsed();
        self.metrics.seconds.set(duration.as_secs_f64());
        self.sampled = Some((Instant::now(), duration));
        Ok(())
    }

    /// The metrics in the OpenMetrics text format.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        encode(&mut text, &self.registry).context("cannot write the metrics")?;
        Ok(text)
    }

    fn count_carried(&mut self, samples: &[Sample]) {
        let Some(grown) = self.growth.since_last(samples) else { return };
        for subflow in samples.iter().flat_map(|sample| &sample.subflows) {
            let Some(carried) = grown.subflows.get(&subflow.id) else { continue };
            let path = self.path(subflow);
            let metrics = &self.metrics;
            metrics.sent.get_or_create(&path).inc_by(carried.bytes_sent);
            metrics.received.get_or_create(&path).inc_by(carried.bytes_received);
            metrics.retransmitted.get_or_create(&path).inc_by(carried.bytes_retransmitted);
            metrics.retransmissions.get_or_create(&path).inc_by(carried.retransmissions);
        }
        self.metrics.reinjected.inc_by(grown.reinjected.values().sum());
    }

    fn show_present(&mut self, samples: &[Sample]) {
        let mut present: HashMap<Path, (i64, u64)> = HashMap::new();
        let (mut ordinary, mut backup) = (0, 0);
        let subflows = samples.iter().flat_map(|sample| &sample.subflows);
        for subflow in subflows.filter(|subflow| subflow.closed.is_none()) {
            let (count, rtt) = present.entry(self.path(subflow)).or_default();
            *count += 1;
            *rtt += u64::from(subflow.tcp.rtt_us);
            *(if subflow.backup() { &mut backup } else { &mut ordinary }) += 1;
        }
        let metrics = &self.metrics;
        let connections = samples.iter().filter_map(|sample| sample.connection.as_ref());
        let fallen = connections.clone().filter(|connection| connection.fallback).count() as i64;
        let all = connections.count() as i64;
        metrics.connections.get_or_create(&Fallback { fallback: "true" }).set(fallen);
        metrics.connections.get_or_create(&Fallback { fallback: "false" }).set(all - fallen);
        metrics.subflows.get_or_create(&Kind { backup: "true" }).set(backup);
        metrics.subflows.get_or_create(&Kind { backup: "false" }).set(ordinary);
        metrics.path_subflows.clear();
        metrics.path_rtt.clear();
        for (path, (count, rtt)) in present {
            metrics.path_rtt.get_or_create(&path).set(rtt as f64 / count as f64 / 1e6);
            metrics.path_subflows.get_or_create(&path).set(count);
        }
    }

    fn show_kernel(&self) -> anyhow::Result<()> {
        for (name, value) in counters()? {
            let Some(name) = name.strip_prefix("MPTcpExt") else { continue };
            let value = u64::try_from(value).unwrap_or(0);
            if name == "MPCurrEstab" {
                self.metrics.established.set(value.try_into().unwrap_or(i64::MAX));
                continue;
            }
            if name.contains("Fallback") && name != "FallbackFailed" {
                let cause = Cause { cause: name.to_owned() };
                self.metrics.fallbacks.get_or_create(&cause).inner().store(value, Ordering::Relaxed);
            }
            let name = Name { name: name.to_owned() };
            self.metrics.kernel.get_or_create(&name).inner().store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn show_gateways(&mut self, reports: &[Report]) {
        let metrics = &self.metrics;
        metrics.gateways.clear();
        metrics.gateway_connections.clear();
        for report in reports {
            let require = if report.require { "true" } else { "false" };
            let running = Running { command: report.command.clone(), mode: report.mode.to_string(), require };
            metrics.gateways.get_or_create(&running).inc();
            for connection in &report.connections {
                let carried = Carried {
                    command: report.command.clone(),
                    mode: connection.mode.to_string(),
                    protocol: connection.protocol.clone(),
                };
                metrics.gateway_connections.get_or_create(&carried).inc();
            }
        }
        for new in self.gateways.since_last(reports) {
            let outcome = Outcome { command: new.command, outcome: new.outcome };
            metrics.gateway_totals.get_or_create(&outcome).inc_by(new.connections);
        }
    }

    /// The path of a subflow, as long as there are not too many of them.
    fn path(&mut self, subflow: &Subflow) -> Path {
        let path = format!("{}-{}", subflow.local.ip(), subflow.remote.ip());
        if self.known_paths.contains(&path) || self.known_paths.len() < self.most_paths {
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
            "MPTCP connections, by whether they fell back to TCP",
            self.connections.clone(),
        );
        r.register("mptcp_subflows", "Subflows of MPTCP connections", self.subflows.clone());
        r.register("path_subflows", "Subflows on a path", self.path_subflows.clone());
        r.register_with_unit(
            "path_rtt",
            "Mean of the smoothed round-trip times of the subflows on a path",
            Unit::Seconds,
            self.path_rtt.clone(),
        );
        r.register_with_unit(
            "path_sent",
            "Payload sent on a path, retransmissions included",
            Unit::Bytes,
            self.sent.clone(),
        );
        r.register_with_unit(
            "path_received",
            "Payload received on a path",
            Unit::Bytes,
            self.received.clone(),
        );
        r.register_with_unit(
            "path_retransmitted",
            "Payload retransmitted on a path",
            Unit::Bytes,
            self.retransmitted.clone(),
        );
        r.register("path_retransmissions", "Segments retransmitted on a path", self.retransmissions.clone());
        r.register_with_unit(
            "mptcp_reinjected",
            "Payload sent again on another subflow",
            Unit::Bytes,
            self.reinjected.clone(),
        );
        r.register(
            "mptcp_established",
            "Established MPTCP connections, as the kernel counts them",
            self.established.clone(),
        );
        r.register("mptcp_fallbacks", "Fallbacks to TCP, as the kernel counts them", self.fallbacks.clone());
        r.register("mptcp_ext", "The kernel's MPTCP counters", self.kernel.clone());
        r.register("gateways", "Running gateways", self.gateways.clone());
        r.register(
            "gateway_connections_now",
            "Connections that gateways carry, by the mode that was negotiated",
            self.gateway_connections.clone(),
        );
        r.register(
            "gateway_connections",
            "What connections of gateways came to",
            self.gateway_totals.clone(),
        );
        r.register(
            "watch_lost",
            "Times that the kernel told of ends faster than they were read",
            self.lost.clone(),
        );
        r.register_with_unit("watch", "Duration of the last sample", Unit::Seconds, self.seconds.clone());
        registry
    }
}
