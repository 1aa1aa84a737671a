//! Pure byte-stream transforms: bytes in, bytes out, no input or output of their own.
//!
//! A transform works on one direction of one connection as a stream: the caller hands over consecutive pieces
//! of any length, and the result does not depend on where the stream was cut.
//!
//! - [`xor64`]: the scrambling of the "not-every-not-any" papers, bit for bit.

pub mod xor64;
