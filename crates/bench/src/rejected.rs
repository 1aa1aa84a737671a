//! The designs for path dispersion that the "not-every-not-any" papers considered and rejected, as reference
//! implementations.
//!
//! **For comparison only.** No mode of plait offers them, they do not wipe secrets, and they are written to be read.
//!
//! | design | bytes on all paths per byte | paths that may fail | what one path of two reveals |
//! |---|---|---|---|
//! | [`sharing`] by XOR, n of n | n | none | nothing, unconditionally |
//! | [`sharing`], Shamir's, 2 of n | n | n - 2 | nothing, unconditionally |
//! | [`packet_pairs`], half coded | 1 | none | every second packet, or the XOR of every two |
//! | [`packet_pairs`], coded | 1 | none | one combination of every two packets: each reveals the other |
//! | [`block_chaining`] | 1 | none | all but the first block of every contiguous run |
//!
//! Only secret sharing keeps its promise, and it multiplies the traffic, so that two paths together carry no more than
//! one. The others add no bytes and no secrecy: without a key or fresh randomness, a transform that does not expand
//! reveals on each path as much information as it carries there. plait offers `stream` and `sealed` instead.

pub(crate) mod block_chaining;
mod gf256;
pub(crate) mod packet_pairs;
pub(crate) mod sharing;
