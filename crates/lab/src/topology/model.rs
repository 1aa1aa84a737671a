//! The checked model of a topology.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plait_config::{Diagnostic, Role, Source, Span};
use plait_emulator::{Adjustment, Backend, LinkSpec, Toward};
use serde::Deserialize;

use super::address::Address;
use super::document::next_name;
use super::side::Side;

/// A checked topology: every name resolves, and every end has its addresses.
#[derive(Debug, Clone)]
pub struct Topology {
    /// The backend of all links; `None` chooses one for each link.
    pub backend: Option<Backend>,
    /// The hosts, in the order of the file.
    pub hosts: Vec<Host>,
    /// The links, in the order of the file.
    pub links: Vec<Link>,
    /// The services, in the order in which they start.
    pub services: Vec<Service>,
    pub(super) source: Source,
    pub(super) backend_span: Option<Span>,
}

/// A host of a topology.
#[derive(Debug, Clone)]
pub struct Host {
    /// The name: 1 to 32 letters, digits or underscores.
    pub name: String,
    /// Whether it forwards packets, as a router does.
    pub forward: bool,
    /// Whether it bridges its links, as a switch or an access point does: the hosts at their other ends are neighbors, and it has
    /// no addresses itself.
    pub bridge: bool,
    /// Limits of the kernel's path manager; `None` for the kernel's defaults.
    pub mptcp: Option<MptcpLimits>,
    /// Kernel parameters of its namespace (`net.*`) and their values.
    pub sysctls: Vec<Setting>,
    /// The congestion control of its connections and subflows, set on its routes; `None` for the kernel's default.
    pub congestion_control: Option<String>,
    pub(crate) span: Span,
}

/// Limits of the kernel's path manager per connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MptcpLimits {
    /// Additional subflows, 0 to 8.
    pub subflows: u16,
    /// Accepted ADD_ADDR announcements of the peer, 0 to 8.
    pub add_addr_accepted: u16,
}

/// A kernel parameter.
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
    /// The name: 1 to 15 letters, digits or underscores.
    pub name: String,
    /// The role of the path over it.
    pub role: Role,
    /// The first end.
    pub a: End,
    /// The second end.
    pub b: End,
    /// The emulation parameters.
    pub spec: LinkSpec,
    /// The events, in the order of time.
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
    /// The flags of the MPTCP endpoints with these addresses; no endpoints if empty.
    pub endpoint: Vec<EndpointFlag>,
}

/// A flag of an MPTCP endpoint, named as in `ip mptcp endpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndpointFlag {
    /// Announce the address to peers.
    Signal,
    /// Create a subflow from the address.
    Subflow,
    /// Make subflows from the address backups.
    Backup,
    /// Create subflows from the address to every address of the peer.
    Fullmesh,
}

/// A scheduled action on a link.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The time, relative to the start of the topology's clock.
    pub at: Duration,
    /// The action.
    pub action: Action,
}

/// An action on a link, or on the interface at one of its ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Frames are dropped silently.
    Blackhole,
    /// Ends a blackhole.
    Restore,
    /// Both ends lose their carrier.
    CarrierDown,
    /// Both ends regain their carrier.
    CarrierUp,
    /// A host sets its interface down.
    InterfaceDown(Side),
    /// A host sets its interface up again, and restores its addresses, routes and endpoints.
    InterfaceUp(Side),
    /// A host removes the addresses of its interface, with their routes and endpoints.
    AddressRemoved(Side),
    /// A host adds the addresses, routes and endpoints again.
    AddressAdded(Side),
    /// Properties of the link change.
    Adjust(Toward, Adjustment),
}

/// A program that runs on a host for the lifetime of the lab.
#[derive(Debug, Clone)]
pub struct Service {
    /// The name: 1 to 32 letters, digits or underscores.
    pub name: String,
    /// The host's name.
    pub host: String,
    /// The program.
    pub program: Program,
    /// Whether `mptcpize run` makes its sockets MPTCP sockets.
    pub mptcp: bool,
    /// The TCP port that must listen before the service is ready, if any.
    pub port: Option<u16>,
    /// The command that must succeed on the host before the service is ready, if any. `plait` runs this executable.
    pub ready: Option<Vec<String>>,
    pub(crate) span: Span,
}

/// The program of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// A program and its arguments. `plait` runs this executable.
    Command(Vec<String>),
    /// A web server with a file `/document` of random bytes.
    Nginx {
        /// The size of the file in bytes.
        document: u64,
    },
    /// An iperf3 server.
    Iperf3,
    /// `plait serve`.
    Serve {
        /// The address that it listens on.
        listen: SocketAddr,
        /// The address of the service behind it, `ADDRESS:PORT`.
        to: String,
        /// The mode; `None` for plait's default.
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

    /// Replaces each `${HOST.LINK}` in a text by the first address of the host on the link, IPv4 if it has one there,
    /// and each `${HOST.LINK.v6}` by the first IPv6 address.
    ///
    /// # Errors
    /// There is no such address; the text lists those that exist.
    pub fn resolve(&self, text: &str) -> Result<String, String> {
        resolve(&self.links, text)
    }

    /// A diagnostic for an error that is only found when the topology is built.
    pub(crate) fn diagnostic(&self, span: &Span, message: impl Into<String>) -> Diagnostic {
        self.source.diagnostic(span.clone(), message)
    }

    /// The span of the backend, if the file requests one.
    pub(crate) fn backend_span(&self) -> Option<&Span> {
        self.backend_span.as_ref()
    }
}

impl Link {
    /// One end of the link.
    pub fn end(&self, side: Side) -> &End {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

impl EndpointFlag {
    /// The keyword for `ip mptcp endpoint`.
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
