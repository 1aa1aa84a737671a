//! A connection and its subflows at one moment.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::mptcp::Token;
use crate::tcp_info::{State, TcpInfo};

/// A connection and its subflows at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When, seconds since 1970.
    pub time: f64,
    /// Which connection.
    pub token: Token,
    /// The connection; `None` when it had ended.
    pub connection: Option<Connection>,
    /// Its subflows: first those that are there, then those that ended since the sample before.
    pub subflows: Vec<Subflow>,
}

/// A connection: state and figures of the data level.
///
/// Counters run from the connection's beginning. What only newer kernels have is `None` on older ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Local address of the initial subflow.
    pub local: SocketAddr,
    /// Peer's address of the initial subflow.
    pub remote: SocketAddr,
    /// Where it is in its life.
    pub state: State,
    /// User whose program made it.
    pub uid: u32,
    /// Inode of the program's socket (`/proc/PID/fd`); 0 when the program has closed it.
    pub inode: u32,
    /// It has fallen back to TCP (RFC 8684, section 3.7).
    pub fallback: bool,
    /// Data-level checksums are in use.
    pub checksums: bool,
    /// Bytes sent, without reinjections (kernel 6.5).
    pub bytes_sent: Option<u64>,
    /// Bytes acknowledged by the peer (kernel 6.5).
    pub bytes_acked: Option<u64>,
    /// Bytes received in order (kernel 6.5).
    pub bytes_received: Option<u64>,
    /// Bytes sent again at the data level (kernel 6.5).
    pub bytes_reinjected: Option<u64>,
    /// Retransmission timeouts at the data level (kernel 6.5).
    pub timeouts: Option<u32>,
    /// Bytes that the program wrote and the peer has not acknowledged.
    pub bytes_unacked: u64,
    /// Addresses announced to the peer.
    pub addresses_announced: u8,
    /// Addresses of the peer that were accepted.
    pub addresses_accepted: u8,
}

/// A subflow: where it goes and what TCP says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subflow {
    /// Which subflow: no other one since the host started has this number.
    pub id: u64,
    /// Local address.
    pub local: SocketAddr,
    /// Peer's address.
    pub remote: SocketAddr,
    /// Name of the interface that it is bound to or that has its local address; `None` if there is none now.
    pub interface: Option<String>,
    /// It was made by MP_JOIN. This and the next four: `None` where the kernel does not tell this user (before
    /// 6.15, it takes `CAP_NET_ADMIN`).
    pub joined: Option<bool>,
    /// This end wants it as a backup.
    pub backup_local: Option<bool>,
    /// The peer wants it as a backup.
    pub backup_remote: Option<bool>,
    /// Identifier of the local address.
    pub local_id: Option<u8>,
    /// Identifier of the peer's address.
    pub remote_id: Option<u8>,
    /// Its congestion control.
    pub congestion_control: Option<String>,
    /// State and figures.
    #[serde(flatten)]
    pub tcp: TcpInfo,
    /// It has ended, and this is the last that is known of it.
    pub closed: Option<Closed>,
}

impl Subflow {
    /// An end wants it as a backup; `false` also where that is unknown.
    pub fn backup(&self) -> bool {
        self.backup_local == Some(true) || self.backup_remote == Some(true)
    }
}

/// What the last figures of a subflow are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Closed {
    /// Those it ended with.
    Final,
    /// Those of the sample before its end; what it carried after that is not known.
    LastSeen,
}
