//! plait's protocol without any I/O: no sockets, clocks, files or runtime. Callers move the bytes.
//!
//! - [`option`]: the modes and the bits by which the TCP option negotiates them.
//! - [`close_reason`]: why an end ends a connection, as it tells the other.
//! - [`codec`]: what happens to an application's bytes once a mode was negotiated.
//! - [`sealed`]: the handshake of mode `sealed`: messages, state machines of both ends, and the responder's table of
//!   half-open sessions; and the key updates after it.
//! - [`exit`]: the destinations that initiators of mode `sealed` name to a responder that is an exit, and its answers.
//! - [`datagrams`]: the packets that carry datagrams to an exit and back, over UDP.
//! - [`identity`]: long-term key pairs by which the ends of mode `sealed` authenticate.
//!
//! The protocol is specified in `docs/internals/protocol.md`, its promises in `docs/reference/threat-model.md`.

pub mod close_reason;
pub mod codec;
pub mod datagrams;
mod derive;
pub mod exit;
pub mod identity;
pub mod option;
pub mod sealed;
mod secret;

pub use derive::ParseNameError;
pub use secret::{RandomError, Secret};

// The checks of fuzz targets, which tests include, refer to the crate by name.
#[cfg(test)]
extern crate self as plait_proto;
