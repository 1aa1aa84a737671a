//! Byte-stream transforms: bytes in, bytes out.
//!
//! A transform works on one direction of one connection as a stream: the caller hands over consecutive pieces of any
//! length, and the result does not depend on where the stream was cut.
//!
//! - [`xor64`]: the scrambling of the "not-every-not-any" papers, bit for bit. Obfuscation.
//! - [`stream`]: encryption that does not change the length, keyed by secrets that crossed only the trusted path.
//! - [`records`]: the authenticated records of mode `sealed`, with an authenticated end.

pub mod records;
pub mod stream;
mod wiped;
pub mod xor64;
