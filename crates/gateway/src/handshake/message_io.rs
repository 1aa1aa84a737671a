//! Sends and receives the messages of mode `sealed` on connections.

use std::io;
use std::time::Duration;

use plait_proto::sealed::{
    HandshakeError, Message, MessageError, MessageReader, PathId, PathsError, RendezvousError,
    WitnessMessages,
};
use tokio::net::TcpStream;

use crate::socket::{close_on_drop, write_all};

/// How long the peer may take to send everything that a mode needs.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The handshake failed: every connection of the session is reset.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealedError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Paths(#[from] PathsError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error("network side: {0}")]
    Network(#[from] io::Error),
    #[error("the handshake took too long: a witness or the peer's answer did not arrive")]
    Timeout,
    #[error("it gave way to newer handshakes, because too many are half open")]
    Displaced,
    #[error("a further subflow was opened before the handshake was complete")]
    EarlySubflow,
    #[error("the connection of this witness has ended")]
    SessionEnded,
    #[error("the peer did not authenticate: has it an identity (`plait identity`)? ({0})")]
    NotAuthenticated(Box<SealedError>),
}

impl SealedError {
    /// Whether it failed because of an end's identity.
    pub(crate) fn is_about_identity(&self) -> bool {
        matches!(self, SealedError::Handshake(error) if error.is_about_identity())
    }
}

pub(super) async fn with_timeout<T>(
    limit: Duration,
    handshake: impl Future<Output = Result<T, SealedError>>,
) -> Result<T, SealedError> {
    tokio::time::timeout(limit, handshake).await.unwrap_or(Err(SealedError::Timeout))
}

/// Sends each message by its path's connection.
pub(super) async fn send_all(streams: &[(PathId, TcpStream)], messages: WitnessMessages) -> io::Result<()> {
    for (path, message) in messages {
        if let Some((_, stream)) = streams.iter().find(|(other, _)| *other == path) {
            write_all(stream, &message).await?;
        }
    }
    Ok(())
}

/// Receives one message from each connection.
pub(super) async fn recv_all<M: Message>(
    streams: &[(PathId, TcpStream)],
) -> Result<Vec<(PathId, M)>, SealedError> {
    let mut received = Vec::new();
    for (path, stream) in streams {
        received.push((*path, recv(stream).await?));
    }
    Ok(received)
}

/// Receives the next message, and no byte beyond it.
pub(super) async fn recv<M: Message>(from: &TcpStream) -> Result<M, SealedError> {
    let mut reader = MessageReader::new();
    loop {
        from.readable().await?;
        match from.try_read(reader.buffer()) {
            Ok(0) => return Err(reader.end_of_stream().into()),
            Ok(length) => {
                if let Some(message) = reader.advance(length)? {
                    return Ok(message);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes completed witness connections close in order.
pub(super) fn close_all(streams: &[(PathId, TcpStream)]) -> io::Result<()> {
    streams.iter().try_for_each(|(_, stream)| close_on_drop(stream))
}
