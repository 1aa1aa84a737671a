//! What `plait status` shows of a gateway, as one JSON document.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use plait_proto::option::Mode;
use serde::{Deserialize, Serialize};

use crate::handshake::FailureReason;
use crate::side_connections::Redundancy;

/// A running gateway and its connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Process id.
    pub pid: u32,
    /// `serve`, `proxy`, `run`, `daemon`, or `library`.
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
    /// Datagrams to an exit, or of an exit's clients.
    #[serde(default)]
    pub datagrams: DatagramReport,
    /// Live connections.
    pub connections: Vec<ConnectionReport>,
}

/// Datagrams since the gateway's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramReport {
    /// Associations, now: each is a socket of a program, or an address and port of a host behind a router.
    pub associations: u64,
    /// By path: the interface at a client, or `default route` where routing decides; `clients` for all paths of an exit's clients.
    pub paths: BTreeMap<String, DatagramPathReport>,
}

/// Datagrams on a path, copies included, and the bytes of their payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramPathReport {
    /// Sent to the other end.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Received from the other end.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets of the other end that have not arrived though later ones have, probes included.
    pub lost: u64,
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
    /// Of `serve`: the service that it is carried to; absent for those of an exit and of the library.
    #[serde(default)]
    pub service: Option<String>,
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
    /// Mode `sealed`: copies of records on side connections; absent if this gateway wants none.
    pub redundancy: Option<RedundancyReport>,
    /// Application bytes sent to the peer.
    pub sent: u64,
    /// Application bytes received from the peer.
    pub received: u64,
    /// Seconds since the handshake.
    pub age_s: f64,
    /// Its subflows.
    pub subflows: Vec<SubflowReport>,
}

impl ConnectionReport {
    /// Its protection in words, with these paths, such as `sealed 2/2 via eth0, wlan0, identity pinned`.
    #[must_use]
    pub fn protection(&self, paths: &[String]) -> String {
        let mut text = self.mode.to_string();
        match self.level.as_deref() {
            None => {}
            // Nothing witnesses it, so it does not look as if all paths took part.
            Some("1/1") => text.push_str(" (single path)"),
            Some(level) => text.extend([" ", level]),
        }
        if !paths.is_empty() {
            text.extend([" via ", &paths.join(", ")]);
        }
        if let Some(identity) = &self.identity {
            text.extend([", identity ", identity]);
        }
        if self.protocol == "tcp" {
            text.push_str(", over TCP");
        }
        text
    }
}

/// The copies of a connection's records, since its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RedundancyReport {
    /// The writes that are copied: those of at most so many bytes, or `all`.
    pub copied: Redundancy,
    /// Side connections, now.
    pub side_connections: u64,
    /// Copies sent.
    pub sent: u64,
    /// Copies not sent, because a side connection did not take them at once.
    pub dropped: u64,
    /// Copies received before their record.
    pub first: u64,
    /// Copies received after their record, or too early to be used.
    pub late: u64,
    /// What was received in place of copies, after which its side connection was closed.
    pub invalid: u64,
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
