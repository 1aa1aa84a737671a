//! Where connections go: to the destination itself, or to an exit that connects to it.

use plait_proto::sealed::Service;

use super::exit_url::ExitUrl;
use crate::trust::PeerName;

/// Where a gateway's connections go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// To the destination, where a gateway may be or not.
    #[default]
    Direct,
    /// To this exit, always in mode `sealed`. It learns the destination, and resolves its name.
    Exit(ExitUrl),
}

impl Route {
    /// What the handshake with a peer asks for.
    pub(super) fn service(&self, peer: &PeerName) -> Service {
        match self {
            Route::Direct => peer.service(),
            Route::Exit(exit) => exit.service(),
        }
    }
}
