//! What a controller observes: the connections of this host and their rates.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Instant;

use plait_linux::diag::{self, Carried, Grown, Growth, Watch};
use plait_linux::interfaces::{self, Interface};
use plait_linux::mptcp::Token;
use serde::Serialize;

use super::error::ControllerError;
use crate::engine::{Flow, FourTuple};

/// This host's MPTCP connections at one point in time. Rates are bytes per second since the previous view, 0 in the
/// first.
#[derive(Clone, Debug, Serialize)]
pub struct View {
    /// Unix time in seconds.
    pub time: f64,
    /// Seconds since the previous view, 0 in the first.
    pub elapsed: f64,
    /// The interfaces except loopback, by name.
    pub paths: BTreeMap<String, PathView>,
    /// The connections, by token.
    pub connections: Vec<ConnectionView>,
    /// The subflows that the packet path tracks, including forwarded ones; empty unless a loaded policy needs tracking,
    /// for example with the actor `record`.
    pub flows: Vec<Flow>,
}

/// An interface and the traffic of its subflows. Byte counts start with the controller's first view and include closed
/// subflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PathView {
    /// The interface's index.
    pub index: u32,
    /// It is up and has a carrier.
    pub running: bool,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Bytes per second sent.
    pub send_rate: f64,
    /// Bytes per second received.
    pub receive_rate: f64,
}

/// A connection with its statistics.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionView {
    /// The token at this host.
    pub token: Token,
    #[serde(flatten)]
    figures: diag::Connection,
    /// Its subflows.
    pub subflows: Vec<SubflowView>,
}

/// A subflow with its TCP statistics.
#[derive(Clone, Debug, Serialize)]
pub struct SubflowView {
    #[serde(flatten)]
    figures: diag::Subflow,
    /// Bytes per second sent, retransmissions included.
    pub send_rate: f64,
    /// Bytes per second received.
    pub receive_rate: f64,
}

impl View {
    /// The subflows of all connections.
    pub fn subflows(&self) -> impl Iterator<Item = &SubflowView> {
        self.connections.iter().flat_map(|connection| &connection.subflows)
    }
}

impl Deref for ConnectionView {
    type Target = diag::Connection;

    fn deref(&self) -> &diag::Connection {
        &self.figures
    }
}

impl Deref for SubflowView {
    type Target = diag::Subflow;

    fn deref(&self) -> &diag::Subflow {
        &self.figures
    }
}

impl From<&SubflowView> for FourTuple {
    fn from(subflow: &SubflowView) -> FourTuple {
        FourTuple { local: subflow.local, remote: subflow.remote }
    }
}

/// Takes consecutive views.
#[derive(Debug)]
pub(super) struct Sampler {
    watch: Watch,
    growth: Growth,
    last: Option<Instant>,
    carried: BTreeMap<String, Carried>,
}

impl Sampler {
    pub(super) fn open() -> Result<Sampler, ControllerError> {
        Ok(Sampler { watch: Watch::open()?, growth: Growth::default(), last: None, carried: BTreeMap::new() })
    }

    pub(super) fn view(&mut self, flows: Vec<Flow>) -> Result<View, ControllerError> {
        let samples = self.watch.sample()?;
        let now = Instant::now();
        let elapsed = self.last.replace(now).map_or(0.0, |last| (now - last).as_secs_f64());
        let grown = self.growth.since_last(&samples).unwrap_or_default();
        let time = samples.first().map_or_else(unix_time, |sample| sample.time);
        let interfaces = interfaces::interfaces().map_err(ControllerError::Interfaces)?;
        let paths = self.paths(&interfaces, &samples, &grown, elapsed);
        let rate = |bytes| rate(bytes, elapsed);
        let subflow = |figures: diag::Subflow| {
            let grown = grown.subflows.get(&figures.id).copied().unwrap_or_default();
            let (send_rate, receive_rate) = (rate(grown.bytes_sent), rate(grown.bytes_received));
            SubflowView { figures, send_rate, receive_rate }
        };
        let connections = samples.into_iter().filter_map(|sample| {
            let open = sample.subflows.into_iter().filter(|subflow| subflow.closed.is_none());
            let subflows = open.map(subflow).collect();
            Some(ConnectionView { token: sample.token, figures: sample.connection?, subflows })
        });
        Ok(View { time, elapsed, paths, connections: connections.collect(), flows })
    }

    fn paths(
        &mut self,
        interfaces: &[Interface],
        samples: &[diag::Sample],
        grown: &Grown,
        elapsed: f64,
    ) -> BTreeMap<String, PathView> {
        let mut now: BTreeMap<&str, Carried> = BTreeMap::new();
        for subflow in samples.iter().flat_map(|sample| &sample.subflows) {
            let (Some(interface), Some(grown)) = (&subflow.interface, grown.subflows.get(&subflow.id)) else {
                continue;
            };
            for sum in [now.entry(interface).or_default(), self.carried.entry(interface.clone()).or_default()]
            {
                sum.bytes_sent += grown.bytes_sent;
                sum.bytes_received += grown.bytes_received;
            }
        }
        let path = |interface: &Interface| {
            let carried = self.carried.get(&interface.name).copied().unwrap_or_default();
            let now = now.get(interface.name.as_str()).copied().unwrap_or_default();
            PathView {
                index: interface.index,
                running: interface.running,
                bytes_sent: carried.bytes_sent,
                bytes_received: carried.bytes_received,
                send_rate: rate(now.bytes_sent, elapsed),
                receive_rate: rate(now.bytes_received, elapsed),
            }
        };
        let seen = interfaces.iter().filter(|interface| !interface.loopback);
        seen.map(|interface| (interface.name.clone(), path(interface))).collect()
    }
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
}

fn unix_time() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
