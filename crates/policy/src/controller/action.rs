//! What a controller can request.

use std::net::SocketAddr;

use plait_config::Rate;
use plait_linux::mptcp::Token;
use plait_linux::pm;

use crate::engine::FourTuple;
use crate::model::Chain;

/// A state to maintain until the next tick, or an operation to perform once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keeps this chain loaded.
    Chain(Chain),
    /// Paces the subflow's sender on this host (the actor `pace`).
    Pace {
        /// The subflow.
        subflow: FourTuple,
        /// The maximum rate.
        rate: Rate,
    },
    /// Limits the rate of the peer on the subflow (the actor `rate_limit`, at egress).
    Limit {
        /// The subflow.
        subflow: FourTuple,
        /// The maximum rate.
        rate: Rate,
    },
    /// Makes both ends use the subflow as a backup (the actor `set_backup`, at ingress and egress). Once it is no longer
    /// requested, both are told that it is a regular subflow (`clear_backup`), for as long as the controller's expiry.
    Backup {
        /// The subflow.
        subflow: FourTuple,
    },
    /// Creates a subflow each time it is requested, on connections whose path manager runs in user space. On other
    /// connections the kernel creates subflows, and chains with `deny_join` prevent that.
    Create {
        /// The connection.
        token: Token,
        /// This host's end.
        local: pm::Local,
        /// The peer's end.
        remote: SocketAddr,
        /// The peer's address identifier; 0: the address of the initial subflow, or unknown.
        remote_id: u8,
    },
    /// Closes a subflow, on connections whose path manager runs in user space.
    Remove {
        /// The connection.
        token: Token,
        /// The subflow.
        subflow: FourTuple,
    },
    /// Writes a line to the log of this process.
    Log(String),
}
