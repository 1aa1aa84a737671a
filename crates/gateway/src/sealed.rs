//! The handshake of mode `sealed`, without input or output: what both ends compute and the messages they exchange.
//!
//! Two ends that share no key and trust no authority agree on keys so that nobody who is absent from one of their paths
//! can read or change what they say. A Noise handshake (`NNpsk2`) on the main path keeps out everybody who only listens.
//! Against somebody who changes messages there stand the other paths: on each of them, over a short connection of its own
//! that is called a *witness*, the ends exchange random shares, of which the handshake's pre-shared key is made, and
//! afterwards confirm to each other that they saw the same handshake.
//!
//! | step | initiator | responder |
//! |---|---|---|
//! | 1 | [`Initiator::begin`]: HELLO on the main path, WITNESS on every other | [`Responder::hear`] HELLO; a [`Desk`] gathers the witnesses |
//! | 2 | | [`Responder::answer`]: REPLY on the main path, SHARE on every other |
//! | 3 | [`Initiator::finish`]: CONFIRM on every other path, and IDENTITY, if it is asked for, on the main one; then records | |
//! | 4 | | [`handshake::Unconfirmed::verify`], then records |
//!
//! Every step consumes the one before it, and keys come out of the last ones alone: there is no way to write them that
//! lets an application's byte out or in before everything was verified.
//!
//! # Who is held off
//!
//! Somebody who is active (changes, drops, invents) on the main path and
//!
//! - does not see one of the other paths does not know the pre-shared key: message 2 does not open at the initiator;
//! - listens on all other paths, or is active on all but one, knows the key, but not how to make the ends' handshake
//!   hashes equal: the confirmation on the path where he is not active is wrong, and it is the initiator who sees it first.
//!
//! Who is active on every path that takes part stands between the ends and stays unseen: [`Level`] says how many took part.
//! An initiator whose witness does not get through begins without it, unless [`Demand::AllPaths`] forbids; so whoever can
//! block a path counts as active there where all paths are not demanded. A responder has only the initiator's word for how
//! many paths were configured, and knows nobody: that it demands them all guards honest initiators.
//!
//! # Who says who he is
//!
//! An initiator that knows its peer, or wants to know it again, asks for [`Version::Identified`](messages::Version): the same
//! with Noise's `XXpsk2` in the place of `NNpsk2`, in which both ends show static keys. [`crate::trust`] judges these. Then
//! even who is active on every path is found, by the end that knows the other's key.
//!
//! # What stays in memory
//!
//! [`keys::Secret`]s are wiped when they are dropped. The Noise library and the HMAC contexts that are made from them keep
//! copies which are not; a gateway cannot be dumped by other users, and makes no core files.

mod handshake;
mod keys;
mod messages;
mod noise;
mod paths;
mod sessions;

#[cfg(test)]
mod attacks;
#[cfg(any(test, feature = "fuzzing"))]
mod both_ends;
#[cfg(test)]
mod corpus;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(test)]
mod vectors;

pub(crate) use handshake::{
    Agreed, Closing, Demand, Established, ForWitnesses, HandshakeError, Initiator, Responder, Terms,
};
pub(crate) use keys::{RandomError, Secret};
pub(crate) use messages::{
    Confirm, First, Hello, Identity, Incoming, Message, MessageError, Reply, SessionId, Share, Witness,
};
pub(crate) use paths::{Level, MAX_PATHS, MAX_WITNESSES, PathId, Paths, PathsError};
pub(crate) use sessions::{Desk, Gathered, Limits, Refused};
