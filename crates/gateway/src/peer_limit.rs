//! Limits the connections that one peer may have, so that nobody takes the places of all others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plait_proto::sealed::peer_network;

/// Connections by the network of the peer.
pub(crate) struct PeerLimit {
    max: usize,
    by_network: Mutex<HashMap<IpAddr, usize>>,
}

/// The peer has as many connections as it may have.
#[derive(Debug, thiserror::Error)]
#[error("{network} has {max} connections already (`--max-connections-per-peer`)")]
pub(crate) struct TooManyConnections {
    network: IpAddr,
    max: usize,
}

/// A place that a connection takes until it is dropped.
pub(crate) struct Place<'a> {
    limit: &'a PeerLimit,
    network: IpAddr,
}

impl PeerLimit {
    /// A limit of `max` connections, at least one.
    pub(crate) fn new(max: usize) -> PeerLimit {
        PeerLimit { max, by_network: Mutex::default() }
    }

    pub(crate) fn admit(&self, peer: IpAddr) -> Result<Place<'_>, TooManyConnections> {
        let network = peer_network(peer);
        let mut by_network = self.connections();
        let connections = by_network.entry(network).or_default();
        if *connections >= self.max {
            return Err(TooManyConnections { network, max: self.max });
        }
        *connections += 1;
        Ok(Place { limit: self, network })
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.by_network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut by_network = self.limit.connections();
        if let Some(connections) = by_network.get_mut(&self.network) {
            *connections -= 1;
            if *connections == 0 {
                by_network.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_network_has_its_places() {
        let limit = PeerLimit::new(2);
        let admit = |peer: &str| limit.admit(peer.parse().expect("an address"));
        let (_one, two) = (admit("2001:db8::1").expect("a place"), admit("2001:db8::2").expect("a place"));
        let error = admit("2001:db8::3").map(drop).expect_err("no place");
        assert!(error.to_string().starts_with("2001:db8:: has 2 connections already"), "{error}");
        let other = admit("192.0.2.1").expect("a place of its own");
        drop((two, other));
        assert!(admit("2001:db8::3").is_ok());
        assert_eq!(limit.connections().values().sum::<usize>(), 1);
    }
}
