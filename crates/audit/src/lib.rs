//! What an eavesdropper on each path learns from captures, found by attacking them.
//!
//! [`audit`] reads one capture per path and, for each path, acts as an eavesdropper who has that capture alone:
//!
//! - **off**: the payload is readable, except what the application itself encrypts (TLS, SSH).
//! - **xor64**: each contiguous run is attacked. The wire reveals the XOR of plaintext bytes 65 apart, so a run of any
//!   length has 65 unknown bytes; language statistics, known texts and the zeros before a stream find them.
//! - **stream**, **sealed**: the same attack is tried and fails; lengths, times and identifiers sent in clear remain.
//!   An eavesdropper who captured the MPTCP keys and the random bytes of `stream`, which cross the trusted path,
//!   decrypts it.
//!
//! The mode of a connection is read from plait's option in its handshake, or estimated from its bytes. The result is an
//! [`Audit`], a document for programs; [`write_html`] makes a page of it, for people.
//!
//! **Contract.** No capture makes this panic or hang. At most [`Options::payload_limit`] bytes of payload are held, and
//! at most [`Options::runs`] runs per path are attacked, the longest first; the result states what was skipped. Where the
//! captures lack part of the payload, or part was not attacked, the [`Conclusion`] is at best that it cannot be judged; sequence
//! numbers reveal packets that a capture lacks altogether. Every recovered byte comes with a confidence; for random bytes the probability of a false claim is at most 2^-64 per run.
//! No result contains a key, and only a page's excerpts contain recovered content.

#![forbid(unsafe_code)]

mod audit;
mod content;
mod document;
mod evidence;
mod ground_truth;
mod headers;
mod histogram;
mod identifiers;
mod input;
mod mode;
mod model;
mod page;
mod plan;
mod progress;
mod recovery;
mod sequence;
mod target;
mod verdict;
mod views;
mod xor64;

pub use audit::{AuditError, Options, audit};
pub use document::{
    Attack, Audit, Conclusion, ConnectionView, DirectionView, Excerpt, Packets, PathView, Skipped,
};
pub use identifiers::Identifier;
pub use input::Source;
pub use mode::{Mode, ModeSource};
pub use page::write_html;
pub use progress::Progress;
