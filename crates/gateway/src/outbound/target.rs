//! What an application asks to be connected to.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::open::OpenError;
use crate::resolver::resolve;
use crate::trust::PeerName;

/// The destination of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Address(SocketAddr),
    Name(String, u16),
}

impl Target {
    /// The peer's name, by which its key is found.
    pub(super) fn peer(&self) -> PeerName {
        match self {
            Target::Address(address) => (*address).into(),
            Target::Name(name, port) => PeerName::new(name, *port),
        }
    }

    /// The addresses to try, in order.
    pub(super) async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Target::Address(address) => Ok(vec![*address]),
            Target::Name(name, port) => resolve(name, *port).await,
        }
    }

    /// Those that are not local.
    pub(super) async fn resolve_remote(&self) -> Result<Vec<SocketAddr>, OpenError> {
        let mut found = self.resolve().await.map_err(OpenError::Connect)?;
        let local = found.iter().copied().find(|address| is_local(address.ip()));
        found.retain(|address| !is_local(address.ip()));
        match local {
            Some(local) if found.is_empty() => Err(OpenError::Local(local)),
            _ => Ok(found),
        }
    }

    /// Its address, if it is one of this host.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Target::Address(address) => Some(*address).filter(|address| is_local(address.ip())),
            Target::Name(..) => None,
        }
    }
}

impl From<&PeerName> for Target {
    fn from(peer: &PeerName) -> Target {
        let (host, port) = peer.host_and_port();
        match host.parse() {
            Ok(address) => Target::Address(SocketAddr::new(address, port)),
            Err(_) => Target::Name(host.to_owned(), port),
        }
    }
}

/// Whether an address is one of this host or link only. Linux connects the unspecified address to this host.
fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.octets()[0] == 0 || address.is_link_local(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_in_every_notation() {
        for local in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "169.254.1.1", "::1", "::", "fe80::1"] {
            assert!(is_local(local.parse().unwrap()), "{local}");
        }
        for mapped in ["::ffff:127.0.0.1", "::ffff:0.0.0.0", "::ffff:169.254.1.1"] {
            assert!(is_local(mapped.parse().unwrap()), "{mapped}");
        }
        for other in ["10.0.0.1", "192.0.2.1", "2001:db8::1", "fd00::1", "::ffff:192.0.2.1"] {
            assert!(!is_local(other.parse().unwrap()), "{other}");
        }
    }
}
