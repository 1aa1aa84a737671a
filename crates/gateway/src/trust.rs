//! Who a gateway is, which keys it accepts from peers, and which peers it has reached (mode `sealed`).

mod identities;
pub mod identity;
mod invited_clients;
mod known_peers;
mod peer_name;
mod sealed_peers;
mod state_directory;
mod verification;

pub use identities::{Identities, Trust};
pub(crate) use invited_clients::InvitedKey;
pub use invited_clients::{InvitedClient, InvitedClients, InvitedClientsError};
pub(crate) use known_peers::{KnownPeers, KnownPeersError};
pub use peer_name::PeerName;
pub use sealed_peers::{SealedPeer, SealedPeers, SealedPeersError};
pub(crate) use state_directory::{ensure_directories, private_directory, state_directory};
pub(crate) use verification::{AuthenticatedPeer, ExpectedPeer, KeyMatch, PeerAuthError};
