//! Byte-stream transforms: bytes in, bytes out.
//!
//! A transform works on one direction of one connection as a stream: the caller passes consecutive pieces of any
//! length, and the result does not depend on how the stream is split.
//!
//! - [`xor64`]: the scrambling of the "not-every-not-any" papers, bit by bit identical. Obfuscation.
//! - [`stream`]: encryption that does not change the length, with keys derived from secrets that crossed only the
//!   trusted path.
//! - [`records`]: the authenticated records of mode `sealed`, with an authenticated end.

pub mod records;
pub mod stream;
pub(crate) mod wiped;
pub mod xor64;
