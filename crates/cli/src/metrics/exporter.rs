//! The metrics, updated from samples.
//!
//! Counters never decrease: the traffic of a subflow since the previous sample is added to its path, even if the subflow
//! has closed since. A path is an interface and an address of this host; the peer's address is a label only if that is asked for,
//! so that the number of series does not grow with the number of peers, and so that nobody learns from the metrics who they are:
//! every user of the host can read them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_config::Role;
use plait_gateway::{FailureReason, QuotaFile, Report, Roles, RuleStatus};
use plait_linux::counters::counters;
use plait_linux::diag::{Growth, Sample, Subflow, Watch};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use super::gateways::{Gateways, NewConnections, NewCounts};

/// The exporter.
pub(super) struct Exporter {
    watch: Watch,
    growth: Growth,
    gateways: Gateways,
    paths: PathOptions,
    reports: Reports,
    /// The roles of interfaces by name.
    roles: BTreeMap<String, Role>,
    known_paths: HashSet<PathLabels>,
    /// When the last sample was completed, and how long it took.
    sampled: Option<(Instant, Duration)>,
    registry: Registry,
    metrics: Metrics,
}

/// Asks for the reports of gateways.
pub(super) type Reports = Box<dyn Fn() -> Vec<Report> + Send>;

/// How paths are labelled.
#[derive(Clone, Debug)]
pub(super) struct PathOptions {
    /// Paths with series of their own.
    pub(super) max: usize,
    /// Whether the peer's address is a label.
    pub(super) by_remote: bool,
    /// The roles of this host's interfaces.
    pub(super) roles: Roles,
}

/// Names of labels with their values.
type Labels<const N: usize> = [(&'static str, String); N];
/// Those of a path: `interface`, `local`, `role`, and `remote` if that is asked for.
type PathLabels = Vec<(&'static str, String)>;
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
    path_subflows: Family<PathLabels, Gauge> = "path_subflows", "Current subflows on a path";
    path_rtt: Family<PathLabels, FloatGauge> = "path_rtt" in Seconds,
        "Mean smoothed round-trip time of the subflows on a path";
    path_sent_bytes: Family<PathLabels, Counter> = "path_sent" in Bytes,
        "Payload bytes sent on a path, including retransmissions";
    path_received_bytes: Family<PathLabels, Counter> = "path_received" in Bytes,
        "Payload bytes received in order on a path";
    path_retransmitted_bytes: Family<PathLabels, Counter> = "path_retransmitted" in Bytes,
        "Payload bytes retransmitted on a path";
    path_retransmitted_segments: Family<PathLabels, Counter> = "path_retransmitted_segments",
        "Segments retransmitted on a path";
    path_quota: Family<Labels<1>, FloatGauge> = "path_quota" in Bytes,
        "Bytes of IP packets that a rule of paths may carry in a period";
    path_quota_used: Family<Labels<1>, FloatGauge> = "path_quota_used" in Bytes,
        "Bytes of IP packets that the paths of a rule carried in the current period";
    path_quota_left: Family<Labels<1>, FloatGauge> = "path_quota_left" in Bytes,
        "Bytes of IP packets that the paths of a rule may still carry in the current period";
    path_quota_forecast: Family<Labels<1>, FloatGauge> = "path_quota_forecast" in Bytes,
        "Bytes of IP packets that the paths of a rule will have carried at the end of the period if they go on as since its start";
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
    associations: Family<Labels<1>, Gauge> = "gateway_associations",
        "Current associations of datagrams: sockets of programs, and addresses and ports of hosts behind a router";
    datagrams: Family<Labels<2>, Counter> = "gateway_datagrams",
        "Datagrams of gateways by path, sent and received; packets with datagrams or probes that were lost";
    datagram_bytes: Family<Labels<2>, Counter> = "gateway_datagram" in Bytes,
        "Payload bytes of datagrams of gateways by path, sent and received";
    handshake_failures: Family<Labels<1>, Counter> = "handshake_failures",
        "Failed handshakes of gateways, by reason";
    samples: Counter = "samples", "Samples taken since the start";
    missed_notifications: Counter = "sample_missed_notifications",
        "Overflows of the kernel's queue of closed subflows, whose last counters are missing";
    sample_duration: FloatGauge = "sample_duration" in Seconds, "Duration of the last sample";
}

impl Exporter {
    /// Starts counting.
    pub(super) fn new(paths: PathOptions, reports: Reports) -> anyhow::Result<Exporter> {
        let mut registry = Registry::with_prefix("plait");
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The running plait", build);
        let metrics = Metrics::register(&mut registry);
        let mut exporter = Exporter {
            watch: Watch::open()?,
            growth: Growth::default(),
            gateways: Gateways::default(),
            paths,
            reports,
            roles: BTreeMap::new(),
            known_paths: HashSet::new(),
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
        self.roles = self.paths.roles.by_interface();
        self.update_path_counters(&samples);
        self.update_gauges(&samples);
        self.update_quotas();
        self.update_kernel_counters()?;
        self.update_gateways(&(self.reports)());
        self.metrics.missed_notifications.inner().store(self.watch.lost(), Ordering::Relaxed);
        let duration = begin.elapsed();
        self.metrics.sample_duration.set(duration.as_secs_f64());
        self.metrics.samples.inc();
        self.sampled = Some((Instant::now(), duration));
        Ok(())
    }

    /// The metrics in the OpenMetrics text format.
    pub(super) fn open_metrics(&self) -> anyhow::Result<String> {
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
        let mut present: HashMap<PathLabels, (i64, u64)> = HashMap::new();
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

    /// Without permission to read the file of their use, there are no quotas.
    fn update_quotas(&self) {
        let metrics = &self.metrics;
        metrics.path_quota_forecast.clear();
        let rules = self.paths.roles.rules();
        if !rules.iter().any(|rule| rule.quota.is_some()) {
            return;
        }
        let Some(Ok(uses)) = QuotaFile::of_user().map(|file| file.read()) else { return };
        for status in rules.iter().map(|rule| RuleStatus::now(rule, &uses)) {
            let Some(quota) = status.quota else { continue };
            let rule = [("rule", status.pattern)];
            metrics.path_quota.get_or_create(&rule).set(quota.bytes as f64);
            metrics.path_quota_used.get_or_create(&rule).set(quota.used as f64);
            metrics.path_quota_left.get_or_create(&rule).set(quota.left as f64);
            if let Some(forecast) = quota.forecast {
                metrics.path_quota_forecast.get_or_create(&rule).set(forecast as f64);
            }
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
        metrics.associations.clear();
        for report in reports {
            let command = ("command", report.command.clone());
            let running =
                [command.clone(), ("mode", report.mode.to_string()), ("require", report.require.to_string())];
            metrics.gateways.get_or_create(&running).inc();
            let associations = report.datagrams.associations.try_into().unwrap_or(i64::MAX);
            metrics.associations.get_or_create(std::array::from_ref(&command)).inc_by(associations);
            for connection in &report.connections {
                let (mode, protocol) = (connection.mode.to_string(), connection.protocol.clone());
                let active = [command.clone(), ("mode", mode), ("protocol", protocol)];
                metrics.active_connections.get_or_create(&active).inc();
            }
        }
        let NewCounts { connections, failures, invalid_records, key_updates, datagrams } =
            self.gateways.since_last(reports);
        for NewConnections { command, outcome, connections } in connections {
            let labels = [("command", command), ("outcome", outcome.to_owned())];
            metrics.gateway_connections.get_or_create(&labels).inc_by(connections);
        }
        metrics.invalid_records.inc_by(invalid_records);
        metrics.key_updates.inc_by(key_updates);
        for (path, counts) in datagrams {
            let labels = |direction: &str| [("path", path.clone()), ("direction", direction.to_owned())];
            for (direction, datagrams) in
                [("sent", counts.sent), ("received", counts.received), ("lost", counts.lost)]
            {
                metrics.datagrams.get_or_create(&labels(direction)).inc_by(datagrams);
            }
            for (direction, bytes) in [("sent", counts.sent_bytes), ("received", counts.received_bytes)] {
                metrics.datagram_bytes.get_or_create(&labels(direction)).inc_by(bytes);
            }
        }
        // From the start, so that the first failure is an increase.
        for reason in FailureReason::ALL {
            let count = failures.get(reason).copied().unwrap_or(0);
            metrics.handshake_failures.get_or_create(&[("reason", reason.to_string())]).inc_by(count);
        }
    }

    /// The labels of a subflow's path: `other` beyond the maximum number of paths.
    fn path(&mut self, subflow: &Subflow) -> PathLabels {
        let role = self.roles.get(subflow.interface.as_deref().unwrap_or_default());
        let mut labels = vec![
            ("interface", subflow.interface.clone().unwrap_or_default()),
            ("local", subflow.local.ip().to_canonical().to_string()),
            ("role", role.map(Role::to_string).unwrap_or_default()),
        ];
        if self.paths.by_remote {
            labels.push(("remote", subflow.remote.ip().to_canonical().to_string()));
        }
        if !self.known_paths.contains(&labels) {
            if self.known_paths.len() >= self.paths.max {
                return labels.into_iter().map(|(name, _)| (name, "other".into())).collect();
            }
            self.known_paths.insert(labels.clone());
        }
        labels
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
