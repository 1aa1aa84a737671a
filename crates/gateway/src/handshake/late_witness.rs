//! The messages of a witness that confirms a session after its handshake, at both ends.

use std::io;
use std::sync::Weak;

use plait_proto::sealed::{Confirm, HandshakeError, Level, PathId, Share, Witness};
use tokio::net::TcpStream;

use super::message_io::{HANDSHAKE_TIMEOUT, SealedError, recv, with_timeout};
use super::running_sessions::CompletedSession;
use crate::running_session::RunningSession;
use crate::socket::{close_on_drop, write_all};

/// Adds a witness to a session, at the initiator. Returns the level that it has reached.
pub(crate) async fn add_late_witness(
    session: &Weak<RunningSession>,
    path: PathId,
    stream: &TcpStream,
) -> Result<Level, SealedError> {
    let running = || session.upgrade().ok_or(SealedError::SessionEnded);
    with_timeout(HANDSHAKE_TIMEOUT, async {
        let (awaiting, witness) = running()?.witnesses().witness(path)?;
        write_all(stream, &witness).await?;
        let share: Share = recv(stream).await?;
        let verified = running()?.witnesses().verify_share(awaiting, share);
        if let Err(HandshakeError::Confirmation(path)) = verified {
            running()?.set_intercepted(path);
        }
        let (shares, confirm) = verified?;
        write_all(stream, &confirm).await?;
        recv_end(stream).await?;
        Ok(running()?.add(shares)?)
    })
    .await
}

/// Waits until the responder has closed a witness in order: it has verified CONFIRM.
async fn recv_end(stream: &TcpStream) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "bytes after the last message")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Runs the responder's part of a late witness. `has_joins` tells whether a connection has had further subflows.
pub(super) async fn answer_late_witness(
    mut session: CompletedSession,
    witness: Witness,
    stream: &TcpStream,
    has_joins: impl Fn(&TcpStream) -> bool,
) -> Result<Level, SealedError> {
    let session = session.wait_for(Option::is_some).await.map_err(|_| SealedError::SessionEnded)?.clone();
    let session = session.ok_or(SealedError::SessionEnded)?;
    let (awaiting, share) = session.witnesses().share(witness)?;
    write_all(stream, &share).await?;
    let confirm: Confirm = recv(stream).await?;
    if has_joins(stream) {
        return Err(SealedError::EarlySubflow);
    }
    let shares = session.witnesses().verify_confirm(awaiting, &confirm)?;
    let level = session.add(shares)?;
    close_on_drop(stream)?;
    Ok(level)
}
