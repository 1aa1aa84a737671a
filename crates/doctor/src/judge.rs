//! Judges facts: a list of small checks, in the order in which a connection depends on what they check. No I/O.

mod connection;
mod host;
mod path;
#[cfg(test)]
mod tests;

use crate::facts::{Facts, Path};
use crate::report::{Check, Diagnosis};

/// Judges the facts.
pub fn judge(facts: &Facts) -> Diagnosis {
    let mut checks: Vec<Check> = BEFORE_PATHS.iter().filter_map(|check| check(facts)).collect();
    for path in &facts.paths {
        checks.push(path::check(facts, path).on(&path.interface));
    }
    checks.extend(path::listeners(facts));
    checks.extend(facts.paths.iter().filter_map(|path| Some(path::mtu(path)?.on(&path.interface))));
    checks.push(host::congestion_control(facts));
    Diagnosis::of(facts.target, checks)
}

const BEFORE_PATHS: &[fn(&Facts) -> Option<Check>] = &[
    host::mptcp,
    host::path_manager,
    connection::connection,
    connection::blackhole,
    connection::capable,
    host::paths,
    host::limits,
];

/// Whether the connection has a subflow from the path's address that leaves by its interface.
fn has_subflow(facts: &Facts, path: &Path) -> bool {
    facts.connection.as_ref().is_some_and(|connection| {
        connection.mptcp
            && connection
                .subflows
                .iter()
                .any(|subflow| subflow.established && subflow.local.ip() == path.address)
            && connection
                .joins
                .iter()
                .all(|join| join.local.ip() != path.address || join.if_index == path.if_index)
    })
}
