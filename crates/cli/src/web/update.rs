//! What the page shows at one time, as it is sent to browsers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use plait_config::Role;
use plait_gateway::{ConnectionReport, QuotaStatus, Report};
use plait_linux::mptcp::Token;
use serde::Serialize;

use super::captures::CaptureState;
use super::events::Event;
use super::exposure::{Exposure, Protection};
use crate::snapshot::{ConnectionSnapshot, Snapshot, SubflowSnapshot};

/// Connections on the page; further ones are counted.
const MAX_CONNECTIONS: usize = 200;

/// All that is shown.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Update {
    /// Seconds since 1970.
    pub(super) time: f64,
    /// Seconds since the previous update.
    interval_s: f64,
    pub(super) paths: Vec<Path>,
    /// Those that carry most.
    pub(super) connections: Vec<Connection>,
    /// Connections that are not among them.
    omitted: usize,
    /// What happened since the previous update.
    pub(super) events: Vec<Event>,
    pub(super) captures: CaptureState,
}

/// A path: an interface, or a local address that no interface has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Path {
    pub(super) name: String,
    role: Option<Role>,
    subflows: usize,
    pub(super) sent_bps: f64,
    pub(super) received_bps: f64,
    /// Mean smoothed round-trip time of its subflows in milliseconds.
    pub(super) rtt_ms: Option<f64>,
    /// Retransmitted bytes among those sent in this interval.
    retransmitted: Option<f64>,
    exposure: Exposure,
    /// That of its rule, which other paths may share.
    quota: Option<QuotaStatus>,
}

/// A connection.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Connection {
    pub(super) token: Token,
    /// The program that has it, or that has it carried.
    pub(super) program: Option<String>,
    /// What carries it: `run`, `proxy` or `serve`; absent if it is not a gateway's.
    gateway: Option<String>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    protection: Protection,
    /// Mode `sealed`: witnessed and configured paths, such as `2/3`.
    level: Option<String>,
    identity: Option<String>,
    fallback: bool,
    sent_bps: f64,
    received_bps: f64,
    pub(super) subflows: Vec<Subflow>,
}

/// A subflow.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Subflow {
    #[serde(skip)]
    pub(super) id: u64,
    pub(super) path: String,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    backup: bool,
    pub(super) sent_bps: f64,
    pub(super) received_bps: f64,
    #[serde(skip)]
    retransmitted_bps: f64,
    rtt_ms: f64,
    /// Of the connection's bytes in this interval.
    pub(super) share: Option<f64>,
    retransmissions: u64,
    /// What a scheduler of plait decided.
    scheduling: Option<String>,
    /// Whether data is outstanding that the peer has not acknowledged for longer than a round trip should take.
    pub(super) silent: bool,
    pub(super) closed: bool,
}

/// How long the peer may take to acknowledge data, in smoothed round-trip times and at least milliseconds, until its path counts
/// as silent.
const SILENT: (f64, f64) = (4.0, 500.0);

impl Update {
    /// From a snapshot, the gateways' reports, and the roles and quotas of interfaces by name. Programs and events are added later.
    pub(super) fn new(
        snapshot: &Snapshot,
        reports: &[Report],
        roles: &BTreeMap<String, Role>,
        quotas: &BTreeMap<String, QuotaStatus>,
        captures: CaptureState,
    ) -> Update {
        let carried: BTreeMap<&str, (&Report, &ConnectionReport)> = reports
            .iter()
            .flat_map(|report| report.connections.iter().map(move |connection| (report, connection)))
            .filter_map(|(report, connection)| Some((connection.token.as_deref()?, (report, connection))))
            .collect();
        let mut connections: Vec<Connection> = snapshot
            .connections
            .iter()
            .map(|connection| Connection::new(connection, carried.get(connection.token.to_string().as_str())))
            .collect();
        let paths = paths(&connections, roles, quotas);
        let rate = |connection: &Connection| connection.sent_bps + connection.received_bps;
        connections.sort_by(|a, b| rate(b).total_cmp(&rate(a)).then(a.token.0.cmp(&b.token.0)));
        Update {
            time: snapshot.time,
            interval_s: snapshot.interval_s,
            paths,
            connections,
            omitted: 0,
            events: Vec::new(),
            captures,
        }
    }

    /// Leaves out the connections that carry least beyond the number that a page can show.
    pub(super) fn shorten(&mut self) {
        self.omitted = self.connections.len().saturating_sub(MAX_CONNECTIONS);
        self.connections.truncate(MAX_CONNECTIONS);
    }
}

impl Connection {
    fn new(of: &ConnectionSnapshot, carried: Option<&(&Report, &ConnectionReport)>) -> Connection {
        let report = carried.map(|(_, connection)| connection);
        let socket = of.connection.as_ref();
        Connection {
            token: of.token,
            program: None,
            gateway: carried.map(|(report, _)| report.command.clone()),
            local: socket.map(|socket| socket.local),
            remote: socket.map(|socket| socket.remote),
            protection: report.map_or(Protection::None, |report| report.mode.into()),
            level: report.and_then(|report| report.level.clone()),
            identity: report.and_then(|report| report.identity.clone()),
            fallback: socket.is_some_and(|socket| socket.fallback),
            sent_bps: of.sent_bps,
            received_bps: of.received_bps,
            subflows: of.subflows.iter().map(Subflow::new).collect(),
        }
    }
}

impl Subflow {
    fn new(of: &SubflowSnapshot) -> Subflow {
        let tcp = &of.subflow.tcp;
        let rtt_ms = f64::from(tcp.rtt_us) / 1e3;
        let (round_trips, least) = SILENT;
        let limit = (round_trips * rtt_ms).max(least);
        Subflow {
            id: of.subflow.id,
            path: path_name(&of.subflow),
            local: of.subflow.local,
            remote: of.subflow.remote,
            backup: of.subflow.backup(),
            sent_bps: of.sent_bps,
            received_bps: of.received_bps,
            retransmitted_bps: of.retransmitted_bps,
            rtt_ms,
            share: of.share,
            retransmissions: of.interval_retransmissions,
            scheduling: of.scheduling.as_ref().map(|steered| steered.text()),
            silent: tcp.unacked > 0 && f64::from(tcp.last_ack_ms) > limit,
            closed: of.subflow.closed.is_some(),
        }
    }
}

fn path_name(subflow: &plait_linux::diag::Subflow) -> String {
    subflow.interface.clone().unwrap_or_else(|| subflow.local.ip().to_canonical().to_string())
}

/// The interfaces that have a role, and further paths that carry subflows, by name.
fn paths(
    connections: &[Connection],
    roles: &BTreeMap<String, Role>,
    quotas: &BTreeMap<String, QuotaStatus>,
) -> Vec<Path> {
    let mut carried: BTreeMap<&str, Vec<(Protection, &Subflow)>> =
        roles.keys().map(|name| (name.as_str(), Vec::new())).collect();
    for connection in connections {
        for subflow in &connection.subflows {
            carried.entry(&subflow.path).or_default().push((connection.protection, subflow));
        }
    }
    let path = |(name, subflows): (&str, Vec<_>)| Path {
        quota: quotas.get(name).cloned(),
        ..Path::new(name, roles.get(name).copied(), &subflows)
    };
    carried.into_iter().map(path).collect()
}

impl Path {
    fn new(name: &str, role: Option<Role>, subflows: &[(Protection, &Subflow)]) -> Path {
        let sum = |of: fn(&Subflow) -> f64| subflows.iter().map(|(_, subflow)| of(subflow)).sum::<f64>();
        let open = subflows.iter().filter(|(_, subflow)| !subflow.closed).count();
        let rtts_ms = sum(|subflow| if subflow.closed { 0.0 } else { subflow.rtt_ms });
        let sent_bps = sum(|subflow| subflow.sent_bps);
        let mut exposure = Exposure::default();
        for (protection, subflow) in subflows {
            exposure.add(*protection, subflow.sent_bps + subflow.received_bps);
        }
        Path {
            name: name.to_owned(),
            role,
            subflows: open,
            sent_bps,
            received_bps: sum(|subflow| subflow.received_bps),
            rtt_ms: (open > 0).then(|| rtts_ms / open as f64),
            retransmitted: (sent_bps > 0.0).then(|| sum(|subflow| subflow.retransmitted_bps) / sent_bps),
            exposure,
            quota: None,
        }
    }
}
