//! `plait serve`: accepts protected connections from the network and carries them to a service.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use plait_linux::interfaces::{Scope, interfaces};
use plait_linux::mptcp::{Protocol, stream_socket};
use plait_proto::close_reason::CloseReason;
use plait_proto::option::Mode;
use plait_proto::sealed::Services;
use socket2::Domain;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, info, warn};

use super::service::Service;
use crate::carry_error::CarryError;
use crate::congestion_control::CongestionControl;
use crate::error::StartError;
use crate::gateway::Gateway;
use crate::handshake::{Established, FailureReason, FirstFlight, Side, sealed_params};
use crate::paths::close_silent;
use crate::protection::Refusal;
use crate::socket::{canonical, send_last};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Carry(#[from] CarryError),
    #[error(transparent)]
    Service(io::Error),
}

impl Gateway {
    /// Carries each connection that a listener accepts to `service` (`HOST:PORT`), until [`Gateway::shut_down`].
    pub async fn serve(self: &Arc<Self>, listener: TcpListener, service: &str) {
        if let Ok(address) = listener.local_addr() {
            info!("listening on {address}, serving {service}");
        }
        let name = service.to_owned();
        self.spawn_until_stopped(async move {
            if let Err(error) = lookup_host(&name).await {
                warn!("cannot find the service {name}: {error}; clients are reset until it can be found");
            }
        });
        self.serve_on(listener, Service::Address(service.into())).await;
    }

    /// A socket that peers connect to.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub fn bind(&self, listen: SocketAddr) -> Result<TcpListener, StartError> {
        if misses_other_addresses(listen.ip()) {
            warn!(
                "further subflows can arrive at {} only: listen on [::]:{} to use this host's other addresses too",
                listen.ip(),
                listen.port()
            );
        }
        mptcp_listener(listen, self.congestion_control())
            .map_err(|reason| StartError::Listen { address: listen, reason })
    }

    /// Carries each accepted connection to the service.
    pub(super) async fn serve_on(self: &Arc<Self>, listener: TcpListener, service: Service) {
        self.spawn_expiry_task();
        let services = Arc::new(self.services(listener.local_addr().map_or(0, |address| address.port())));
        self.accept(listener, 1, |far, peer, place| {
            let (gateway, service, services) = (Arc::clone(self), service.clone(), Arc::clone(&services));
            async move {
                let _place = match gateway.peer_limit.admit(peer.ip()) {
                    Ok(place) => place,
                    Err(error) => {
                        gateway.negotiation().set_close_reason(&far, CloseReason::Limit);
                        return gateway.handshake_failed(peer, None, FailureReason::Limit, &error);
                    }
                };
                match gateway.serve_one(far, canonical(peer), place, &service, &services).await {
                    Ok(()) => debug!("{peer}: done"),
                    Err(ServeError::Carry(error)) => match error.failure_reason() {
                        Some(reason) => gateway.handshake_failed(peer, None, reason, &error),
                        None => debug!("{peer}: {error}"),
                    },
                    Err(ServeError::Service(error)) => warn!("{peer}: the service {service}: {error}"),
                }
            }
        })
        .await;
    }

    async fn serve_one(
        &self,
        far: TcpStream,
        peer: SocketAddr,
        place: OwnedSemaphorePermit,
        service: &Service,
        services: &Services,
    ) -> Result<(), ServeError> {
        let mut place = Some(place);
        let refused = |far: &TcpStream, refusal: Refusal| {
            self.negotiation().failed(far, (&refusal).into());
            CarryError::from(refusal)
        };
        let agreement = self.negotiation().agreement(self.policy(), &far).await;
        let agreement = agreement.map_err(|refusal| refused(&far, refusal))?;
        let (far, established, _registration) = match sealed_params(&agreement, Side::Responder) {
            Some(params) => {
                // On the heap: the state of other modes' connections, which is moved around, stays small.
                let accepted = Box::pin(self.handshake_inbound(&params, services, far, &mut place)).await;
                match accepted.map_err(CarryError::from)? {
                    Some((far, established, registration)) => (far, established, Some(registration)),
                    // It is a witness.
                    None => return Ok(()),
                }
            }
            None if self.identities().authenticates_clients() => {
                return Err(refused(&far, Refusal::Unauthenticated).into());
            }
            None => {
                let established = self.establish(&agreement, Side::Responder, &far).await;
                let established = established.map_err(|error| self.failed(&far, error));
                (far, established.map_err(CarryError::from)?, None)
            }
        };
        let Established { protection, exporter, mut transforms, first_flight } = established;
        let _carried = self.permit().await;
        drop(place);
        let near = match service.connect(peer, protection.clone(), exporter).await {
            Ok(near) => near,
            Err(error) => {
                match transforms.failure(CloseReason::Service) {
                    // The client learns it, or sees a reset.
                    Some(notice) => drop(send_last(&far, &notice).await),
                    None => self.negotiation().set_close_reason(&far, CloseReason::Service),
                }
                return Err(ServeError::Service(error));
            }
        };
        let application = near.peer_addr().map_err(ServeError::Service)?;
        let connection = self.register(application, peer, far, protection);
        let mode = connection.protection.mode;
        let early_subflow = async {
            if first_flight == FirstFlight::BothDirections {
                connection.progress.received.first_byte().await;
            }
            if mode != Mode::Off && self.negotiation().has_early_subflow(&connection.far) {
                return Refusal::EarlySubflow;
            }
            pending().await
        };
        let failed = async {
            tokio::select! {
                refusal = early_subflow => refusal,
                never = close_silent(&*connection, self.subflow_closer()) => match never {},
            }
        };
        Ok(self.carry(&near, &connection, transforms, failed).await?)
    }
}

/// Whether this host has addresses on other interfaces, on which the kernel would reject the peer's joins.
fn misses_other_addresses(listen: IpAddr) -> bool {
    if listen.is_unspecified() || listen.is_loopback() {
        return false;
    }
    interfaces().unwrap_or_default().iter().any(|interface| {
        let has_listener = interface.addresses.iter().any(|address| address.ip == listen);
        let reachable = interface.addresses.iter().any(|address| address.scope == Scope::Global);
        interface.up && !interface.loopback && reachable && !has_listener
    })
}

fn mptcp_listener(address: SocketAddr, congestion_control: &CongestionControl) -> io::Result<TcpListener> {
    let (socket, protocol) = stream_socket(Domain::for_address(address))?;
    if protocol == Protocol::Tcp {
        warn!("the kernel has no MPTCP: connections will be plain TCP (see `plait doctor`)");
    }
    congestion_control.set_on(&socket)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}
