//! What goes on in the MPTCP connections of this network namespace, for any user.
//!
//! The kernel lists sockets over netlink (`sock_diag(7)`): MPTCP sockets with `struct mptcp_info`, TCP sockets with
//! `struct tcp_info` and, if they are subflows, what MPTCP knows of them. [`Watch`] puts these together into
//! [`Sample`]s, one per connection, and adds the subflows that ended since the sample before, as far as they are
//! known: root has a BPF program for them. [`Sockets`] asks about single ones. It takes kernel 5.10 or later with `CONFIG_INET_DIAG` and
//! `CONFIG_INET_MPTCP_DIAG`, as distributions have.
//!
//! Nothing that the kernel sends makes this module panic.

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
    /// The kernel has no such list.
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
    /// The kernel refused.
    #[error("cannot list {protocol} sockets: {reason}")]
    Refused {
        /// TCP or MPTCP.
        protocol: &'static str,
        /// What the kernel said.
        reason: netlink::Error,
    },
    /// There is no netlink.
    #[error("cannot open a netlink socket: {0}")]
    Open(io::Error),
}
