//! Gathers facts: settings of this host, one connection to the target, and probes of paths that carry no subflow.

mod attempt;
pub(crate) mod paths;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use plait_linux::interfaces::{Interface, interfaces};
use plait_linux::mptcp::{Protocol, stream_socket};
use plait_linux::packets::PacketTap;
use plait_linux::pm::PathManager;
use plait_linux::{congestion_control, netlink, pm, sysctl};
use socket2::Domain;

use crate::facts::{Facts, Host, Mptcp};

/// Why facts could not be gathered.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// No packets can be received.
    #[error("cannot see this host's packets: {0}; this requires root, or CAP_NET_RAW and CAP_NET_ADMIN")]
    Tap(io::Error),
    /// No packets can be sent.
    #[error("cannot send probes by {interface}: {reason}; this requires root, or CAP_NET_RAW")]
    Probe {
        /// The interface.
        interface: String,
        /// The kernel's reason.
        reason: io::Error,
    },
    /// The target is this host.
    #[error("expected another host, got {0}, which is this one")]
    ThisHost(IpAddr),
    /// A named interface does not exist.
    #[error("expected the name of an interface that is up, got {0}")]
    NoInterface(String),
    /// Interfaces or routes cannot be read.
    #[error("cannot read interfaces and routes: {0}")]
    Netlink(#[from] netlink::Error),
    /// Limits and endpoints cannot be read.
    #[error(transparent)]
    PathManager(#[from] pm::Error),
    /// A setting or socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Gathers facts about the paths to `target`: those by the interfaces with these names or, if there are none, by all that have a
/// route to it or an MPTCP endpoint. Takes a few seconds, longer if there are faults.
///
/// Opens a connection to the target, sends nothing on it, and closes it; sends SYNs by raw sockets.
///
/// # Errors
/// See [`GatherError`]. A target that does not answer is a fact, not an error.
pub fn gather(target: SocketAddr, names: &[String]) -> Result<Facts, GatherError> {
    let interfaces = interfaces()?;
    check_target(target, &interfaces, names)?;
    let tap = PacketTap::open().map_err(GatherError::Tap)?;
    let (host, endpoints) = host(target)?;
    let find = |announced: &[SocketAddr]| paths::find(target, announced, &interfaces, names, &endpoints);

    let wanted: Vec<IpAddr> = find(&[])?.paths.iter().map(|path| path.address).collect();
    let connection = match host.mptcp {
        Mptcp::Enabled => Some(attempt::connect(&tap, target, &wanted)?),
        Mptcp::Disabled | Mptcp::Unsupported => None,
    };
    let announced = connection.as_ref().map_or(&[][..], |connection| &connection.announced);
    let paths::Found { mut paths, unused_interfaces, down_interfaces } = find(announced)?;
    if let Some(connection) = &connection {
        for path in &mut paths {
            paths::probe(&tap, target, connection, path)
                .map_err(|reason| GatherError::Probe { interface: path.interface.clone(), reason })?;
        }
    }
    let chosen = !names.is_empty();
    Ok(Facts { target, host, paths, chosen, unused_interfaces, down_interfaces, connection })
}

/// Whether the target is another host, and the named interfaces exist.
pub(crate) fn check_target(
    target: SocketAddr,
    interfaces: &[Interface],
    names: &[String],
) -> Result<(), GatherError> {
    let own = interfaces.iter().any(|interface| interface.has_address(target.ip()));
    if own || target.ip().is_loopback() || target.ip().is_unspecified() {
        return Err(GatherError::ThisHost(target.ip()));
    }
    let is_up = |name: &String| interfaces.iter().any(|known| known.up && known.name == *name);
    match names.iter().find(|name| !is_up(name)) {
        Some(name) => Err(GatherError::NoInterface(name.clone())),
        None => Ok(()),
    }
}

/// This host's settings, and its endpoints.
fn host(target: SocketAddr) -> Result<(Host, Vec<pm::Endpoint>), GatherError> {
    let mptcp = match stream_socket(Domain::for_address(target))?.1 {
        Protocol::Mptcp => Mptcp::Enabled,
        Protocol::Tcp if sysctl::read("net/mptcp/enabled").is_ok() => Mptcp::Disabled,
        Protocol::Tcp => Mptcp::Unsupported,
    };
    let manager = match PathManager::open() {
        Ok(manager) => Some(manager),
        Err(pm::Error::Missing) => None,
        Err(error) => return Err(error.into()),
    };
    let limits = manager.as_ref().map(PathManager::limits).transpose()?;
    let endpoints = manager.as_ref().map(PathManager::endpoints).transpose()?;
    let host = Host {
        mptcp,
        kernel_path_manager: sysctl::read("net/mptcp/pm_type").map_or(true, |kind| kind == "0"),
        limits: limits.unwrap_or(pm::Limits { subflows: 0, add_addr_accepted: 0 }),
        congestion_control: congestion_control::default_congestion_control()?,
        allowed_congestion_control: sysctl::read("net/ipv4/tcp_allowed_congestion_control")
            .unwrap_or_default(),
        firewall: firewall(),
    };
    Ok((host, endpoints.unwrap_or_default()))
}

fn firewall() -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output = Command::new("nft").args(["-a", "list", "ruleset"]).env("PATH", path).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The name of an interface.
fn name_of(interfaces: &[Interface], index: u32) -> String {
    let found = interfaces.iter().find(|interface| interface.index == index);
    found.map_or_else(|| format!("interface {index}"), |interface| interface.name.clone())
}
