//! The initiating half of a gateway: connections of applications, carried to peers by the trusted path first.

mod connect;
mod dial;
mod downgrade;
mod handshake_limit;
mod held_syn;
mod late_witnesses;
mod open;
mod proxy;
mod redirect;
mod redirected;
mod run;
mod witness;
mod witness_memory;

pub use connect::ConnectError;
pub use open::Outbound;
pub use proxy::{Credentials, CredentialsError, ProxyAccess};
pub use run::{RunError, exit_code};
