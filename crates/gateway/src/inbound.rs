//! The accepting half of a gateway: connections from the network, carried to a service or to this program.

mod listener;
mod serve;
mod service;
mod service_name;

pub use listener::Listener;
pub use service_name::ServiceName;
