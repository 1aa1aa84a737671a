//! Topologies, checked: every name resolves, and every end has its addresses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plait_config::{Diagnostic, Source, Span};
use plait_emulator::{Adjustment, Backend, LinkSpec, Toward};
use plait_wire::Role;
use serde::Deserialize;

use super::address::Address;
use super::document::next_name;
use super::side::Side;

/// Hosts, links and services, checked: every name leads somewhere, and every end has its addresses.
#[derive(Debug, Clone)]
pub struct Topology {
    /// What is to be behind the links; `None` leaves that to each link.
    pub backend: Option<Backend>,
    /// The hosts, in the file's order.
    pub hosts: Vec<Host>,
    /// The links, in the file's order.
    pub links: Vec<Link>,
    /// The services, in the order in which they start.
    pub services: Vec<Service>,
    pub(super) source: Source,
    pub(super) backend_span: Option<Span>,
}

/// A host of a topology.
#[derive(Debug, Clone)]
pub struct Host {
    /// 1 to 32 letters, digits or underscores.
    pub name: String,
    /// Whether it passes packets on: a router.
    pub forward: bool,
    /// Limits of the kernel's path manager; the kernel's own if `None`.
    pub mptcp: Option<MptcpLimits>,
    /// Kernel settings of its namespace (`net.*`) and their values.
    pub sysctls: Vec<Setting>,
    /// The congestion control of its connections and subflows, by route; the kernel's default if `None`.
    pub congestion_control: Option<String>,
    pub(crate) span: Span,
}

/// How much the kernel's path manager may do for one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MptcpLimits {
    /// Subflows beyond the initial one, 0 to 8.
    pub subflows: u16,
    /// Addresses announced by the peer that lead to subflows, 0 to 8.
    pub add_addr_accepted: u16,
}

/// A kernel setting.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its dotted name.
    pub name: String,
    /// Its value.
    pub value: String,
    pub(crate) span: Span,
}

/// A link of a topology.
#[derive(Debug, Clone)]
pub struct Link {
    /// 1 to 15 letters, digits or underscores.
    pub name: String,
    /// What the path over it is to an experiment.
    pub role: Role,
    /// One end.
    pub a: End,
    /// The other.
    pub b: End,
    /// Its emulation.
    pub spec: LinkSpec,
    /// What happens to it, in the order of time.
    pub events: Vec<Event>,
    pub(crate) span: Span,
}

/// An end of a link.
#[derive(Debug, Clone)]
pub struct End {
    /// The host's name.
    pub host: String,
    /// The interface's name there.
    pub interface: String,
    /// The interface's addresses.
    pub addresses: Vec<Address>,
    /// If not empty, the addresses are MPTCP endpoints with these flags.
    pub endpoint: Vec<EndpointFlag>,
}

/// What an MPTCP endpoint is for, as `ip mptcp endpoint` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointFlag {
    /// Announce the address to peers.
    Signal,
    /// Make a subflow from the address.
    Subflow,
    /// Subflows from the address are backups.
    Backup,
    /// Make subflows from the address to every address of the peer.
    Fullmesh,
}

/// Something that happens to a link.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// When, from the start of the topology's clock.
    pub at: Duration,
    /// What.
    pub action: Action,
}

/// What may happen to a link, or to the interface at one of its ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Frames vanish, and neither end is told.
    Blackhole,
    /// The end of a blackhole.
    Restore,
    /// Both ends see that there is no carrier.
    CarrierDown,
    /// Both ends see the carrier again.
    CarrierUp,
    /// A host switches its interface off.
    InterfaceDown(Side),
    /// A host switches its interface on again, with the addresses, routes and endpoints it had.
    InterfaceUp(Side),
    /// A host loses the addresses of its interface, and their routes and endpoints.
    AddressRemoved(Side),
    /// A host has them again.
    AddressAdded(Side),
    /// Properties of the link change.
    Adjust(Toward, Adjustment),
}

/// A program that runs on a host as long as the lab.
#[derive(Debug, Clone)]
pub struct Service {
    /// 1 to 32 letters, digits or underscores.
    pub name: String,
    /// The host's name.
    pub host: String,
    /// What runs.
    pub program: Program,
    /// Whether its sockets are made MPTCP ones, by `mptcpize run`.
    pub mptcp: bool,
    /// It is ready once this TCP port listens, if there is one,
    pub port: Option<u16>,
    /// and this program, with its arguments, has ended well on the host, if there is one. `plait` is this program.
    pub ready: Option<Vec<String>>,
    pub(crate) span: Span,
}

/// What a service runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A program and its arguments. `plait` is this program.
    Command(Vec<String>),
    /// A web server whose `/document` has this many random bytes.
    Nginx {
        /// Bytes.
        document: u64,
    },
    /// An iperf3 server.
    Iperf3,
    /// `plait serve`.
    Serve {
        /// Where it listens.
        listen: SocketAddr,
        /// The service behind it, `ADDRESS:PORT`.
        to: String,
        /// Its mode; plait's default if `None`.
        mode: Option<String>,
    },
}

impl Topology {
    /// The host with this name.
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// The link with this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// A text with the addresses that `${HOST.LINK}` stands for filled in: the first of the host on the link, IPv4 if
    /// it has one there; `${HOST.LINK.v6}` is the first IPv6 one.
    ///
    /// # Errors
    /// There is no such address; the text says what there is.
    pub fn resolve(&self, text: &str) -> Result<String, String> {
        resolve(&self.links, text)
    }

    /// A mistake that only shows when the topology is built.
    pub(crate) fn diagnostic(&self, span: &Span, message: impl Into<String>) -> Diagnostic {
        self.source.diagnostic(span.clone(), message)
    }

    /// Where the backend was asked for, if it was in the file.
    pub(crate) fn backend_span(&self) -> Option<&Span> {
        self.backend_span.as_ref()
    }
}

impl Link {
    /// One of its ends.
    pub fn end(&self, side: Side) -> &End {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

impl EndpointFlag {
    /// The word that `ip mptcp endpoint` takes.
    pub fn word(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::Subflow => "subflow",
            Self::Backup => "backup",
            Self::Fullmesh => "fullmesh",
        }
    }
}

pub(super) fn resolve(links: &[Link], text: &str) -> Result<String, String> {
    let mut resolved = String::new();
    let mut rest = text;
    while let Some((before, name, after)) = next_name(rest) {
        let address = address_named(links, name).ok_or_else(|| {
            let ends = links.iter().flat_map(|link| [(&link.a, link), (&link.b, link)]);
            let known: Vec<_> = ends.map(|(end, link)| format!("{}.{}", end.host, link.name)).collect();
            format!("expected an address of a host on a link ({}), got \"${{{name}}}\"", known.join(", "))
        })?;
        resolved.push_str(before);
        resolved.push_str(&address.to_string());
        rest = after;
    }
    Ok(resolved + rest)
}

fn address_named(links: &[Link], name: &str) -> Option<IpAddr> {
    let mut words = name.split('.');
    let (host, link, family) = (words.next()?, words.next()?, words.next());
    let link = links.iter().find(|candidate| candidate.name == link)?;
    let end = [&link.a, &link.b].into_iter().find(|end| end.host == host)?;
    let mut addresses = end.addresses.iter().map(|address| address.ip);
    match (family, words.next()) {
        (None, None) => addresses.clone().find(IpAddr::is_ipv4).or_else(|| addresses.next()),
        (Some("v4"), None) => addresses.find(IpAddr::is_ipv4),
        (Some("v6"), None) => addresses.find(IpAddr::is_ipv6),
        _ => None,
    }
}
