//! The accepting half of a gateway: connections from the network, carried to a service or to this program.

mod listener;
mod serve;
mod service;

pub use listener::Listener;
