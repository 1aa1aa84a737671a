//! The observations of a repetition, from which its metrics are computed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plait_config::Role;
use plait_trace::{
    Capture, Connection, Connections, Direction, Interval, Path as NetworkPath, Protocol, ReadOptions,
    Subflow,
};
use plait_wire::capture::{CaptureReader, Timestamp};

use super::measure::Selection;
use super::merge::{LinkIndex, Way, merge};
use super::results::StepResult;

/// The interval length for throughput.
pub(super) const INTERVAL: Duration = Duration::from_millis(10);

/// The observations of a repetition.
#[derive(Debug)]
pub(super) struct Observations {
    /// The captures of each captured host, in the order of the file.
    pub(super) views: Vec<HostCapture>,
    /// The steps that ran.
    pub(super) steps: Vec<StepResult>,
    /// When the clock started.
    pub(super) clock: Timestamp,
    /// Scheduled event times, and when the events happened.
    pub(super) events: Vec<(Duration, Timestamp)>,
    /// The increase of kernel counters, by host.
    pub(super) counters: BTreeMap<String, BTreeMap<String, i64>>,
    /// The directory that relative paths refer to.
    pub(super) directory: PathBuf,
}

/// The captures of one host.
#[derive(Debug)]
pub(super) struct HostCapture {
    pub(super) host: String,
    /// The links, numbered as in [`LinkIndex`].
    links: Vec<String>,
    link_index: LinkIndex,
    /// The connections in the merged capture.
    found: Connections,
    /// The connections in the capture of each link, if a metric requires them.
    by_link: Option<Connections>,
}

/// A capture of a link.
#[derive(Debug, Clone)]
pub(super) struct CapturedLink {
    pub(super) link: String,
    pub(super) role: Role,
    pub(super) file: PathBuf,
}

/// A connection with the direction and subflows that a [`Selection`] covers.
pub(super) struct Chosen<'a> {
    pub(super) connection: &'a Connection,
    pub(super) direction: Direction,
    /// Indices of the subflows.
    pub(super) subflows: Vec<usize>,
    pub(super) view: &'a HostCapture,
}

impl HostCapture {
    /// Reads the captures of a host's links and merges them into the file `merged`.
    pub(super) fn read(
        host: &str,
        captures: &[CapturedLink],
        merged: &Path,
        by_link: bool,
    ) -> io::Result<Self> {
        let files: Vec<_> = captures.iter().map(|capture| capture.file.clone()).collect();
        let link_index = merge(&files, merged)?;
        let whole = capture(host, Role::Untrusted, merged)?;
        let headers = ReadOptions { payload_limit: 0, interval: Some(INTERVAL), ..ReadOptions::default() };
        let found = Connections::read(vec![whole], headers).map_err(io::Error::other)?;
        let by_link = match by_link {
            true => {
                let captures = captures.iter().map(|link| capture(&link.link, link.role, &link.file));
                let options = ReadOptions { payload_limit: u64::MAX, ..ReadOptions::default() };
                let captures = captures.collect::<io::Result<_>>()?;
                Some(Connections::read(captures, options).map_err(io::Error::other)?)
            }
            false => None,
        };
        let links = captures.iter().map(|capture| capture.link.clone()).collect();
        Ok(Self { host: host.into(), links, link_index, found, by_link })
    }

    /// The link that carried most of a subflow's traffic in a direction.
    fn link(&self, subflow: &Subflow, direction: Direction) -> Option<&str> {
        Some(&self.links[self.link_index.link(subflow.ends(direction))?])
    }

    /// The main connection.
    pub(super) fn main_connection(&self) -> Option<&Connection> {
        main_connection_to(&self.found, None)
    }
}

fn capture(name: &str, role: Role, file: &Path) -> io::Result<Capture<BufReader<File>>> {
    let reader = CaptureReader::new(BufReader::new(File::open(file)?)).map_err(io::Error::other)?;
    Ok(Capture { path: NetworkPath { name: name.into(), role }, reader })
}

impl Observations {
    /// The connection, direction and subflows that a selection covers.
    pub(super) fn choose(&self, of: &Selection) -> Result<Chosen<'_>, String> {
        let view = match &of.at {
            Some(host) => self.views.iter().find(|view| view.host == *host),
            None => self.views.first(),
        };
        let view = view.ok_or("nothing was captured")?;
        let connection =
            main_connection_to(&view.found, of.port).ok_or_else(|| no_connection(view, of.port))?;
        let direction = of.direction.unwrap_or_else(|| busier_direction(connection));
        let subflows = connection.subflows.iter().enumerate().filter(|(index, subflow)| {
            let on_path = of.paths.is_empty()
                || view.link(subflow, direction).is_some_and(|link| of.paths.iter().any(|path| path == link));
            let to_address = of.server_address.is_none_or(|wanted| subflow.server.ip() == wanted);
            on_path && to_address && of.subflow.is_none_or(|wanted| wanted == index + 1)
        });
        let subflows = subflows.map(|(index, _)| index).collect();
        Ok(Chosen { connection, direction, subflows, view })
    }

    /// The same connection in the capture of each link.
    pub(super) fn choose_by_link(
        &self,
        of: &Selection,
    ) -> Result<(&Connections, &Connection, Direction), String> {
        let chosen = self.choose(of)?;
        let found = chosen.view.by_link.as_ref().ok_or("the links were not read by themselves")?;
        let connection =
            main_connection_to(found, of.port).ok_or_else(|| no_connection(chosen.view, of.port))?;
        Ok((found, connection, chosen.direction))
    }
}

fn no_connection(view: &HostCapture, port: Option<u16>) -> String {
    let to = port.map_or(String::new(), |port| format!(" to port {port}"));
    format!("no TCP connection{to} was captured on {}", view.host)
}

/// The main connection to a port, or to any: MPTCP before TCP, then the one with most bytes.
fn main_connection_to(found: &Connections, port: Option<u16>) -> Option<&Connection> {
    let fits = |connection: &&Connection| port.is_none_or(|port| connection.server().port() == port);
    found.connections.iter().filter(fits).max_by_key(|connection| {
        let carried: u64 = Direction::BOTH.map(|way| carried(connection, way)).iter().sum();
        (connection.protocol != Protocol::Tcp, carried, std::cmp::Reverse(connection.id))
    })
}

fn carried(connection: &Connection, direction: Direction) -> u64 {
    connection.subflows.iter().map(|subflow| subflow.sent(direction).bytes).sum()
}

fn busier_direction(connection: &Connection) -> Direction {
    let [up, down] = Direction::BOTH.map(|way| carried(connection, way));
    if up >= down { Direction::ClientToServer } else { Direction::ServerToClient }
}

impl<'a> Chosen<'a> {
    /// The subflows.
    pub(super) fn subflows(&self) -> impl Iterator<Item = &'a Subflow> {
        self.subflows.iter().map(|index| &self.connection.subflows[*index])
    }

    /// What the subflows sent in this direction, by interval.
    pub(super) fn intervals(&self) -> impl Iterator<Item = &'a Interval> {
        let intervals = self.view.found.intervals.iter();
        intervals.filter(|interval| {
            interval.connection == self.connection.id
                && interval.direction == self.direction
                && self.subflows.contains(&interval.subflow)
        })
    }

    /// The time of the connection's first packet.
    pub(super) fn start(&self) -> Timestamp {
        self.connection.subflows.iter().map(|subflow| subflow.first_seen).min().unwrap_or_default()
    }

    /// The time of the connection's last packet.
    pub(super) fn end(&self) -> Timestamp {
        self.connection.subflows.iter().map(|subflow| subflow.last_seen).max().unwrap_or_default()
    }

    /// The times at which the receiver acknowledged new data.
    pub(super) fn advances(&self) -> Vec<Timestamp> {
        let subflows = self.connection.subflows.iter();
        let ways: Vec<Way> = subflows.map(|subflow| subflow.ends(self.direction.reverse())).collect();
        let multipath = self.connection.protocol != Protocol::Tcp && self.connection.fallback.is_none();
        self.view.link_index.advances(&ways, multipath)
    }
}
