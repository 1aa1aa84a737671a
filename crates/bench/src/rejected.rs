//! Other designs for path dispersion: those that the "not-every-not-any" papers considered and rejected, and two of the
//! literature, as reference implementations.
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
//! | [`package_transform`] | 1, and a block per package | none | nothing, if the other path carries a block of each package |
//! | [`encrypt_and_shuffle`] | 1 | none | nothing without the key, and half of every cipher block with it |
//!
//! Secret sharing keeps its promise and multiplies the traffic, so that two paths together carry no more than one. The
//! package transform keeps it if the sender decides which bytes take which path, which neither a socket nor a gateway does on
//! Linux; data then waits for the slowest path, package by package. Shuffling needs a key, and with a key a cipher
//! suffices. The others add no bytes and no secrecy: without a key or fresh randomness, a transform that does not expand
//! reveals on each path as much information as it carries there. plait offers `stream` and `sealed` instead.

pub(crate) mod block_chaining;
pub(crate) mod encrypt_and_shuffle;
mod gf256;
pub(crate) mod package_transform;
pub(crate) mod packet_pairs;
pub(crate) mod sharing;
