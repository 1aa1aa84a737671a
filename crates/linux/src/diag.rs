//! The state of the MPTCP connections in this network namespace, without privileges.
//!
//! The kernel lists sockets over netlink (`sock_diag(7)`): MPTCP sockets with `struct mptcp_info`, TCP sockets with
//! `struct tcp_info` and, for subflows, their MPTCP state. [`Watch`] combines these into [`Sample`]s, one per
//! connection, and adds the subflows closed since the previous sample (for root, reliably, by a BPF program).
//! [`Sockets`] queries single sockets. Requires kernel 5.10 or later with `CONFIG_INET_DIAG` and
//! `CONFIG_INET_MPTCP_DIAG`, which distributions enable.
//!
//! No data from the kernel makes this module panic.

mod closed;
mod growth;
mod message;
mod sample;
mod sockets;
mod watch;

pub use growth::{Carried, Grown, Growth};
pub use sample::{Closed, Connection, Sample, Subflow};
pub use sockets::Sockets;
pub use watch::Watch;

use std::io;

use crate::netlink;

/// Why the connections cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not support listing these sockets.
    #[error(
        "this kernel does not list {protocol} sockets: expected a kernel of version 5.10 or later with {option} \
         (as a module, `modprobe {module}` as root may load it)"
    )]
    Missing {
        /// TCP or MPTCP.
        protocol: &'static str,
        /// The kernel's configuration option.
        option: &'static str,
        /// The kernel's module.
        module: &'static str,
    },
    /// The kernel refused the request.
    #[error("cannot list {protocol} sockets: {reason}")]
    Refused {
        /// TCP or MPTCP.
        protocol: &'static str,
        /// The kernel's reason.
        reason: netlink::Error,
    },
    /// The kernel did not abort a subflow.
    #[error(
        "cannot close a subflow: {0}; expected root, or CAP_NET_ADMIN in this network namespace, and a kernel with \
         CONFIG_INET_DIAG_DESTROY"
    )]
    Abort(netlink::Error),
    /// A netlink socket cannot be opened.
    #[error("cannot open a netlink socket: {0}")]
    Open(io::Error),
}
