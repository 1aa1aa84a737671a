//! The exit's end of [sessions of datagrams](plait_proto::datagrams): receives the packets of all clients on one UDP socket, and
//! passes their datagrams on.
//!
//! Nothing is sent to an address that has not proved by an answer that the client receives there; but for the answer of a probe,
//! which is as long as the probe. A packet that is not authenticated has no effect at all.

mod associations;
mod session;

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plait_proto::datagrams::{SessionId, keys};
use plait_proto::exit::ConnectFailure;
use plait_proto::sealed::Exporter;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::{ClientId, Exit};
use crate::datagrams::{DatagramSocket, ReceiveBuffers, bind as bind_socket};
use crate::gateway::Gateway;
use crate::protection::ProtectionStatus;
use crate::stream::Stream;
use session::Session;

/// The sessions of an exit, and the socket of their packets.
pub(in crate::inbound) struct Datagrams {
    gateway: Arc<Gateway>,
    socket: Arc<DatagramSocket>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
}

impl std::fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Datagrams").finish_non_exhaustive()
    }
}

impl Datagrams {
    pub(in crate::inbound) fn new(gateway: &Arc<Gateway>, socket: DatagramSocket) -> Datagrams {
        Datagrams { gateway: Arc::clone(gateway), socket: Arc::new(socket), sessions: Mutex::default() }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives packets until the gateway stops.
    pub(in crate::inbound) fn spawn(self: &Arc<Self>) {
        let datagrams = Arc::clone(self);
        self.gateway.spawn_until_stopped(async move {
            let mut buffers = ReceiveBuffers::default();
            loop {
                let received = datagrams.socket.receive(&mut buffers, |received| {
                    let id = SessionId::of_packet(received.packet);
                    let session = id.and_then(|id| datagrams.sessions().get(&id).cloned());
                    if let Some(session) = session {
                        session.received(received);
                    }
                });
                if let Err(error) = received.await {
                    debug!("datagrams: {error}");
                    sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }

    /// Begins a session of a client. It lasts as long as the connection to the result.
    pub(super) async fn open(
        self: &Arc<Self>,
        exit: &Arc<Exit>,
        client: ClientId,
        peer: SocketAddr,
        protection: ProtectionStatus,
        exporter: &Exporter,
    ) -> Result<TcpStream, ConnectFailure> {
        let mut id = SessionId([0; SessionId::LEN]);
        SystemRandom::new().fill(&mut id.0).map_err(|_| ConnectFailure::Failed)?;
        let (sealer, opener) = keys(exporter, id).of_responder(id);
        let (stream, near) =
            Stream::pair(peer, protection, None).await.map_err(|_| ConnectFailure::Failed)?;
        let session = Session::start(
            Arc::clone(exit),
            client,
            Arc::clone(&self.socket),
            (sealer, opener),
            &self.gateway.datagrams,
        );
        self.sessions().insert(id, Arc::clone(&session));
        // However the task ends.
        let registered = Registered { datagrams: Arc::clone(self), id };
        self.gateway.spawn_until_stopped(async move {
            let _registered = registered;
            debug!("{peer}: datagrams");
            if let Err(error) = until_closed(stream.into_socket(), id).await {
                debug!("{peer}: datagrams: {error}");
            }
            let counts = session.counts();
            debug!("{peer}: datagrams ended: {counts}");
        });
        Ok(near)
    }
}

/// A session, until it is dropped.
struct Registered {
    datagrams: Arc<Datagrams>,
    id: SessionId,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let session = self.datagrams.sessions().remove(&self.id);
        if let Some(session) = session {
            session.stop();
        }
    }
}

/// Sends the client the session's id, and waits until it closes the connection.
async fn until_closed(mut stream: TcpStream, id: SessionId) -> std::io::Result<()> {
    stream.write_all(&id.0).await?;
    let mut ignored = [0; 64];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// The socket beside a listener, on the same address and port; without one, the exit carries no datagrams.
pub(in crate::inbound) fn bind(address: SocketAddr) -> Option<UdpSocket> {
    bind_socket(address, None)
        .inspect_err(|error| {
            warn!("cannot receive datagrams on {address} (UDP): {error}; clients of this exit have connections only");
        })
        .ok()
}
