//! An exit: connects to the destinations that clients name, and carries their connections there.
//!
//! A name is resolved here, and what is connected to is one of the addresses that were checked afterwards: a name whose address
//! changes meanwhile leads nowhere else.

mod clients;
mod datagrams;
mod own_addresses;
mod public_addresses;
mod settings;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use plait_proto::codec::records::ExitRecord;
use plait_proto::exit::{ConnectFailure, Destination, Host, MessageError, encode_outcome};
use plait_proto::identity::PublicKey;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::warn;

pub(super) use clients::{Admission, ClientId};
pub(super) use datagrams::{Datagrams, bind as bind_datagrams};
pub use settings::{ClientLimits, ClientSettings, ExitClients, ExitSettings};

use crate::handshake::{Established, HANDSHAKE_TIMEOUT};
use crate::keepalive;
use crate::race::{alternate_families, race};
use crate::relay::{ExitRecordError, Transforms};
use crate::resolver::{nameservers, resolve};
use crate::socket::{canonical, configure, connect_tcp, send_last};
use crate::trust::{InvitedClients, InvitedClientsError, KeyMatch};
use clients::Clients;
use own_addresses::OwnAddresses;
use public_addresses::is_public;

/// How long a destination may take to answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Connects to destinations, for the clients that may use it.
#[derive(Debug)]
pub(super) struct Exit {
    settings: ExitSettings,
    own: OwnAddresses,
    clients: Clients,
    /// Those that it admits by invitations.
    invited: Option<InvitedClients>,
    /// `None`: this host refused the socket.
    datagrams: Option<Arc<Datagrams>>,
}

/// A connection was not carried on by the exit.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExitError {
    /// The client did not name a destination.
    #[error(transparent)]
    Record(#[from] ExitRecordError),
    #[error("expected a destination from the client within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    /// It has not waited for the answer.
    #[error("the client has ended the connection")]
    Gone,
    #[error("{0}: {1}")]
    Connect(Destination, ConnectFailure),
}

impl From<io::Error> for ExitError {
    fn from(error: io::Error) -> ExitError {
        ExitError::Record(error.into())
    }
}

impl Exit {
    pub(super) fn new(
        settings: ExitSettings,
        invited: Option<InvitedClients>,
        datagrams: Option<Arc<Datagrams>>,
    ) -> Exit {
        Exit { settings, own: OwnAddresses::default(), clients: Clients::default(), invited, datagrams }
    }

    /// Receives the destination of the client behind `far`, connects to it, and sends the client the outcome; `None`: that was all, as the
    /// client was admitted.
    pub(super) async fn connect(
        self: &Arc<Self>,
        peer: SocketAddr,
        far: &TcpStream,
        established: &mut Established,
    ) -> Result<Option<(TcpStream, Admission)>, ExitError> {
        let identity = established.protection.peer;
        let client = ClientId::new(identity.map(|peer| peer.key), peer.ip());
        let Established { protection, transforms, exporter, .. } = established;
        let Transforms::Records(records) = transforms else {
            return Err(io::Error::other("expected a connection in mode 'sealed'").into());
        };
        let content = timeout(HANDSHAKE_TIMEOUT, records.receive_exit(far, ExitRecord::Destination)).await;
        let content = content.map_err(|_| ExitError::Timeout)??;
        let destination = Destination::decode(&content).map_err(ExitRecordError::from)?;
        let invitation = identity.filter(|peer| peer.known == KeyMatch::Invitation).map(|peer| peer.key);
        if let Destination::Admission(client) = destination {
            let outcome = self.redeem(invitation, client).await;
            let _ = send_last(far, &records.final_outcome(&encode_outcome(outcome))).await;
            return outcome.map(|()| None).map_err(|failure| ExitError::Connect(destination, failure));
        }
        let reach = async {
            if invitation.is_some() {
                return Err(ConnectFailure::NotPermitted);
            }
            let admission = self.admit(client)?;
            let near = match (&destination, &self.datagrams, exporter) {
                (Destination::Datagrams, Some(datagrams), Some(exporter)) => {
                    datagrams.open(self, client, canonical(peer), protection.clone(), exporter).await?
                }
                _ => self.reach(client, &destination).await?,
            };
            Ok((near, admission))
        };
        let reached = tokio::select! {
            reached = reach => reached,
            () = gone(far) => return Err(ExitError::Gone),
        };
        match reached {
            Ok(reached) => {
                records.send_exit(far, ExitRecord::Outcome, &encode_outcome(Ok(()))).await?;
                Ok(Some(reached))
            }
            Err(failure) => {
                let last = records.final_outcome(&encode_outcome(Err(failure)));
                // The client learns it, or sees a reset.
                let _ = send_last(far, &last).await;
                Err(ExitError::Connect(destination, failure))
            }
        }
    }

    /// Admits a client by an invitation.
    async fn redeem(&self, invitation: Option<PublicKey>, client: PublicKey) -> Result<(), ConnectFailure> {
        let (Some(invited), Some(invitation)) = (self.invited.clone(), invitation) else {
            return Err(ConnectFailure::NotPermitted);
        };
        // It waits for the disk.
        let admitted = tokio::task::spawn_blocking(move || invited.admit(&invitation, &client)).await;
        match admitted.map_err(io::Error::other).map_err(InvitedClientsError::Write).flatten() {
            Ok(true) => {
                warn!("admitted a new client, {client}, by the invitation {invitation}");
                Ok(())
            }
            Ok(false) => Err(ConnectFailure::Invitation),
            Err(error) => {
                warn!("a client cannot be admitted: {error}");
                Err(ConnectFailure::Failed)
            }
        }
    }

    /// A further connection of a client, or association.
    fn admit(&self, client: ClientId) -> Result<Admission, ConnectFailure> {
        let limits = self.settings.of(client.key()).limits;
        self.clients.admit(client, limits).ok_or(ConnectFailure::Limit)
    }

    async fn reach(&self, client: ClientId, destination: &Destination) -> Result<TcpStream, ConnectFailure> {
        let addresses = self.addresses(destination, client).await?;
        let attempts = alternate_families(&addresses).collect();
        let near = race(attempts, |address| async move {
            timeout(CONNECT_TIMEOUT, connect_to(address)).await.map_err(|_| io::ErrorKind::TimedOut)?
        });
        near.await.map_err(|error| failure_of(&error))
    }

    /// The addresses of a destination that a client may connect to.
    async fn addresses(
        &self,
        destination: &Destination,
        client: ClientId,
    ) -> Result<Vec<SocketAddr>, ConnectFailure> {
        let found = match destination {
            // This host's configuration chose them.
            Destination::Resolver => return Ok(nameservers()),
            // It has no socket for them.
            Destination::Datagrams | Destination::Admission(_) => return Err(ConnectFailure::Failed),
            Destination::Host(Host::Address(address), port) => vec![SocketAddr::new(*address, port.get())],
            Destination::Host(Host::Name(name), port) => {
                let found = resolve(name.as_str(), port.get()).await;
                found.map_err(|_| ConnectFailure::NameNotFound)?
            }
        };
        self.permitted(client, found)
    }

    /// Those of a destination's addresses that a client may reach: public ones, and those in its `allow`.
    fn permitted(&self, client: ClientId, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ConnectFailure> {
        if found.is_empty() {
            return Err(ConnectFailure::NameNotFound);
        }
        let allow = &self.settings.of(client.key()).allow;
        let own = self.own.get().map_err(|_| ConnectFailure::Failed)?;
        let permitted = found.into_iter().filter(|address| permits(address.ip(), allow, &own));
        let permitted: Vec<SocketAddr> = permitted.collect();
        if permitted.is_empty() { Err(ConnectFailure::NotPermitted) } else { Ok(permitted) }
    }
}

fn permits(address: IpAddr, allow: &[IpNet], own: &[IpAddr]) -> bool {
    allow.iter().any(|net| net.contains(&address)) || (is_public(address) && !own.contains(&address))
}

/// Waits until the client has ended its connection without having sent more.
async fn gone(far: &TcpStream) {
    match far.peek(&mut [0]).await {
        Ok(0) | Err(_) => {}
        // Its first bytes, which are for the destination.
        Ok(_) => std::future::pending().await,
    }
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = connect_tcp(address).await?;
    configure(&stream, keepalive::IDLE)?;
    Ok(stream)
}

fn failure_of(error: &io::Error) -> ConnectFailure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => ConnectFailure::Refused,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown | io::ErrorKind::AddrNotAvailable => {
            ConnectFailure::NetworkUnreachable
        }
        // A firewall of this host refuses.
        io::ErrorKind::HostUnreachable | io::ErrorKind::PermissionDenied => ConnectFailure::HostUnreachable,
        io::ErrorKind::TimedOut => ConnectFailure::TimedOut,
        _ => ConnectFailure::Failed,
    }
}

impl From<MessageError> for ExitError {
    fn from(error: MessageError) -> ExitError {
        ExitError::Record(error.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn nets(nets: &[&str]) -> Vec<IpNet> {
        nets.iter().map(|net| net.parse().expect("a net")).collect()
    }

    #[test]
    fn special_and_own_addresses_take_a_listed_net() {
        let own: [IpAddr; 1] = ["203.0.114.1".parse().expect("an address")];
        let permits =
            |allow: &[IpNet], address: &str| permits(address.parse().expect("an address"), allow, &own);
        assert!(permits(&[], "203.0.114.2"));
        for refused in ["203.0.114.1", "10.0.0.1", "127.0.0.1", "fd00::1", "::1", "fe80::1"] {
            assert!(!permits(&[], refused), "{refused}");
        }
        let some = nets(&["10.0.0.0/8", "203.0.114.1/32", "fd00::/8"]);
        for permitted in ["203.0.114.1", "10.255.0.1", "fd00::1"] {
            assert!(permits(&some, permitted), "{permitted}");
        }
        assert!(!permits(&some, "192.168.0.1") && !permits(&some, "fc00::1"));
    }

    #[tokio::test]
    async fn names_are_checked_after_resolution() {
        let client = ClientId::new(None, "192.0.2.1".parse().expect("an address"));
        let addresses = async |name: &str, allow: &[IpNet]| {
            let each = ClientSettings { allow: allow.to_vec(), ..ClientSettings::default() };
            let settings = ExitSettings { clients: ExitClients::Any, each, by_client: BTreeMap::new() };
            let port = 80.try_into().expect("not 0");
            let name = Host::Name(name.parse().expect("a name"));
            Exit::new(settings, None, None).addresses(&Destination::Host(name, port), client).await
        };
        for name in ["localhost", "127.1", "2130706433", "0x7f000001", "10.0.0.1"] {
            assert_eq!(addresses(name, &[]).await, Err(ConnectFailure::NotPermitted), "{name}");
        }
        let listed = addresses("127.1", &nets(&["127.0.0.1/32"])).await.expect("listed");
        assert_eq!(listed, ["127.0.0.1:80".parse().expect("an address")]);
    }
}
