//! Connections through an exit: sends it the destination, and returns its outcome as that of connect().

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU16;
use std::sync::PoisonError;

use plait_proto::codec::records::{Error, ExitRecord};
use plait_proto::exit::{ConnectFailure, Destination, Host, HostName, decode_outcome};
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::exit_url::ExitUrl;
use super::open::{OpenError, Opened, Outbound};
use super::route::Route;
use super::target::Target;
use crate::error::StartError;
use crate::handshake::EstablishError;
use crate::relay::{EXIT_ANSWER_TIMEOUT, ExitRecordError, Records, Transforms};
use crate::resolver::{DNS_PORT, is_nameserver};
use crate::trust::PeerName;

/// Connections do not reach the exit, or it refuses what is asked of it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ExitCheckError(String);

impl Outbound {
    /// The same, with its connections on this route. The exit's key must be among the pinned keys of the gateway's identities.
    ///
    /// # Errors
    /// The route is an exit, and the gateway does not require mode `sealed`.
    pub fn with_route(mut self, route: Route) -> Result<Outbound, StartError> {
        let policy = self.gateway().policy();
        if route != Route::Direct && !(policy.requires() && policy.mode() == Mode::Sealed) {
            return Err(StartError::Exit);
        }
        self.route = route;
        Ok(self)
    }

    /// The same, and what applications send goes to the exit before that has connected: a round trip earlier. If it cannot connect,
    /// their connections are reset.
    #[must_use]
    pub fn with_early_data(mut self, early_data: bool) -> Outbound {
        self.early_data = early_data;
        self
    }

    /// Opens a connection to what an application asked for. `interface`: the one that it bound the connection to.
    /// `allow_local`: whether it may be on this host, or link-local.
    pub(super) async fn open_target(
        &self,
        target: &Target,
        interface: Option<&str>,
        allow_local: bool,
    ) -> Result<Opened, OpenError> {
        match &self.route {
            Route::Direct => {
                let addresses = match allow_local {
                    true => target.resolve().await.map_err(OpenError::Connect)?,
                    false => target.resolve_remote().await?,
                };
                self.open(&target.peer(), &addresses, interface).await
            }
            Route::Exit(exit) => {
                if let Some(local) = target.local_address().filter(|_| !allow_local) {
                    return Err(OpenError::Local(local));
                }
                let destination = destination(target).map_err(OpenError::Connect)?;
                match self.early_data {
                    true => self.open_early(exit, &destination, interface).await,
                    false => self.open_through(exit, &destination, interface).await,
                }
            }
        }
    }

    /// Checks that connections reach the exit, if they go to one.
    ///
    /// # Errors
    /// Why they do not.
    pub async fn check_exit(&self) -> Result<(), ExitCheckError> {
        let Route::Exit(exit) = &self.route else { return Ok(()) };
        match self.open_through(exit, &Destination::Resolver, None).await {
            Ok(_) => Ok(()),
            // Then the exit has answered.
            Err(OpenError::Connect(error))
                if !error.get_ref().is_some_and(|inner| inner.is::<UnreachableExit>()) =>
            {
                Ok(())
            }
            Err(error) => Err(ExitCheckError(error.to_string())),
        }
    }

    /// Has the exit admit a client. The key pair of this gateway is an invitation.
    ///
    /// # Errors
    /// The exit does not, or cannot be reached.
    pub async fn redeem_invitation(&self, client: PublicKey) -> Result<(), ExitCheckError> {
        let Route::Exit(exit) = &self.route else { return Ok(()) };
        let admitted = self.open_through(exit, &Destination::Admission(client), None).await;
        admitted.map(drop).map_err(|error| ExitCheckError(error.to_string()))
    }

    /// Looks up the addresses of the exit, if connections go to one, and remembers them: once the connections of the whole host go
    /// there, a resolver on this host cannot find them. Blocks.
    ///
    /// # Errors
    /// There is none, or the resolver does not answer.
    pub fn remember_exit(&self) -> io::Result<()> {
        let Route::Exit(exit) = &self.route else { return Ok(()) };
        let addresses = exit.peer().host_and_port().to_socket_addrs()?.collect();
        *self.exit_addresses.lock().unwrap_or_else(PoisonError::into_inner) = Some(addresses);
        Ok(())
    }

    /// Looks up the addresses of the exit, and remembers them.
    async fn resolve_exit(&self, exit: &ExitUrl) -> io::Result<Vec<SocketAddr>> {
        let addresses = Target::from(exit.peer()).resolve().await?;
        *self.exit_addresses.lock().unwrap_or_else(PoisonError::into_inner) = Some(addresses.clone());
        Ok(addresses)
    }

    fn exit_addresses(&self) -> Option<Vec<SocketAddr>> {
        self.exit_addresses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a connection to an exit, and has it connect to the destination. What the exit fails with is an error of connecting.
    pub(super) async fn open_through(
        &self,
        exit: &ExitUrl,
        destination: &Destination,
        interface: Option<&str>,
    ) -> Result<Opened, OpenError> {
        let peer = exit.peer();
        let mut opened = self.open_exit(exit, interface).await?;
        match timeout(EXIT_ANSWER_TIMEOUT, ask(&mut opened, destination)).await {
            Ok(Ok(Ok(()))) => Ok(opened),
            Ok(Ok(Err(failure))) => Err(OpenError::Connect(connect_error(destination, failure))),
            Ok(Err(error)) => Err(self.exit_failed(&opened, error)),
            Err(_) => {
                let silent = io::Error::new(io::ErrorKind::TimedOut, "no answer");
                Err(OpenError::Connect(unreachable_exit(peer, &silent)))
            }
        }
    }

    /// The same, without waiting until the exit has connected: what follows goes with the destination.
    pub(super) async fn open_early(
        &self,
        exit: &ExitUrl,
        destination: &Destination,
        interface: Option<&str>,
    ) -> Result<Opened, OpenError> {
        let mut opened = self.open_exit(exit, interface).await?;
        let sent = async {
            let (far, records) = records(&mut opened)?;
            records.send_exit(far, ExitRecord::Destination, &destination.encode()).await?;
            records.expects_outcome = true;
            Ok::<(), ExitRecordError>(())
        };
        match sent.await {
            Ok(()) => Ok(opened),
            Err(error) => Err(self.exit_failed(&opened, error)),
        }
    }

    /// Opens a connection to an exit.
    async fn open_exit(&self, exit: &ExitUrl, interface: Option<&str>) -> Result<Opened, OpenError> {
        let peer = exit.peer();
        let opened = async {
            if let Some(addresses) = self.exit_addresses() {
                match self.open(peer, &addresses, interface).await {
                    // It may have others by now.
                    Err(OpenError::Connect(_))
                        if self.resolve_exit(exit).await.is_ok_and(|now| now != addresses) => {}
                    opened => return opened,
                }
            }
            let addresses = match self.exit_addresses() {
                Some(addresses) => addresses,
                None => Target::from(peer).resolve().await.map_err(OpenError::Connect)?,
            };
            self.open(peer, &addresses, interface).await
        };
        opened.await.map_err(|error| match error {
            OpenError::Connect(error) => OpenError::Connect(unreachable_exit(peer, &error)),
            other => other,
        })
    }

    /// The end of a connection to an exit that has not answered.
    fn exit_failed(&self, opened: &Opened, error: ExitRecordError) -> OpenError {
        let error = match error {
            ExitRecordError::Record(Error::Failure(reason)) => EstablishError::Ended(reason),
            other => other.into(),
        };
        self.failed(opened.peer(), Some(opened.far()), error.into())
    }
}

/// Sends an exit the destination, and returns the outcome.
async fn ask(
    opened: &mut Opened,
    destination: &Destination,
) -> Result<Result<(), ConnectFailure>, ExitRecordError> {
    let (far, records) = records(opened)?;
    records.send_exit(far, ExitRecord::Destination, &destination.encode()).await?;
    let content = records.receive_exit(far, ExitRecord::Outcome).await?;
    Ok(decode_outcome(&content)?)
}

/// The records of a connection to an exit.
fn records(opened: &mut Opened) -> Result<(&TcpStream, &mut Records), ExitRecordError> {
    let (far, transforms) = opened.transport();
    match transforms {
        Transforms::Records(records) => Ok((far, &mut **records)),
        // The route requires mode `sealed`.
        Transforms::InPlace { .. } => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
    }
}

/// The destination as it is sent to an exit. Names are not resolved here.
pub(super) fn destination(target: &Target) -> io::Result<Destination> {
    let port = |port: u16| {
        let invalid = || io::Error::new(io::ErrorKind::ConnectionRefused, "expected a port from 1, got 0");
        NonZeroU16::new(port).ok_or_else(invalid)
    };
    match target {
        // A nameserver of this host is often one of its network, and would learn the names.
        Target::Address(address) if is_dns(*address) => Ok(Destination::Resolver),
        Target::Address(address) => Ok(Destination::Host(Host::Address(address.ip()), port(address.port())?)),
        Target::Name(name, number) => {
            let name: HostName =
                name.parse().map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
            Ok(Destination::Host(Host::Name(name), port(*number)?))
        }
    }
}

/// Whether an address is that of this host's nameserver, or of a resolver on it.
fn is_dns(address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    address.port() == DNS_PORT && (ip.is_loopback() || is_nameserver(ip))
}

/// Not the destination, but the exit did not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach the exit {exit}: {reason}")]
struct UnreachableExit {
    exit: PeerName,
    reason: String,
}

fn unreachable_exit(exit: &PeerName, error: &io::Error) -> io::Error {
    let unreachable = UnreachableExit { exit: exit.clone(), reason: error.to_string() };
    io::Error::new(io::ErrorKind::NetworkUnreachable, unreachable)
}

/// A failure as the error of connect() that the application sees.
fn connect_error(destination: &Destination, failure: ConnectFailure) -> io::Error {
    let kind = match failure {
        ConnectFailure::Refused | ConnectFailure::Failed => io::ErrorKind::ConnectionRefused,
        ConnectFailure::NetworkUnreachable => io::ErrorKind::NetworkUnreachable,
        ConnectFailure::HostUnreachable => io::ErrorKind::HostUnreachable,
        ConnectFailure::TimedOut => io::ErrorKind::TimedOut,
        ConnectFailure::NameNotFound => io::ErrorKind::NotFound,
        ConnectFailure::NotPermitted | ConnectFailure::Invitation => io::ErrorKind::PermissionDenied,
        ConnectFailure::Limit => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, format!("the exit cannot connect to {destination}: {failure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_sent_as_requested() {
        let of = |target: Target| destination(&target).map(|destination| destination.to_string());
        let name = Target::Name("server.example".into(), 443);
        assert_eq!(of(name).expect("a destination"), "server.example:443");
        let address = Target::Address("[::ffff:192.0.2.7]:80".parse().expect("an address"));
        assert_eq!(of(address).expect("a destination"), "[::ffff:192.0.2.7]:80");
        for (wrong, kind) in [
            (Target::Name("a b".into(), 1), io::ErrorKind::NotFound),
            (Target::Name("a".into(), 0), io::ErrorKind::ConnectionRefused),
            (Target::Address("192.0.2.7:0".parse().expect("an address")), io::ErrorKind::ConnectionRefused),
        ] {
            assert_eq!(of(wrong).expect_err("no destination").kind(), kind);
        }
    }
}
