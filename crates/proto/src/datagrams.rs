//! Datagrams between an initiator and an [exit](crate::exit), beside the connections of mode `sealed`: packets over UDP on several
//! paths, whose keys follow from a sealed session.
//!
//! The initiator opens a connection for [`Destination::Datagrams`](crate::exit::Destination::Datagrams). The exit answers with a
//! [`SessionId`] as the connection's first bytes; packets are valid as long as this connection is open.
//!
//! # Security properties
//!
//! As those of the sealed session, whose exporter provides the keys: an attacker without them learns the length, the time and the
//! header of packets, and that they belong to one session. The [`Opener`] rejects what was modified, made up or received before.
//! Packets may be lost, delayed or reordered, as those of UDP.
//!
//! Keys are not renewed: forward secrecy begins when the session has ended.
//!
//! # Definition
//!
//! ```text
//! path (1 byte) | session (8) | number (8, big-endian) | ciphertext | tag (16)
//! ```
//!
//! Ciphertext and tag are ChaCha20-Poly1305's over a [`Message`], with the first 17 bytes as additional data. The nonce is 3 zero
//! bytes, the path, and the number. Each end numbers the packets of each path from 0, and remembers the last [`WINDOW`] numbers
//! of the other (RFC 4303, section 3.4.3).
//!
//! ```text
//! to responder (32 bytes) | to initiator (32) = exporter("plait datagrams 1", session, 64)
//! ```

mod message;
mod packet;
mod replay;

pub use message::{MAX_SHARE, Message, MessageError, PathChoice, Preference};
pub use packet::{OVERHEAD, Opener, PacketError, PathId, Sealer, SessionId, keys};
pub use replay::WINDOW;

/// Paths of a session.
pub const MAX_PATHS: usize = 16;
