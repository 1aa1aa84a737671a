//! What was found out about this host, its paths to another, and one connection. Plain data: [`judge`](crate::judge) needs
//! nothing else.

use std::net::{IpAddr, SocketAddr};

use plait_linux::pm::{Endpoint, Limits};

use crate::exchange::Outcome;
use crate::hops::Trace;
use crate::mtu::PathMtu;
use crate::syn::SynKind;

/// All facts.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The host and service in question.
    pub target: SocketAddr,
    /// This host's settings.
    pub host: Host,
    /// Interfaces by which subflows could be created.
    pub paths: Vec<Path>,
    /// Whether the paths were chosen by name.
    pub chosen: bool,
    /// Interfaces with an address of the family, but no route to the target and no endpoint.
    pub unused_interfaces: Vec<String>,
    /// Interfaces with an address of the family that are down.
    pub down_interfaces: Vec<String>,
    /// One MPTCP connection; `None` if this host has no MPTCP.
    pub connection: Option<Connection>,
}

/// Settings of this network namespace.
#[derive(Clone, Debug)]
pub struct Host {
    /// Whether MPTCP sockets can be created.
    pub mptcp: Mptcp,
    /// Whether the kernel manages paths, rather than a program such as mptcpd.
    pub kernel_path_manager: bool,
    /// Limits of the kernel's path manager.
    pub limits: Limits,
    /// The default congestion control.
    pub congestion_control: String,
    /// Congestion control that every program may select.
    pub allowed_congestion_control: String,
    /// `nft -a list ruleset`; `None` without nft.
    pub firewall: Option<String>,
}

/// Whether this host has MPTCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mptcp {
    /// It does.
    Enabled,
    /// `net.mptcp.enabled` is 0.
    Disabled,
    /// The kernel does not support it.
    Unsupported,
}

/// A connection of an MPTCP socket to the target.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// Why it was not established.
    pub error: Option<String>,
    /// Its first subflow's address of this host; `None` if it was not established.
    pub local: Option<SocketAddr>,
    /// Whether it uses MPTCP.
    pub mptcp: bool,
    /// Whether the kernel used TCP because it has detected a blackhole before.
    pub blackhole: bool,
    /// SYNs with MP_CAPABLE that left this host.
    pub capable_syns: u32,
    /// Whether the SYN/ACK was without MP_CAPABLE when it arrived; `None`: there was none.
    pub stripped: Option<bool>,
    /// Whether the target accepts no further subflows to the address that was connected to (RFC 8684, 3.1, flag C).
    pub initial_address_closed: bool,
    /// Addresses that the target announced.
    pub announced: Vec<SocketAddr>,
    /// Whether the socket could be told to probe the idle peer; otherwise, there is no further subflow before the service has
    /// sent something.
    pub keepalive: bool,
    /// Subflows that were observed.
    pub subflows: Vec<Subflow>,
    /// SYNs with MP_JOIN on this host's interfaces, and their answers.
    pub joins: Vec<Join>,
}

/// A subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subflow {
    /// This host's end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Whether it was established.
    pub established: bool,
}

/// An attempt to create a subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// This host's end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Index of the interface that the SYN left by.
    pub if_index: u32,
    /// What answered it.
    pub answer: Option<JoinAnswer>,
}

/// What answered a SYN with MP_JOIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinAnswer {
    /// A SYN/ACK with MP_JOIN.
    Joined,
    /// A SYN/ACK without MP_JOIN.
    Stripped,
    /// A reset, with or without MP_TCPRST.
    Reset {
        /// Whether an MPTCP implementation sent it.
        mptcp: bool,
    },
}

/// An interface with an address of the target's family.
#[derive(Clone, Debug)]
pub struct Path {
    /// Its name.
    pub interface: String,
    /// Its index.
    pub if_index: u32,
    /// Whether routing leads to the target by it, so that the first subflow of connections uses it.
    pub first: bool,
    /// Whether it has a carrier.
    pub running: bool,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// The address that subflows start from.
    pub address: IpAddr,
    /// The endpoint with this address.
    pub endpoint: Option<Endpoint>,
    /// Addresses of the target that are reachable by it: the one in question, then announced ones.
    pub destinations: Vec<IpAddr>,
    /// The router of the route by it, if it has one.
    pub gateway: Option<IpAddr>,
    /// Name of the interface by which packets from this address leave if they are not bound to one; `None`: no route.
    pub leaves_by: Option<String>,
    /// Whether the kernel accepts answers that arrive by it.
    pub accepts_answers: bool,
    /// The effective `rp_filter`: the larger one of `all` and its own.
    pub rp_filter: u32,
    /// Whether the next hop answers ARP; `None` if that is not known.
    pub next_hop_answers: Option<bool>,
    /// SYNs to the first destination; `None` if none were needed.
    pub probes: Option<Probes>,
    /// Its routers, found by SYNs of this kind; `None` if that was not needed.
    pub trace: Option<(SynKind, Trace)>,
    /// Largest packets; `None` if not measured.
    pub path_mtu: Option<PathMtu>,
    /// Whether something listens at announced addresses that are reachable by it.
    pub listeners: Vec<(SocketAddr, Outcome)>,
}

/// What became of one SYN of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Without an MPTCP option.
    pub tcp: Outcome,
    /// With MP_CAPABLE.
    pub capable: Outcome,
    /// With MP_JOIN.
    pub join: Outcome,
}
