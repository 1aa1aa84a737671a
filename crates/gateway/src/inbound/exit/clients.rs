//! The clients of an exit, and what they take of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plait_proto::identity::PublicKey;
use plait_proto::sealed::peer_network;

use super::settings::ClientLimits;
use crate::meter::Meter;

/// Clients beyond which those without a connection are forgotten, with what they have carried today.
const MAX_IDLE: usize = 65_536;

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::inbound) enum ClientId {
    /// A listed key.
    Key(PublicKey),
    /// The network of anybody.
    Network(IpAddr),
}

impl ClientId {
    /// `key`: that of a listed client.
    pub(in crate::inbound) fn new(key: Option<PublicKey>, address: IpAddr) -> ClientId {
        key.map_or_else(|| ClientId::Network(peer_network(address)), ClientId::Key)
    }

    /// The key of a listed client.
    pub(super) fn key(&self) -> Option<&PublicKey> {
        match self {
            ClientId::Key(key) => Some(key),
            ClientId::Network(_) => None,
        }
    }
}

/// Clients with connections now, or today.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<HashMap<ClientId, Arc<Client>>>);

#[derive(Debug)]
struct Client {
    connections: AtomicU32,
    meter: Arc<Meter>,
}

/// A connection of a client, until it is dropped.
#[derive(Debug)]
pub(in crate::inbound) struct Admission(Arc<Client>);

impl Clients {
    /// A further connection of a client; `None` if it has reached its limit of connections or bytes.
    pub(super) fn admit(&self, id: ClientId, limits: ClientLimits) -> Option<Admission> {
        let ClientLimits { max_connections, max_rate, max_bytes_per_day } = limits;
        let mut by_id = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if by_id.len() >= MAX_IDLE {
            by_id.retain(|_, client| client.connections.load(Ordering::Relaxed) > 0);
        }
        let client = by_id.entry(id).or_insert_with(|| {
            let meter = Arc::new(Meter::new(max_rate, max_bytes_per_day));
            Arc::new(Client { connections: AtomicU32::new(0), meter })
        });
        let connections = client.connections.load(Ordering::Relaxed);
        if max_connections.is_some_and(|max| connections >= max) || client.meter.is_exhausted() {
            return None;
        }
        // Only under the lock.
        client.connections.fetch_add(1, Ordering::Relaxed);
        Some(Admission(Arc::clone(client)))
    }
}

impl Admission {
    /// What limits and counts its bytes.
    pub(in crate::inbound) fn meter(&self) -> &Arc<Meter> {
        &self.0.meter
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_limits() {
        let limits =
            ClientLimits { max_connections: Some(2), max_rate: None, max_bytes_per_day: Some(1_000) };
        let clients = Clients::default();
        let [one, other] = [1, 2].map(|byte| ClientId::Key(PublicKey::new([byte; 32])));
        let admitted =
            [clients.admit(one, limits).expect("the first"), clients.admit(one, limits).expect("the second")];
        assert!(clients.admit(one, limits).is_none());
        let others = clients.admit(other, limits).expect("the first of another");
        drop(admitted);
        let again = clients.admit(one, limits).expect("they ended");
        assert!(again.meter().admit(1_000));
        assert!(clients.admit(one, limits).is_none());
        assert!(others.meter().admit(999));
        assert!(clients.admit(other, limits).is_some());
    }

    #[test]
    fn a_client_without_a_listed_key_is_its_network() {
        let of = |address: &str| ClientId::new(None, address.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        let key = PublicKey::new([7; 32]);
        assert_eq!(ClientId::new(Some(key), "192.0.2.1".parse().expect("an address")), ClientId::Key(key));
    }
}
