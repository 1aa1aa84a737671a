//! Who a gateway is, and which keys it accepts from peers (mode `sealed`).

mod identities;
pub mod identity;
mod known_peers;
mod peer_name;
mod verification;

pub use identities::{Identities, Trust};
pub use peer_name::PeerName;
pub(crate) use verification::{ExpectedPeer, KeyMatch, PeerAuthError};
