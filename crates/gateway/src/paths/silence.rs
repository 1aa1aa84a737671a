//! Closes the subflows of an accepted connection on which the peer does not answer while it answers on others.
//!
//! The end that opened a connection creates its subflows ([`super::path_watch`]); both ends have to close those on silent paths:
//! each sends on them what it has, and a reset does not arrive there.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use plait_linux::diag::Sockets;
use tracing::{debug, info};

use super::data_acks::DataAcks;
use super::liveness::{Health, Liveness};
use super::shared_receive_buffer::SharedReceiveBuffer;
use super::watched::{BUSY_INTERVAL, Pace, Watched};
use crate::monitor::Monitor;

/// Closes subflows of connections that the kernel's path manager manages, which takes `CAP_NET_ADMIN`.
pub(crate) enum SubflowCloser {
    /// This process lacks it.
    Monitor(Arc<Monitor>),
    /// This process may have it.
    Own(Mutex<Sockets>),
    /// The kernel cannot do it.
    None,
}

impl SubflowCloser {
    pub(crate) fn new(monitor: Option<&Arc<Monitor>>) -> SubflowCloser {
        if let Some(monitor) = monitor {
            return SubflowCloser::Monitor(Arc::clone(monitor));
        }
        match Sockets::open() {
            Ok(sockets) => SubflowCloser::Own(Mutex::new(sockets)),
            Err(error) => {
                debug!("subflows on silent paths will not be closed: {error}");
                SubflowCloser::None
            }
        }
    }

    /// Closes a subflow. Its socket is not bound to an interface.
    fn close(&self, local: SocketAddr, remote: SocketAddr) -> Result<(), String> {
        match self {
            SubflowCloser::Monitor(monitor) => {
                monitor.close_subflow(local, remote).map_err(|error| error.to_string())
            }
            SubflowCloser::Own(sockets) => {
                let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
                sockets.abort_subflow(local, remote, 0).map(|_| ()).map_err(|error| error.to_string())
            }
            SubflowCloser::None => Ok(()),
        }
    }
}

/// Closes a connection's subflows on silent paths, for as long as it is polled.
pub(crate) async fn close_silent(connection: &impl Watched, closer: &SubflowCloser) -> Infallible {
    let (mut liveness, mut data_acks, mut pace) = (Liveness::default(), DataAcks::default(), Pace::new());
    let mut receive_buffer = SharedReceiveBuffer::default();
    // A short connection costs nothing.
    tokio::time::sleep(BUSY_INTERVAL).await;
    loop {
        // The error of a connection that has ended is the relay's to tell.
        let info = connection.full_info().ok();
        let subflows = info.as_ref().map_or(&[][..], |info| &info.subflows);
        receive_buffer.share_with_new_subflows(connection, subflows);
        let now = Instant::now();
        let mut health = liveness.judge(now, subflows, |_| false);
        if let Some(info) = &info {
            data_acks.mark_dead_if_data_ack_stalls(now, info, &mut health);
        }
        for (subflow, _) in subflows.iter().zip(&health).filter(|(_, health)| **health == Health::Dead) {
            let (local, remote) = (subflow.local, subflow.remote);
            match closer.close(local, remote) {
                Ok(()) => debug!("closed the subflow from {local} to {remote}"),
                Err(error) => {
                    info!("subflows on silent paths are not closed: {error}");
                    return pending().await;
                }
            }
        }
        match pace.next(connection, subflows, &liveness) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => pace.active(connection).await,
        }
    }
}
