//! The initiating half of a gateway, shared by `plait proxy` and `plait run`: from an application's connection and its
//! destination to a carried one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use plait_proto::sealed::{MAX_PATHS, Params};
use tokio::net::TcpStream;
use tracing::info;

use crate::blackholes::Blackholes;
use crate::dial::Dialer;
use crate::establish::{End, EstablishError, Established, Reached, sealed_params};
use crate::gateway::{CarryError, Gateway, ProtectionError, StartError, has_mptcp, prepare};
use crate::negotiation::Refusal;
use crate::relay::RelayError;
use crate::roles::Roles;
use crate::subflows::{Subflows, first_flight as arrived, paths};
use crate::trust::{PeerName, Stranger};
use crate::witness::{Opening, Witnesses};
use plait_proto::option::Mode;

/// Opens connections for applications and carries them.
pub struct Outbound {
    gateway: Arc<Gateway>,
    dialer: Arc<Dialer>,
    subflows: Option<Arc<Subflows>>,
}

/// A connection to a destination was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Connect(io::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Establish(#[from] EstablishError),
    #[error(transparent)]
    Stranger(#[from] Stranger),
}

impl OpenError {
    /// Whether it was not made for who the peer is, or because it does not say.
    pub(crate) fn is_about_identity(&self) -> bool {
        match self {
            OpenError::Connect(_) => false,
            OpenError::Refused(refusal) => *refusal == Refusal::Unidentified,
            OpenError::Establish(error) => error.is_about_identity(),
            OpenError::Stranger(_) => true,
        }
    }
}

/// An established connection to a destination, not yet carried.
pub(crate) struct Opened {
    far: TcpStream,
    established: Established,
}

impl Opened {
    /// The other end of the network.
    pub(crate) fn peer(&self) -> io::Result<SocketAddr> {
        let peer = self.far.peer_addr()?;
        Ok(SocketAddr::new(peer.ip().to_canonical(), peer.port()))
    }

    pub(crate) fn reached(&self) -> Reached {
        self.established.reached
    }

    /// This end of the network's side.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.far.local_addr()
    }
}

impl Outbound {
    /// Takes over path management for the connections that will be made here.
    ///
    /// Without control over the paths, "trusted path first" cannot be kept: an error unless the gateway's mode is off.
    pub fn start(gateway: &Arc<Gateway>, roles: Roles) -> Result<Outbound, StartError> {
        let mode = gateway.policy().mode();
        let protects = mode != Mode::Off;
        let subflows = if has_mptcp() { Some(Subflows::start(roles.clone())) } else { None };
        let subflows = match subflows.transpose() {
            Ok(subflows) => subflows,
            Err(reason) if protects => {
                return Err(StartError::Protection { mode, reason: ProtectionError::Paths(reason) });
            }
            Err(error) => {
                info!("the kernel's own path manager decides about subflows: {error}");
                None
            }
        };
        // One that cannot be noticed is not ended; that refuses connections, or carries them plain and says so.
        let blackholes = if protects { Blackholes::watch().ok() } else { None };
        let dialer = Arc::new(Dialer::new(roles, subflows.is_some(), blackholes));
        Ok(Outbound { gateway: Arc::clone(gateway), dialer, subflows })
    }

    /// The gateway it belongs to.
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Connects to the first destination that answers, judges the handshake, and tells the peer what the mode needs. `peer`
    /// is what the application asked for.
    pub(crate) async fn open(
        &self,
        peer: &PeerName,
        destinations: &[SocketAddr],
    ) -> Result<Opened, OpenError> {
        if self.gateway.policy().mode() != Mode::Off && self.dialer.first_trusted().is_none() {
            self.gateway.said.no_trusted_path();
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for (number, &destination) in destinations.iter().enumerate() {
            let expected = self.gateway.identities().expected(peer, destination);
            let expected = expected.inspect_err(|_| self.gateway.refuse_stranger())?;
            // At the same time as the main connection, by the other paths.
            let witnesses = self.begin_witnesses(self.dialer.first_trusted(), &destinations[number..]);
            match self.dialer.connect(destination).await {
                Ok(far) => {
                    prepare(&far).map_err(OpenError::Connect)?;
                    let agreement = self.gateway.agreement(&far).await?;
                    let established = match sealed_params(&agreement, End::Initiator) {
                        Some(params) => {
                            let others = &destinations[number..];
                            let witnesses = self.finish_witnesses(witnesses, &far, &params, others).await;
                            self.gateway.seal(&params, expected.as_ref(), &far, witnesses).await?
                        }
                        None if expected.is_some() => {
                            self.gateway.refuse_stranger();
                            return Err(Refusal::Unidentified.into());
                        }
                        None => self.gateway.establish(&agreement, End::Initiator, &far).await?,
                    };
                    return Ok(Opened { far, established });
                }
                Err(error) => last = error,
            }
        }
        Err(OpenError::Connect(last))
    }

    /// Begins to open what will witness a connection that leaves by the interface `main`, if the mode asks for it and that
    /// is known.
    fn begin_witnesses(&self, main: Option<&str>, addresses: &[SocketAddr]) -> Option<Opening> {
        let sealed = self.gateway.policy().mode() == Mode::Sealed;
        let subflows = self.subflows.as_ref().filter(|_| sealed)?;
        Some(Opening::begin(&self.gateway, &self.dialer, subflows, main?, addresses))
    }

    async fn finish_witnesses(
        &self,
        begun: Option<Opening>,
        far: &TcpStream,
        params: &Params,
        addresses: &[SocketAddr],
    ) -> Witnesses {
        let main = self.subflows.as_ref().and_then(|subflows| subflows.interface_of(far));
        let opening = begun.or_else(|| self.begin_witnesses(main.as_deref(), addresses));
        let configured = self.subflows.as_ref().map_or(1, |subflows| subflows.configured());
        if configured > usize::from(MAX_PATHS) {
            self.gateway.said.too_many_paths(configured);
        }
        match opening {
            Some(opening) => opening.finish(configured, main.as_deref(), params.chosen).await,
            None => Witnesses { configured, streams: Vec::new() },
        }
    }

    /// Carries an application's connection over an opened one to its end.
    pub(crate) async fn carry(&self, near: &TcpStream, opened: Opened) -> Result<(), CarryError> {
        let application = near.peer_addr().map_err(RelayError::Near)?;
        let Opened { far, established: Established { reached, transforms, first_flight } } = opened;
        let peer = far.peer_addr().map_err(RelayError::Far)?;
        let connection = self.gateway.enter(application, far, reached).map_err(RelayError::Far)?;
        let watch =
            self.subflows.as_ref().zip(connection.token).map(|(subflows, token)| subflows.watch(token, peer));
        let further_subflows = async {
            match watch {
                Some(watch) => RelayError::Far(
                    watch.tend(arrived(&connection, first_flight), || paths(&connection)).await,
                ),
                None => std::future::pending().await,
            }
        };
        self.gateway.carry(near, &connection, transforms, further_subflows).await
    }
}
