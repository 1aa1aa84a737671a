//! Pure byte-stream transforms: bytes in, bytes out, no input or output of their own.
//!
//! A transform works on one direction of one connection as a stream: the caller hands over consecutive pieces
//! of any length, and the result does not depend on where the stream was cut.
//!
//! - [`xor64`]: the scrambling of the "not-every-not-any" papers, bit for bit. Obfuscation.
//! - [`stream`]: encryption that does not change the length, keyed by what only the trusted path carried.
//! - [`sealed`]: authenticated records with an authenticated end.
//! - [`candidates`]: what the papers considered and rejected, for comparison only.

pub mod candidates;
pub mod sealed;
pub mod stream;
mod wiped;
pub mod xor64;
