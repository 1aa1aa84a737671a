//! The paths of a host's connections: the roles and rules of interfaces, further subflows after the first flight, and failover.

mod blackholes;
mod calendar;
mod data_acks;
mod events;
mod first_flight;
mod gate;
mod liveness;
mod missing_interfaces;
mod path_limits;
mod path_name;
mod path_watch;
mod plan;
mod quota_file;
mod roles;
mod routes;
mod rule_status;
mod rules;
mod scheduler_paths;
mod shared_receive_buffer;
mod silence;
mod subflows;
mod suspects;
#[cfg(test)]
pub(crate) mod testing;
mod watched;

pub(crate) use blackholes::Blackholes;
pub use calendar::{Forecast, Period, Schedule};
pub(crate) use first_flight::{Backoff, POLL_INTERVAL, UPLOAD_BYTES, UPLOAD_POLL_INTERVAL};
pub(crate) use gate::PathGate;
pub use gate::PathRulesError;
pub use missing_interfaces::warn_of_missing_interfaces;
pub(crate) use path_limits::{MAX_RULES, PathUses};
pub use path_name::PathName;
pub(crate) use path_watch::PathWatch;
pub(crate) use quota_file::QuotaUpdate;
pub use quota_file::{QuotaFile, QuotaUse, QuotaUses};
pub use roles::Roles;
pub(crate) use routes::Routes;
pub use rule_status::{QuotaStatus, RuleStatus};
pub use rules::{PathPattern, PathRule, Quota};
pub use scheduler_paths::SchedulerMismatch;
pub(crate) use silence::{SubflowCloser, close_silent};
pub(crate) use subflows::Subflows;
pub(crate) use watched::Watched;
