//! What `plait status` shows of a gateway, as one JSON document.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use plait_proto::option::Mode;
use serde::{Deserialize, Serialize};

use crate::handshake::FailureReason;

/// A running gateway and its connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Process id.
    pub pid: u32,
    /// `serve`, `proxy`, `run`, or `library`.
    pub command: String,
    /// The addresses it listens on.
    pub listen: Vec<SocketAddr>,
    /// The mode it prefers or requires.
    pub mode: Mode,
    /// Whether unprotected connections are refused.
    pub require: bool,
    /// Mode `sealed`: the paths that must take part, as in `--require`, such as `paths:2`; `None` if any suffice.
    pub required_paths: Option<String>,
    /// Connections since the start.
    pub counts: Counts,
    /// The refused connections by reason.
    pub handshake_failures: BTreeMap<FailureReason, u64>,
    /// Inbound handshakes of mode `sealed`.
    pub handshakes: Handshakes,
    /// Live connections.
    pub connections: Vec<ConnectionReport>,
}

/// Connections since the gateway's start, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Carried protected.
    pub protected: u64,
    /// Those of `protected` in mode `sealed` that were reset because a record was modified, lost or malformed, or a key
    /// update failed.
    pub invalid_records: u64,
    /// Key updates of connections in mode `sealed`, which gave this end new keys.
    pub key_updates: u64,
    /// Carried unprotected.
    pub plain: u64,
    /// Refused by the policy, or because the handshake failed.
    pub refused: u64,
    /// Those of `refused` whose peer failed or refused to authenticate.
    pub rejected_identity: u64,
}

/// Inbound handshakes of mode `sealed`: each is a session of a main connection and its witnesses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// Half-open sessions, now.
    pub waiting: u64,
    /// Sessions whose connections all arrived.
    pub complete: u64,
    /// Sessions dropped because a connection did not arrive in time, the main one ended, or newer ones displaced them.
    pub dropped: u64,
    /// Those of `dropped` that newer ones displaced, because too many were half open.
    pub displaced: u64,
    /// Connections refused: replays, or without a session.
    pub refused: u64,
}

/// One live connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Counts from 1 within one gateway.
    pub id: u64,
    /// The application's address.
    pub application: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// How its bytes are protected.
    pub mode: Mode,
    /// Mode `sealed`: witnessed and configured paths, such as `2/3`.
    pub level: Option<String>,
    /// Mode `sealed`: how the peer's key is known, `pinned` or `first-use`; absent if the peer is anonymous.
    pub identity: Option<String>,
    /// Whether the peer agreed on the mode in the handshake.
    pub negotiated: bool,
    /// `mptcp`, or `tcp` after a fallback.
    pub protocol: String,
    /// RFC 8684 token, hexadecimal; absent with `tcp`.
    pub token: Option<String>,
    /// Mode `sealed`: how often the ends have exchanged keys since the handshake.
    pub key_updates: Option<u64>,
    /// Application bytes sent to the peer.
    pub sent: u64,
    /// Application bytes received from the peer.
    pub received: u64,
    /// Seconds since the handshake.
    pub age_s: f64,
    /// Its subflows.
    pub subflows: Vec<SubflowReport>,
}

/// One subflow of a live connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubflowReport {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// Bytes sent on it that the peer acknowledged.
    pub acked: u64,
    /// Bytes received on it.
    pub received: u64,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
}
