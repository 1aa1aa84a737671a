//! Why a frame is not analyzed.

use std::net::IpAddr;

use thiserror::Error;

use crate::error::ParseError;

/// Why a captured frame contains no [`Segment`](crate::Segment).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Skip {
    /// Something other than IPv4 or IPv6.
    #[error("not IP")]
    NotIp,
    /// IP with a protocol other than TCP.
    #[error("not TCP")]
    NotTcp {
        /// The sender's address and port. (`r#`, so that `Error` does not take it for the cause.)
        r#source: IpAddr,
        /// The destination.
        destination: IpAddr,
    },
    /// A fragment other than the first, which has no TCP header.
    #[error("a fragment without TCP header")]
    LaterFragment,
    /// A header that is truncated or invalid.
    #[error(transparent)]
    Malformed(#[from] ParseError),
}
