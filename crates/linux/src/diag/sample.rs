//! A connection and its subflows at one point in time.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::mptcp::Token;
use crate::tcp_info::{State, TcpInfo};

/// A connection and its subflows at one point in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since 1970.
    pub time: f64,
    /// The token of the connection.
    pub token: Token,
    /// The connection; `None` if it has ended.
    pub connection: Option<Connection>,
    /// Its open subflows, then those closed since the previous sample.
    pub subflows: Vec<Subflow>,
}

/// A connection: state and statistics at the data level.
///
/// Counters start with the connection. Values that only newer kernels have are `None` on older ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Local address of the initial subflow.
    pub local: SocketAddr,
    /// Peer's address of the initial subflow.
    pub remote: SocketAddr,
    /// Its state.
    pub state: State,
    /// The user who created it.
    pub uid: u32,
    /// Inode of the program's socket (`/proc/PID/fd`); 0 after the program has closed it.
    pub inode: u32,
    /// Whether it has fallen back to TCP (RFC 8684, section 3.7).
    pub fallback: bool,
    /// Whether DSS checksums are used.
    pub checksums: bool,
    /// Bytes sent, without reinjections (kernel 6.5).
    pub bytes_sent: Option<u64>,
    /// Bytes acknowledged by the peer (kernel 6.5).
    pub bytes_acked: Option<u64>,
    /// Bytes received in order (kernel 6.5).
    pub bytes_received: Option<u64>,
    /// Bytes reinjected (kernel 6.5).
    pub bytes_reinjected: Option<u64>,
    /// Retransmission timeouts at the data level (kernel 6.5).
    pub timeouts: Option<u32>,
    /// Bytes written by the program and not acknowledged by the peer.
    pub bytes_unacked: u64,
    /// Addresses announced to the peer.
    pub addresses_announced: u8,
    /// Addresses of the peer that were accepted.
    pub addresses_accepted: u8,
}

/// A subflow: its addresses and TCP state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subflow {
    /// Identifies the subflow; unique since the host started.
    pub id: u64,
    /// Local address.
    pub local: SocketAddr,
    /// Peer's address.
    pub remote: SocketAddr,
    /// Name of the interface that it is bound to or that has its local address.
    pub interface: Option<String>,
    /// Whether it was created by MP_JOIN. This and the next four fields require `CAP_NET_ADMIN` before kernel 6.15;
    /// `None` without it.
    pub joined: Option<bool>,
    /// Whether this end requests it as a backup.
    pub backup_local: Option<bool>,
    /// Whether the peer requests it as a backup.
    pub backup_remote: Option<bool>,
    /// Identifier of the local address.
    pub local_id: Option<u8>,
    /// Identifier of the peer's address.
    pub remote_id: Option<u8>,
    /// Its congestion control algorithm.
    pub congestion_control: Option<String>,
    /// TCP state and statistics.
    #[serde(flatten)]
    pub tcp: TcpInfo,
    /// The origin of its final statistics; `None` if it is open.
    pub closed: Option<Closed>,
}

impl Subflow {
    /// Whether either end requests it as a backup; `false` if unknown.
    pub fn backup(&self) -> bool {
        self.backup_local == Some(true) || self.backup_remote == Some(true)
    }
}

/// The origin of the final statistics of a closed subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Closed {
    /// Taken when it was closed.
    Final,
    /// Taken from the last sample before; what it carried after that is unknown.
    LastSeen,
}
