//! The messages at the start of a side connection, at both ends.

use std::sync::{Arc, Weak};

use plait_proto::sealed::{Confirm, PathId, Share, Side};
use tokio::net::TcpStream;

use super::message_io::{HANDSHAKE_TIMEOUT, SealedError, recv, with_timeout};
use super::running_sessions::CompletedSession;
use crate::running_session::RunningSession;
use crate::socket::{close_on_drop, write_all};

/// Authenticates a side connection of a session, at the initiator.
pub(crate) async fn begin_side(
    session: &Weak<RunningSession>,
    path: PathId,
    stream: &TcpStream,
) -> Result<(), SealedError> {
    let running = || session.upgrade().ok_or(SealedError::SessionEnded);
    with_timeout(HANDSHAKE_TIMEOUT, async {
        let (awaiting, side) = running()?.witnesses().side().begin(path)?;
        write_all(stream, &side).await?;
        let share: Share = recv(stream).await?;
        let confirm = running()?.witnesses().side().verify_share(awaiting, share)?;
        write_all(stream, &confirm).await?;
        Ok(())
    })
    .await
}

/// Authenticates a side connection at the responder. Returns the session, or `None` if it wants no copies.
pub(super) async fn answer_side(
    mut session: CompletedSession,
    side: Side,
    stream: &TcpStream,
) -> Result<Option<Weak<RunningSession>>, SealedError> {
    let session = session.wait_for(Option::is_some).await.map_err(|_| SealedError::SessionEnded)?.clone();
    let session = session.ok_or(SealedError::SessionEnded)?;
    if session.side().is_none() {
        close_on_drop(stream)?;
        return Ok(None);
    }
    let (awaiting, share) = session.witnesses().side().answer(side)?;
    let session = {
        let weak = Arc::downgrade(&session);
        drop(session);
        weak
    };
    write_all(stream, &share).await?;
    let confirm: Confirm = recv(stream).await?;
    let running = session.upgrade().ok_or(SealedError::SessionEnded)?;
    running.witnesses().side().verify_confirm(&awaiting, &confirm)?;
    Ok(Some(session))
}
