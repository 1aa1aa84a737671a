//! The accepting half of a gateway: connections from the network, carried to a service or to this program.

mod exit;
mod handshake;
mod listener;
mod proxy_protocol;
mod serve;
mod server;
mod service;
mod service_address;
mod service_name;
mod services;
mod side_connection;

pub use exit::{ClientLimits, ClientSettings, ExitClients, ExitSettings};
pub use listener::Listener;
pub use proxy_protocol::ProxyProtocol;
pub use serve::ExitListener;
pub use server::ServiceSettings;
pub use service_address::ServiceAddress;
pub use service_name::ServiceName;
