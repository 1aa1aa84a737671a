//! An accepted side connection.

use std::sync::{Arc, Weak};

use plait_proto::sealed::PathId;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use crate::running_session::RunningSession;
use crate::side_connections::OpenedBy;
use crate::socket::close_on_drop;

/// A side connection of a session, after its handshake.
pub(crate) struct SideConnection {
    far: TcpStream,
    session: Weak<RunningSession>,
    path: PathId,
    _place: OwnedSemaphorePermit,
}

impl SideConnection {
    pub(crate) fn new(
        far: TcpStream,
        session: Weak<RunningSession>,
        path: PathId,
        place: OwnedSemaphorePermit,
    ) -> SideConnection {
        SideConnection { far, session, path, _place: place }
    }

    /// Carries copies until it or its session ends.
    pub(super) async fn run(self) {
        let running = self.session.upgrade();
        let running = running.and_then(|session| Some((session.end(), Arc::clone(session.side()?))));
        let Some((end, side)) = running else { return };
        tokio::select! {
            error = side.run(self.path, &self.far, OpenedBy::Peer) => {
                debug!("a side connection of path {}: {error}", self.path);
            }
            () = end => {
                // It has no bytes that anybody waits for.
                let _ = close_on_drop(&self.far);
            }
        }
    }
}
