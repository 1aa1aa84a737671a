//! How many connections the limit of open files allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::debug;

/// Descriptors that a gateway opens besides those of its connections and of a scheduler.
const OTHER_DESCRIPTORS: usize = 32;

/// With fewer, nothing is loaded that a gateway can do without.
const FEW_DESCRIPTORS: u64 = 256;

/// Descriptors of a connection: its two sockets, and a witness while it is established.
const DESCRIPTORS_PER_CONNECTION: usize = 3;

/// At most so many descriptors are kept for accepted sockets that are not carried yet: of those of a responder, a main
/// connection waits for its witnesses.
const MAX_RESERVE: usize = 1024;

/// Connections carried at once, however low the limit of open files is: each listener waits with one place.
const MIN_CARRIED: usize = 4;

/// Connections carried at once, if the limit of open files is higher than any host's.
const MAX_CARRIED: usize = 1 << 20;

/// Whether the limit of open files is very low.
pub(crate) fn is_low(limit: Rlimit) -> bool {
    limit.maximum.is_some_and(|maximum| maximum < FEW_DESCRIPTORS)
}

/// How many connections the limit of open files allows to carry at once, and how many accepted sockets besides, if a scheduler takes
/// `scheduler` descriptors.
pub(crate) fn capacity(limit: Rlimit, scheduler: usize) -> (usize, usize) {
    let maximum = limit.maximum.and_then(|maximum| usize::try_from(maximum).ok()).unwrap_or(usize::MAX);
    let descriptors = maximum.saturating_sub(OTHER_DESCRIPTORS + scheduler);
    let reserve = (descriptors / 5 * 2).min(MAX_RESERVE);
    let carried = ((descriptors - reserve) / DESCRIPTORS_PER_CONNECTION).clamp(MIN_CARRIED, MAX_CARRIED);
    let accepted = descriptors.saturating_sub(2 * carried).clamp(carried, MAX_CARRIED);
    (carried, accepted)
}

/// Raises this process's limit of open files to its maximum, and returns the previous limit.
pub(crate) fn raise_descriptor_limit() -> Rlimit {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        debug!("cannot raise the limit of open files: {error}");
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_suffice_for_carried_and_accepted_sockets() {
        let of = |maximum, scheduler| capacity(Rlimit { current: None, maximum }, scheduler);
        assert_eq!(of(Some(64), 0), (6, 20));
        assert_eq!(of(Some(0), 7), (MIN_CARRIED, MIN_CARRIED));
        assert_eq!(of(None, 7), (MAX_CARRIED, MAX_CARRIED));
        for (maximum, scheduler) in [(64, 0), (256, 7), (1024, 100), (4096, 7), (20_000, 7), (524_288, 7)] {
            let (carried, accepted) = of(Some(maximum as u64), scheduler);
            let others = OTHER_DESCRIPTORS + scheduler;
            assert!(carried <= accepted && 2 * carried + accepted + others <= maximum);
            assert!(carried >= (maximum - others) / 6, "{maximum}: {carried}");
        }
    }
}
