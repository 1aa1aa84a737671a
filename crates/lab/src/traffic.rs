//! Traffic of many flows, and of periodic messages: what an application sees of a network.
//!
//! A [`Server`] answers. [`Workload::run`] opens a connection for each flow, whose sizes follow a published distribution and
//! whose times are Poisson or back to back, and measures how long each takes. [`Periodic::run`] sends messages at a fixed
//! interval over one connection, as telephony and controllers do, and measures when each arrives. Sizes and times follow
//! from a seed. The sockets are ordinary TCP ones: `mptcpize run` makes them MPTCP.

mod distribution;
mod flows;
mod periodic;
mod request;
mod server;
mod sizes;

pub use distribution::Distribution;
pub use flows::{Arrivals, Flow, FlowsReport, TransferDirection, Workload};
pub use periodic::{JitterMs, Periodic, PeriodicReport};
pub use server::Server;
pub use sizes::{FlowSize, ParseSizesError, Sizes};
