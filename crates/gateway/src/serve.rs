//! `plait serve`: accepts protected connections from the network and carries them to a service.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use plait_host::interfaces::{Scope, interfaces};
use plait_host::mptcp::{Protocol, stream_socket};
use socket2::Domain;
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info, warn};

use crate::gateway::{CarryError, Gateway, StartError, prepare};
use crate::negotiation::Refusal;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

impl Gateway {
    /// Serves `listen`, carrying each connection to `service` (`HOST:PORT`), until [`Gateway::shut_down`].
    pub async fn serve(self: &Arc<Self>, listen: SocketAddr, service: &str) -> Result<(), StartError> {
        let listener =
            mptcp_listener(listen).map_err(|reason| StartError::Listen { address: listen, reason })?;
        if leaves_addresses_out(listen.ip()) {
            warn!(
                "further subflows can arrive at {} only: listen on [::]:{} to use this host's other addresses too",
                listen.ip(),
                listen.port()
            );
        }
        info!("listening on {}, serving {service}", listener.local_addr().unwrap_or(listen));
        let service: Arc<str> = service.into();
        self.accept(listener, |far, peer| {
            let (gateway, service) = (Arc::clone(self), Arc::clone(&service));
            async move {
                match gateway.serve_one(far, &service).await {
                    Ok(()) => debug!("{peer}: done"),
                    Err(ServeError::Carry(CarryError::Refused(refusal))) => {
                        warn!("{peer}: refused: {refusal}")
                    }
                    Err(ServeError::Carry(error)) => debug!("{peer}: {error}"),
                    Err(ServeError::Service(error)) => warn!("{peer}: the service {service}: {error}"),
                }
            }
        })
        .await;
        Ok(())
    }

    async fn serve_one(&self, far: TcpStream, service: &str) -> Result<(), ServeError> {
        let agreement = self.agreement(&far).await.map_err(CarryError::from)?;
        let near = TcpStream::connect(service).await.map_err(ServeError::Service)?;
        prepare(&near).map_err(ServeError::Service)?;
        let application = near.peer_addr().map_err(ServeError::Service)?;
        let protected = agreement.unprotected.is_none();
        let (connection, transforms) =
            self.enter(application, far, agreement).map_err(ServeError::Service)?;
        let first_flight = async {
            connection.progress.first_received.notified().await;
            if protected && self.broke_trusted_first(&connection.far) {
                return Refusal::EarlySubflow;
            }
            pending().await
        };
        Ok(self.carry(&near, &connection, transforms, first_flight).await?)
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
