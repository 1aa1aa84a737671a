//! The handshakes of accepted connections in mode `sealed`.

use std::sync::Arc;
use std::time::Duration;

use plait_proto::identity::{KeyPair, PublicKey};
use plait_proto::sealed::{Params, ResponderConfig, Services};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use super::services::InboundServices;
use super::side_connection::SideConnection;
use crate::gateway::Gateway;
use crate::handshake::{Accepted, EstablishError, Established, Registration};
use crate::trust::AuthenticatedPeer;

/// Between two checks for expired half-open handshakes.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// What an accepted connection of mode `sealed` was, after its handshake.
pub(super) enum Inbound<'a> {
    /// The main connection of a session.
    Main(Box<InboundConnection<'a>>),
    /// A side connection of another, to be run.
    Side(SideConnection),
    /// A witness of another, or nothing.
    Done,
}

/// An accepted connection of mode `sealed` that is to be carried.
pub(super) struct InboundConnection<'a> {
    pub(super) far: TcpStream,
    pub(super) established: Established,
    /// The index of the service that its client asks for.
    pub(super) requested: usize,
    /// Kept as long as the connection.
    pub(super) registration: Registration<'a>,
}

impl Gateway {
    /// What clients of an exit on this port may ask for.
    pub(super) fn exit_names(&self, port: u16) -> Services {
        match self.service_names() {
            [] => Services::exit([port]),
            named => Services::exit(named.iter().map(|named| named.port)),
        }
    }

    /// What peers that connect to this port may ask for.
    pub(super) fn names(&self, port: u16) -> Services {
        match self.service_names() {
            [] => Services::on_port(port),
            named => Services::new(named.iter().map(|named| (named.name.clone(), named.port)).collect()),
        }
    }

    /// Runs the handshake of mode `sealed` on an accepted connection. A witness takes its `place` with it. The registration is
    /// kept as long as the connection.
    pub(super) async fn handshake_inbound(
        &self,
        params: &Params,
        services: &InboundServices,
        far: TcpStream,
        place: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Inbound<'_>, EstablishError> {
        let config = ResponderConfig {
            paths: self.policy().required_paths(),
            static_key: self.identities().key_pair().map(KeyPair::private),
            require_identity: self.identities().authenticates_clients(),
            services: &services.names,
        };
        let verify_peer = |requested: usize, key: &PublicKey| {
            let known = self.identities().verify_client(key, services.clients(requested));
            known.map(|known| known.map(|known| AuthenticatedPeer { key: *key, known }))
        };
        let has_joins = |stream: &TcpStream| self.negotiation().has_joins(stream);
        let accepted = self.pending().respond(params, config, verify_peer, &far, has_joins).await;
        match accepted.map_err(|error| self.failed(&far, error.into()))? {
            Accepted::Witness(witness) => {
                self.pending().add_witness(witness, far, place.take())?;
                Ok(Inbound::Done)
            }
            Accepted::Unused => Ok(Inbound::Done),
            Accepted::LateWitness(level) => {
                debug!("a late witness raised a connection to {level} paths");
                Ok(Inbound::Done)
            }
            // Each takes a place for long: connections must find some.
            Accepted::Side(session, path) => Ok(match self.capacity().try_side_place() {
                Some(side_place) => Inbound::Side(SideConnection::new(far, session, path, side_place)),
                None => Inbound::Done,
            }),
            Accepted::Main(session, requested, registration) => {
                self.negotiation().warn_once.level(&far, session.witnesses.level());
                let established = Established::sealed(*session, self.record_options());
                if let Some(session) = &established.protection.session {
                    registration.complete(session);
                }
                Ok(Inbound::Main(Box::new(InboundConnection { far, established, requested, registration })))
            }
        }
    }

    /// Resets witnesses whose main connection does not arrive in time, until the gateway stops.
    pub(super) fn spawn_expiry_task(self: &Arc<Self>) {
        let gateway = Arc::clone(self);
        self.spawn_until_drained(async move {
            loop {
                tokio::time::sleep(EXPIRY_INTERVAL).await;
                gateway.pending().expire();
            }
        });
    }
}
