//! `plait serve`: accepts protected connections from the network and carries them to a service.

use std::fmt;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use plait_linux::interfaces::{Scope, interfaces};
use plait_linux::mptcp::{Protocol, stream_socket};
use socket2::Domain;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::establish::{End, Established, FirstFlight, sealed_params};
use crate::gateway::{CarryError, Gateway, StartError, prepare};
use crate::negotiation::Refusal;
use crate::relay::reset_on_drop;
use crate::stream::Stream;
use plait_proto::option::Mode;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

impl Gateway {
    /// Serves `listen`, carrying each connection to `service` (`HOST:PORT`), until [`Gateway::shut_down`].
    pub async fn serve(self: &Arc<Self>, listen: SocketAddr, service: &str) -> Result<(), StartError> {
        let listener = Gateway::listener(listen)?;
        info!("listening on {}, serving {service}", listener.local_addr().unwrap_or(listen));
        self.serve_on(listener, Service::At(service.into())).await;
        Ok(())
    }

    /// A socket that peers connect to.
    pub(crate) fn listener(listen: SocketAddr) -> Result<TcpListener, StartError> {
        if leaves_addresses_out(listen.ip()) {
            warn!(
                "further subflows can arrive at {} only: listen on [::]:{} to use this host's other addresses too",
                listen.ip(),
                listen.port()
            );
        }
        mptcp_listener(listen).map_err(|reason| StartError::Listen { address: listen, reason })
    }

    /// Carries each connection that is accepted to the service.
    pub(crate) async fn serve_on(self: &Arc<Self>, listener: TcpListener, service: Service) {
        self.keep_reception();
        self.accept(listener, |far, peer| {
            let (gateway, service) = (Arc::clone(self), service.clone());
            async move {
                match gateway.serve_one(far, &service).await {
                    Ok(()) => debug!("{peer}: done"),
                    Err(ServeError::Carry(CarryError::Refused(refusal))) => {
                        warn!("{peer}: refused: {refusal}")
                    }
                    Err(ServeError::Carry(CarryError::Establish(error))) => warn!("{peer}: {error}"),
                    Err(ServeError::Carry(error)) => debug!("{peer}: {error}"),
                    Err(ServeError::Service(error)) => warn!("{peer}: the service {service}: {error}"),
                }
            }
        })
        .await;
    }

    async fn serve_one(&self, far: TcpStream, service: &Service) -> Result<(), ServeError> {
        let agreement = self.agreement(&far).await.map_err(CarryError::from)?;
        let (far, established) = match sealed_params(&agreement, End::Responder) {
            Some(agreed) => match self.sealed(&agreed, far).await.map_err(CarryError::from)? {
                Some(main) => main,
                // It witnesses another connection.
                None => return Ok(()),
            },
            None if self.identities().judge_clients() => {
                self.refuse_stranger();
                return Err(CarryError::from(Refusal::Unidentified).into());
            }
            None => {
                let established = self.establish(&agreement, End::Responder, &far).await;
                (far, established.map_err(CarryError::from)?)
            }
        };
        let peer = far.peer_addr().map_err(ServeError::Service)?;
        let near = service.connect(peer, &established).await.map_err(ServeError::Service)?;
        let Established { reached, transforms, first_flight } = established;
        let application = near.peer_addr().map_err(ServeError::Service)?;
        let connection = self.enter(application, far, reached).map_err(ServeError::Service)?;
        let trusted_first = async {
            if first_flight == FirstFlight::OfBothEnds {
                connection.progress.first_received.notified().await;
            }
            if reached.mode != Mode::Off && self.broke_trusted_first(&connection.far) {
                return Refusal::EarlySubflow;
            }
            pending().await
        };
        Ok(self.carry(&near, &connection, transforms, trusted_first).await?)
    }
}

/// Whom connections are carried to.
#[derive(Clone, Debug)]
pub(crate) enum Service {
    /// Who listens at this address.
    At(Arc<str>),
    /// This program.
    Here(mpsc::Sender<Stream>),
}

impl Service {
    /// The gateway's end of a connection with the service.
    async fn connect(&self, peer: SocketAddr, established: &Established) -> io::Result<TcpStream> {
        match self {
            Service::At(address) => {
                let near = connect(address).await?;
                prepare(&near)?;
                Ok(near)
            }
            Service::Here(sender) => {
                let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                let (stream, near) = Stream::pair(peer, established.reached).await?;
                sender.send(stream).await.map_err(|_| io::Error::other("it accepts no more"))?;
                Ok(near)
            }
        }
    }
}

/// Connects to the first address of a `HOST:PORT` that answers, by a socket that resets from its beginning.
async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in lookup_host(address).await? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        reset_on_drop(&socket)?;
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Service::At(address) => f.write_str(address),
            Service::Here(_) => f.write_str("of this program"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Carry(#[from] CarryError),
    #[error(transparent)]
    Service(io::Error),
}

/// Whether this host has addresses on other interfaces, at which the kernel would refuse the peer's joins.
fn leaves_addresses_out(listen: IpAddr) -> bool {
    if listen.is_unspecified() || listen.is_loopback() {
        return false;
    }
    interfaces().unwrap_or_default().iter().any(|interface| {
        let has_listener = interface.addresses.iter().any(|address| address.ip == listen);
        let reachable = interface.addresses.iter().any(|address| address.scope == Scope::Global);
        interface.up && !interface.loopback && reachable && !has_listener
    })
}

fn mptcp_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let (socket, protocol) = stream_socket(Domain::for_address(address))?;
    if protocol == Protocol::Tcp {
        warn!("this kernel speaks no MPTCP: connections will be plain TCP (`plait doctor` says more)");
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
