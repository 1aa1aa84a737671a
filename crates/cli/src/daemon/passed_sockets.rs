//! Sockets that are listened on already: by the service manager (`sd_listen_fds(3)`), or by the daemon that this one replaces. So no
//! client is refused while the daemon restarts.
//!
//! The service manager can have those of the proxy and the metrics only: BPF programs negotiate by the control group that a socket was
//! created in, so that peers' connections to a socket of the service manager would be unprotected. Those of a replaced daemon are
//! passed with its negotiation.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::Context;

/// The sockets, by their addresses.
#[derive(Default)]
pub(super) struct PassedSockets {
    /// Of programs and their hosts.
    pub(super) clients: HashMap<SocketAddr, TcpListener>,
    /// Of peers.
    pub(super) peers: HashMap<SocketAddr, TcpListener>,
    /// Of peers' datagrams.
    pub(super) datagrams: HashMap<SocketAddr, UdpSocket>,
}

impl PassedSockets {
    /// Takes those of the service manager.
    pub(super) fn of_service_manager() -> anyhow::Result<PassedSockets> {
        let descriptors = sd_notify::listen_fds().context("cannot use the sockets of the service manager")?;
        let mut sockets = PassedSockets::default();
        for descriptor in descriptors {
            // SAFETY: the service manager has opened it for this process; it stays open, and is only duplicated here.
            let passed: OwnedFd = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
            let listener = TcpListener::from(passed);
            listener.set_nonblocking(true)?;
            // Not a socket of the Internet.
            let Ok(address) = listener.local_addr() else { continue };
            sockets.clients.insert(address, listener);
        }
        Ok(sockets)
    }
}
