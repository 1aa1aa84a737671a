//! `plait serve`: accepts protected connections from the network and carries them to a service.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use plait_linux::interfaces::{Scope, interfaces};
use plait_linux::mptcp::{Protocol, stream_socket};
use plait_proto::close_reason::CloseReason;
use plait_proto::option::Mode;
use socket2::Domain;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, info, warn};

use super::exit::{Datagrams, Exit, ExitError, ExitSettings, bind_datagrams};
use super::handshake::{Inbound, InboundConnection};
use super::proxy_protocol::ProxyProtocol;
use super::server::{Server, ServiceSettings};
use super::service::{Reached, Service, ServiceError};
use super::service_address::ServiceAddress;
use super::services::InboundServices;
use super::side_connection::SideConnection;
use crate::carry_error::CarryError;
use crate::congestion_control::CongestionControl;
use crate::datagrams::DatagramSocket;
use crate::error::StartError;
use crate::gateway::Gateway;
use crate::handshake::{Established, FailureReason, FirstFlight, Side, sealed_params};
use crate::paths::close_silent;
use crate::protection::Refusal;
use crate::socket::{BACKLOG, canonical, send_last};

#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Carry(#[from] CarryError),
    #[error("the service {service}: {reason}")]
    Service {
        service: Service,
        reason: io::Error,
        /// It is down, as a warning has said.
        is_known: bool,
    },
    #[error(transparent)]
    Exit(ExitError),
}

/// What an exit listens on.
#[derive(Debug)]
pub struct ExitListener {
    connections: TcpListener,
    datagrams: Option<DatagramSocket>,
}

impl ExitListener {
    /// The socket for datagrams is one of [`bind_datagrams`](Self::bind_datagrams). Without one, the exit has connections only.
    ///
    /// # Errors
    /// A socket cannot be used.
    pub fn new(connections: TcpListener, datagrams: Option<UdpSocket>) -> io::Result<ExitListener> {
        let datagrams = datagrams.map(DatagramSocket::try_from).transpose()?;
        Ok(ExitListener { connections, datagrams })
    }

    /// A socket for datagrams; if there cannot be one, a warning is logged.
    #[must_use]
    pub fn bind_datagrams(address: SocketAddr) -> Option<UdpSocket> {
        bind_datagrams(address)
    }
}

impl Gateway {
    /// Starts a service at this address on a listener. The task that is returned carries each connection to it, whatever its client
    /// asks for of what [`Settings::services`](crate::Settings) says, until [`Gateway::shut_down`].
    pub fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        to: ServiceAddress,
        proxy: Option<ProxyProtocol>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let names = self.names(local_port(&listener));
        let service = Service::Server(Arc::new(Server::new(&ServiceSettings::new(to, proxy))));
        self.serve_inbound_services(listener, InboundServices::single(names, service))
    }

    /// Starts services on a listener. The task that is returned carries each connection to the one that its client asks for,
    /// until [`Gateway::shut_down`].
    ///
    /// # Errors
    /// Two have the same name and port, or clients do not have to ask for one, because mode `sealed` is not required.
    pub fn serve_services(
        self: &Arc<Self>,
        listener: TcpListener,
        services: &[ServiceSettings],
    ) -> Result<impl Future<Output = ()> + Send + 'static + use<>, StartError> {
        let services = InboundServices::new(services, local_port(&listener), self.policy())?;
        Ok(self.serve_inbound_services(listener, services))
    }

    fn serve_inbound_services(
        self: &Arc<Self>,
        listener: TcpListener,
        services: InboundServices,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        for server in services.servers() {
            if let Ok(address) = listener.local_addr() {
                info!("listening on {address}, serving {server}");
            }
            let server = Arc::clone(server);
            self.spawn_until_stopped(async move {
                if let ServiceAddress::Tcp(name) = server.address()
                    && let Err(error) = lookup_host(&**name).await
                {
                    warn!("cannot find the service {name}: {error}; clients are reset until it can be found");
                }
                server.check_health().await;
            });
        }
        Arc::clone(self).serve_on(listener, services)
    }

    /// Starts an exit on a listener. The task that is returned carries each connection to the destination that its client names,
    /// and datagrams, until [`Gateway::shut_down`]. Clients are those of the gateway's identities.
    pub fn serve_exit(
        self: &Arc<Self>,
        listener: ExitListener,
        settings: ExitSettings,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let ExitListener { connections, datagrams } = listener;
        if let Ok(address) = connections.local_addr() {
            info!("listening on {address}, an exit");
        }
        let datagrams = datagrams.map(|socket| Arc::new(Datagrams::new(self, socket)));
        datagrams.iter().for_each(Datagrams::spawn);
        let names = self.exit_names(local_port(&connections));
        let invited = self.identities().invited().cloned();
        let exit = Service::Exit(Arc::new(Exit::new(settings, invited, datagrams)));
        Arc::clone(self).serve_on(connections, InboundServices::single(names, exit))
    }

    /// The sockets that the clients of an exit connect to, and send datagrams to.
    ///
    /// # Errors
    /// The address cannot be listened on. Without a socket for datagrams, the exit has connections only, and a warning is logged.
    pub fn bind_exit(&self, listen: SocketAddr) -> Result<ExitListener, StartError> {
        let connections = self.bind(listen)?;
        let datagrams = connections.local_addr().ok().and_then(bind_datagrams);
        ExitListener::new(connections, datagrams)
            .map_err(|reason| StartError::Listen { address: listen, reason })
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

    /// Carries each accepted connection to the service that it asks for.
    pub(super) async fn serve_on(self: Arc<Self>, listener: TcpListener, services: InboundServices) {
        self.spawn_expiry_task();
        let services = Arc::new(services);
        self.accept(listener, 1, |far, peer, place| {
            let (gateway, services) = (Arc::clone(&self), Arc::clone(&services));
            async move {
                let admitted = match gateway.peer_limit.admit(peer.ip()) {
                    Ok(place) => place,
                    Err(error) => {
                        gateway.negotiation().set_close_reason(&far, CloseReason::Limit);
                        return gateway.handshake_failed(peer, None, FailureReason::Limit, &error);
                    }
                };
                let mut place = Some(place);
                match gateway.serve_one(far, canonical(peer), &mut place, &services).await {
                    Ok(None) => debug!("{peer}: done"),
                    Ok(Some(side)) => {
                        // It is part of another connection of the peer.
                        drop(admitted);
                        side.run().await;
                    }
                    Err(ServeError::Carry(error)) => match error.failure_reason() {
                        Some(reason) => gateway.handshake_failed(peer, None, reason, &error),
                        None => debug!("{peer}: {error}"),
                    },
                    Err(error @ ServeError::Service { is_known: true, .. }) => info!("{peer}: {error}"),
                    Err(error @ ServeError::Service { .. }) => warn!("{peer}: {error}"),
                    Err(ServeError::Exit(error)) => debug!("{peer}: {error}"),
                }
            }
        })
        .await;
    }

    async fn serve_one(
        &self,
        far: TcpStream,
        peer: SocketAddr,
        place: &mut Option<OwnedSemaphorePermit>,
        services: &InboundServices,
    ) -> Result<Option<SideConnection>, ServeError> {
        let refused = |far: &TcpStream, refusal: Refusal| {
            self.negotiation().failed(far, (&refusal).into());
            CarryError::from(refusal)
        };
        let agreement = self.negotiation().agreement(self.policy(), &far).await;
        let agreement = agreement.map_err(|refusal| refused(&far, refusal))?;
        let (far, established, requested, _registration) = match sealed_params(&agreement, Side::Responder) {
            Some(params) => {
                // On the heap: the state of other modes' connections, which is moved around, stays small.
                let accepted = Box::pin(self.handshake_inbound(&params, services, far, place)).await;
                match accepted.map_err(CarryError::from)? {
                    Inbound::Main(accepted) => {
                        let InboundConnection { far, established, requested, registration } = *accepted;
                        (far, established, requested, Some(registration))
                    }
                    Inbound::Side(side) => return Ok(Some(side)),
                    Inbound::Done => return Ok(None),
                }
            }
            None if self.identities().authenticates_clients() => {
                return Err(refused(&far, Refusal::Unauthenticated).into());
            }
            None => {
                let established = self.establish(&agreement, Side::Responder, &far).await;
                let established = established.map_err(|error| self.failed(&far, error));
                (far, established.map_err(CarryError::from)?, 0, None)
            }
        };
        let mut established = established;
        let _carried = self.capacity().permit().await;
        place.take();
        let service = services.get(requested);
        let failed = |reason, is_known| ServeError::Service { service: service.clone(), reason, is_known };
        let Reached { near, admission } = match service.connect(peer, &far, &mut established).await {
            Ok(Some(reached)) => reached,
            Ok(None) => return Ok(None),
            Err(ServiceError::Exit(error)) => {
                if let ExitError::Record(_) | ExitError::Timeout = error {
                    self.negotiation().set_close_reason(&far, CloseReason::Message);
                }
                return Err(ServeError::Exit(error));
            }
            Err(ServiceError::Connect(error)) => {
                let is_known = matches!(service, Service::Server(server) if server.is_down());
                match established.transforms.failure(CloseReason::Service) {
                    // The client learns it, or sees a reset.
                    Some(notice) => drop(send_last(&far, &notice).await),
                    None => self.negotiation().set_close_reason(&far, CloseReason::Service),
                }
                return Err(failed(error, is_known));
            }
        };
        let Established { protection, transforms, first_flight, .. } = established;
        let application = service.application(&near).map_err(|error| failed(error, false))?;
        let meter = admission.as_ref().map(|admission| Arc::clone(admission.meter()));
        let connection = self.register(application, peer, far, protection, meter.clone());
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
        let exhausted = async {
            match &meter {
                Some(meter) => meter.exhausted().await,
                None => pending().await,
            }
        };
        let failed = async {
            tokio::select! {
                refusal = early_subflow => CarryError::from(refusal),
                exhausted = exhausted => exhausted.into(),
                never = close_silent(&*connection, self.subflow_closer()) => match never {},
            }
        };
        self.carry(&near, &connection, transforms, failed).await?;
        Ok(None)
    }
}

/// The port that is listened on.
pub(super) fn local_port(listener: &TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

/// Whether this host has addresses on other interfaces, on which the kernel would reject the peer's joins.
fn misses_other_addresses(listen: IpAddr) -> bool {
    if listen.is_unspecified() || listen.is_loopback() {
        return false;
    }
    interfaces().unwrap_or_default().iter().any(|interface| {
        let has_listener = interface.has_address(listen);
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
    socket.listen(BACKLOG.cast_signed())?;
    TcpListener::from_std(socket.into())
}
