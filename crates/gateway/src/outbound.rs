//! The initiating half of a gateway: connections of applications, carried to peers by the trusted path first.

mod accepting;
mod connect;
mod datagrams;
mod dial;
mod dns;
mod downgrade;
mod exit;
mod exit_url;
mod handshake_limit;
mod held_syn;
mod host;
mod late_witnesses;
mod open;
mod proxy;
mod redirect;
mod redirected;
mod redirected_datagrams;
mod reply_sender;
mod route;
mod router;
mod run;
mod side_dialer;
mod syn;
mod target;
mod witness;
mod witness_memory;

pub use connect::ConnectError;
pub use exit::ExitCheckError;
pub use exit_url::{ExitUrl, InvitationUrl};
pub use host::{Host, HostError, HostSettings};
pub use open::Outbound;
pub use proxy::{Credentials, CredentialsError, ProxyAccess};
pub use route::Route;
pub use router::{Router, RouterError, RouterSettings};
pub use run::{RunError, exit_code};
