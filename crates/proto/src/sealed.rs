//! The handshake of mode `sealed`: what both ends compute and the messages they exchange, without I/O.
//!
//! Two ends that share no key and trust no authority agree on keys such that an attacker who is absent from one of their
//! paths can neither read nor modify what they send. A Noise handshake (`NNpsk2`) on the main path keeps out everybody who
//! only listens. Against an attacker who modifies messages there stand the other paths: on each of them, over a short
//! connection of its own called a *witness*, the ends exchange random shares, from which the handshake's pre-shared key is
//! derived, and afterwards confirm to each other that they saw the same handshake.
//!
//! | step | initiator | responder |
//! |---|---|---|
//! | 1 | [`Initiator::start`]: HELLO on the main path, WITNESS on every other | [`Responder::accept`] HELLO; a [`Rendezvous`] collects the witnesses |
//! | 2 | | [`Responder::reply`]: REPLY on the main path, SHARE on every other |
//! | 3 | [`Initiator::finish`]: CONFIRM on every other path, and IDENTITY, if the ends authenticate, on the main one; then records | |
//! | 4 | | [`AwaitingConfirms::verify`], then records |
//!
//! Every step consumes the one before it, and keys come out of the last ones only: a caller cannot send or accept an
//! application's byte before everything was verified.
//!
//! # Attackers it resists
//!
//! An attacker who is active (modifies, drops, injects) on the main path and
//!
//! - does not see one of the other paths does not know the pre-shared key: message 2 fails authentication at the initiator;
//! - listens on all other paths, or is active on all but one, knows that key, but cannot make the ends' handshake hashes
//!   equal: the confirmation on the path where he is not active is wrong, which the initiator detects first.
//!
//! An attacker active on every path that takes part stays undetected: [`Level`] tells how many took part. An initiator
//! whose witness does not get through proceeds without it, unless [`RequiredPaths`] forbid it; so an attacker who can
//! block a path counts as active there unless all paths are required. A responder has only the initiator's word for the
//! number of configured paths, and an anonymous initiator may be anybody: that it requires all of them protects honest
//! initiators.
//!
//! # Late witnesses
//!
//! The first byte need not wait for a slow path: an initiator may leave its witness out of HELLO, and [`SessionWitnesses`] add it
//! to the running session. Until then an attacker in the middle of the paths that took part is undetected, and reads.
//!
//! # Authentication
//!
//! An initiator that knows its peer, or wants to recognise it later, starts with a static key: the same with Noise's
//! `XXpsk2` in place of `NNpsk2`, in which both ends show static keys. The caller verifies these. Then even an attacker who
//! is active on every path is detected by the end that knows the other's key. HELLO also names the [`Service`] that the
//! initiator asks for, so that nobody can redirect it to another one under the same key.
//!
//! # Quantum computers
//!
//! A hybrid handshake exchanges keys with ML-KEM-768 as well as with X25519. Both results are in every key, so that traffic
//! recorded now stays secret unless both are broken. Static keys are X25519's alone: a quantum computer of that time could
//! pretend to be an end, but not read what was recorded.
//!
//! # Key updates
//!
//! From time to time [`KeyUpdate`] exchanges keys anew within the records of a session, so that an attacker who learns
//! its keys can read neither what was sent before the last exchange, nor, unless he modifies messages, what is sent after the next.
//!
//! # Secrets in memory
//!
//! [`Secret`](crate::Secret)s are wiped when they are dropped. The Noise library and the HMAC contexts made from them keep
//! copies which are not; gateways disable core dumps and ptrace for that reason.

mod closed_sessions;
mod exporter;
mod fair_pool;
mod framing;
mod handshake;
mod kem;
mod key_update;
mod keys;
mod late_witness;
mod limits;
mod messages;
mod noise;
mod paths;
mod rendezvous;
mod root;
mod service;
mod session_id;
mod side_connection;
mod x25519;

#[cfg(test)]
mod attacks;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
#[cfg(test)]
mod fuzz_seeds;
#[cfg(any(test, feature = "fuzzing"))]
mod loopback;
#[cfg(test)]
mod test_vectors;

pub use closed_sessions::ClosedSessions;
pub use exporter::{ExportError, Exporter};
pub use framing::{Bytes, Message, MessageError, MessageReader};
pub use handshake::{
    Answer, AwaitingConfirms, Closing, HandshakeError, Initiator, InitiatorConfig, Opening, Params,
    RequiredPaths, Responder, ResponderConfig, Session, WitnessMessages,
};
pub use key_update::{ControlRecord, KeyUpdate, KeyUpdateError, UpdateLimits, UpdateSecrets};
pub use late_witness::{AwaitingConfirm, AwaitingShare, LateShares, SessionWitnesses};
pub use limits::{Limits, peer_network};
pub use messages::{
    Confirm, Confirmation, FirstMessage, Hello, Identity, OpeningMessage, Reply, Share, Side, Witness,
};
pub use paths::{Level, MAX_PATHS, MAX_WITNESSES, PathId, PathIds, Paths, PathsError};
pub use rendezvous::{CompleteSession, Rendezvous, RendezvousError, RendezvousStats};
pub use service::{Service, Services};
pub use session_id::SessionId;
pub use side_connection::{AwaitingSideConfirm, AwaitingSideShare, SideSecrets};
