//! The paths of a host's connections: the roles of interfaces, further subflows after the first flight, and failover.

mod blackholes;
mod events;
mod first_flight;
mod liveness;
mod path_watch;
mod plan;
mod roles;
mod routes;
mod silence;
mod subflows;
mod watched;

pub(crate) use blackholes::Blackholes;
pub(crate) use first_flight::{Backoff, POLL_INTERVAL, UPLOAD_BYTES, UPLOAD_POLL_INTERVAL};
pub(crate) use path_watch::PathWatch;
pub use roles::{PathName, Roles};
pub(crate) use routes::Routes;
pub(crate) use silence::{SubflowCloser, close_silent};
pub(crate) use subflows::Subflows;
pub(crate) use watched::Watched;
