//! The initiating half of a gateway, shared by `plait proxy` and `plait run`: from an application's connection and its
//! destination to a carried one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tracing::{info, warn};

use crate::dial::Dialer;
use crate::gateway::{CarryError, Gateway, ProtectionError, StartError, has_mptcp, prepare};
use crate::negotiation::{Agreement, Refusal};
use crate::roles::Roles;
use crate::subflows::Subflows;

/// Opens connections for applications and carries them.
pub struct Outbound {
    gateway: Arc<Gateway>,
    dialer: Dialer,
    subflows: Option<Arc<Subflows>>,
}

/// A connection to a destination was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Connect(io::Error),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A judged connection to a destination, not yet carried.
pub(crate) struct Opened {
    far: TcpStream,
    agreement: Agreement,
}

impl Opened {
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
        let protects = mode != crate::mode::Mode::Off;
        if protects && roles.trusted().next().is_none() {
            warn!("no trusted path is named (--trusted IFACE): the first flight goes where routing sends it");
        }
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
        let dialer = Dialer::new(roles, subflows.is_some());
        Ok(Outbound { gateway: Arc::clone(gateway), dialer, subflows })
    }

    /// The gateway it belongs to.
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Connects to the first destination that answers, and judges the handshake.
    pub(crate) async fn open(&self, destinations: &[SocketAddr]) -> Result<Opened, OpenError> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for &destination in destinations {
            match self.dialer.connect(destination).await {
                Ok(far) => {
                    prepare(&far).map_err(OpenError::Connect)?;
                    let agreement = self.gateway.agreement(&far).await?;
                    return Ok(Opened { far, agreement });
                }
                Err(error) => last = error,
            }
        }
        Err(OpenError::Connect(last))
    }

    /// Carries an application's connection over an opened one to its end.
    pub(crate) async fn carry(&self, near: &TcpStream, opened: Opened) -> Result<(), CarryError> {
        let application = near.peer_addr().map_err(crate::relay::RelayError::Near)?;
        let (connection, transforms) = self
            .gateway
            .enter(application, opened.far, opened.agreement)
            .map_err(crate::relay::RelayError::Far)?;
        let further_subflows = async {
            if let Some(subflows) = &self.subflows {
                subflows.tend(&connection).await;
            }
            std::future::pending().await
        };
        self.gateway.carry(near, &connection, transforms, further_subflows).await
    }
}
