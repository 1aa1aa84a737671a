//! The paths of a host's connections: the roles of interfaces, and further subflows after the first flight.

mod blackholes;
mod events;
mod first_flight;
mod plan;
mod roles;
mod routes;
mod subflows;

pub(crate) use blackholes::Blackholes;
pub(crate) use first_flight::{Backoff, POLL_INTERVAL, UPLOAD_BYTES, UPLOAD_POLL_INTERVAL};
pub use roles::{PathName, Roles};
pub(crate) use routes::Routes;
pub(crate) use subflows::{Path, Subflows};
