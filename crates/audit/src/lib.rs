//! What a listener on each path learnt of what captures hold, by really trying.
//!
//! [`audit`] reads one capture per path and takes, for each of them, the place of somebody who has that capture alone:
//!
//! - **off**: the payload is what they read. What the application itself encrypts (TLS, SSH) is not.
//! - **xor64**: they attack each contiguous run. The wire tells the exclusive or of plaintext bytes 65 apart, so that a
//!   run of any length has 65 unknown bytes; language, known texts and the zeros before a stream find them.
//! - **stream**, **sealed**: they try the same, in vain, and keep what is in clear: lengths, times, names. Who captured
//!   the keys and the random bytes of `stream`, thus listened on the trusted path, decrypts.
//!
//! Which mode a connection is in is told by plait's option in its handshake, or judged by its bytes. The result is an
//! [`Audit`], a document for programs; [`write_html`] makes a page of it, for people.
//!
//! **Contract.** No capture makes this panic or hang. Of payload at most [`Options::payload_limit`] bytes are held, and
//! at most [`Options::runs`] runs a path attacked, the longest first; what was left out is said. What is claimed to be
//! recovered is so with a confidence that is told; of random bytes nothing is claimed but with a probability of 2^-64 a
//! run. No key is in any result, and recovered content only in a page's excerpts.

#![forbid(unsafe_code)]

mod attacks;
mod audit;
mod content;
mod document;
mod handshake;
mod input;
mod mode;
mod model;
mod names;
mod page;
mod randomness;
mod recovery;
mod subject;
mod truth;
mod verdict;
mod views;
mod xor64;

pub use audit::{AuditError, Options, Progress, audit};
pub use document::{Attack, Audit, ConnectionView, DirectionView, Excerpt, Left, Packets, PathView};
pub use input::Source;
pub use mode::{Mode, ModeFrom};
pub use names::Name;
pub use page::write_html;
