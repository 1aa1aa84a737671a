//! The initiator's handshake of mode `sealed`, over a connection and its witnesses.

use std::error::Error;
use std::time::Duration;

use plait_proto::identity::PublicKey;
use plait_proto::sealed::{
    Closing, Initiator, InitiatorConfig, MAX_PATHS, Params, PathId, Paths, Reply, Session, Share,
};
use tokio::net::TcpStream;

use super::message_io::{SealedError, close_all, recv, recv_all, send_all, with_timeout};
use crate::socket::write_all;

/// The witnesses of a connection.
pub(crate) struct Witnesses {
    /// The number of configured paths, that of the main connection included.
    pub(crate) configured: usize,
    pub(crate) streams: Vec<TcpStream>,
}

/// Runs a session over a connection and its witnesses. With a static key both ends authenticate, and `verify_peer` accepts
/// or rejects the peer's key. It may take as long as `limit`.
pub(crate) async fn initiate<P, E: Into<Box<dyn Error + Send + Sync>>>(
    params: &Params,
    config: InitiatorConfig<'_>,
    verify_peer: impl FnOnce(&PublicKey) -> Result<P, E>,
    far: &TcpStream,
    witnesses: Witnesses,
    limit: Duration,
) -> Result<Session<P>, SealedError> {
    with_timeout(limit, async {
        let ids: Vec<PathId> =
            (1..).map_while(|id| PathId::new(id).ok()).take(witnesses.streams.len()).collect();
        let streams: Vec<(PathId, TcpStream)> = ids.iter().copied().zip(witnesses.streams).collect();
        let configured = u8::try_from(witnesses.configured).unwrap_or(MAX_PATHS).min(MAX_PATHS);
        let paths = Paths::new(configured, ids.into_iter().collect())?;
        let (initiator, opening) = Initiator::start(params, paths, config)?;
        write_all(far, &opening.hello).await?;
        send_all(&streams, opening.witnesses).await?;
        let reply: Reply = recv(far).await.map_err(|error| match config.static_key {
            Some(_) => SealedError::NotAuthenticated(Box::new(error)),
            None => error,
        })?;
        let shares: Vec<(PathId, Share)> = recv_all(&streams).await?;
        let (session, Closing { identity, confirms }) = initiator.finish(&reply, shares, verify_peer)?;
        send_all(&streams, confirms).await?;
        if let Some(identity) = identity {
            write_all(far, &identity).await?;
        }
        close_all(&streams)?;
        Ok(session)
    })
    .await
}
