//! How many connections there may be at once: what the limit of open files allows, or fewer.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

/// Descriptors that a gateway opens besides those of its connections and of a scheduler.
const OTHER_DESCRIPTORS: usize = 32;

/// Further ones of a gateway that opens connections: of the programs that redirect them, and for their paths.
const OUTBOUND_DESCRIPTORS: usize = 16;

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

/// Permits for the connections of gateways in one process. A clone permits from the same.
#[derive(Clone)]
pub(crate) struct Capacity {
    /// For accepted connections, until they are carried or longer; without one, a connection waits in the listen queue.
    places: Arc<Semaphore>,
    max_accepted: usize,
    /// For side connections, which count as accepted, too.
    side_places: Arc<Semaphore>,
    /// The places of a connection that counts as accepted as long as it is carried.
    pub(crate) places_per_carried: u32,
    /// For carried connections.
    permits: Arc<Semaphore>,
    pub(crate) max_carried: usize,
}

impl Capacity {
    /// At most `max_connections` are carried; fewer, with a warning, if the limit of open files allows no more. So many descriptors are for
    /// others than connections.
    pub(crate) fn new(limit: Rlimit, others: usize, max_connections: usize) -> Capacity {
        let (max_carried, max_accepted) = connection_limits(limit, others);
        if max_carried < max_connections {
            warn!(
                "this process's limit of open files (`ulimit -Hn`) allows {max_carried} connections at once: further ones wait"
            );
        }
        let places_per_carried = u32::try_from(max_accepted / max_carried).unwrap_or(1);
        let max_carried = max_carried.min(max_connections);
        Capacity {
            places: Arc::new(Semaphore::new(max_accepted)),
            max_accepted,
            side_places: Arc::new(Semaphore::new(max_accepted / 2)),
            places_per_carried,
            permits: Arc::new(Semaphore::new(max_carried)),
            max_carried,
        }
    }

    /// Waits until a further connection may be accepted, which takes so many places until they are dropped.
    pub(crate) async fn place(&self, places: u32) -> OwnedSemaphorePermit {
        let place = Arc::clone(&self.places).acquire_many_owned(places).await;
        place.expect("the semaphore is never closed")
    }

    /// Waits until a further connection may be carried; it is until the permit is dropped.
    pub(crate) async fn permit(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    /// A permit, if a further connection may be carried now.
    pub(crate) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Permits a further side connection, if there may be one now.
    pub(crate) fn try_side_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.side_places).try_acquire_owned().ok()
    }

    /// Permits to open a side connection, which takes the place of an accepted one, if there may be one now.
    pub(crate) fn try_open_side(&self) -> Option<[OwnedSemaphorePermit; 2]> {
        Some([self.try_side_place()?, Arc::clone(&self.places).try_acquire_owned().ok()?])
    }

    /// Waits until no connection is carried or accepted.
    pub(crate) async fn unused(&self) {
        while self.places.available_permits() < self.max_accepted
            || self.permits.available_permits() < self.max_carried
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Whether the limit of open files is very low.
pub(crate) fn is_low(limit: Rlimit) -> bool {
    limit.maximum.is_some_and(|maximum| maximum < FEW_DESCRIPTORS)
}

/// The descriptors that a gateway takes besides those of its connections and of a scheduler.
pub(crate) fn gateway_descriptors(opens_connections: bool) -> usize {
    OTHER_DESCRIPTORS + if opens_connections { OUTBOUND_DESCRIPTORS } else { 0 }
}

/// How many connections the limit of open files allows to carry at once, and how many accepted sockets besides, with so many descriptors
/// for others.
fn connection_limits(limit: Rlimit, others: usize) -> (usize, usize) {
    let maximum = limit.maximum.and_then(|maximum| usize::try_from(maximum).ok()).unwrap_or(usize::MAX);
    let descriptors = maximum.saturating_sub(others);
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
        let of = |maximum, others| connection_limits(Rlimit { current: None, maximum }, others);
        assert_eq!(of(Some(64), gateway_descriptors(false)), (6, 20));
        assert_eq!(of(Some(64), gateway_descriptors(true)), (4, 8));
        assert_eq!(of(Some(0), 7), (MIN_CARRIED, MIN_CARRIED));
        assert_eq!(of(None, 7), (MAX_CARRIED, MAX_CARRIED));
        for (maximum, others) in
            [(64, 32), (64, 48), (256, 39), (1024, 132), (4096, 39), (20_000, 55), (524_288, 39)]
        {
            let (carried, accepted) = of(Some(maximum as u64), others);
            assert!(carried <= accepted && 2 * carried + accepted + others <= maximum);
            assert!(carried >= (maximum - others) / 6, "{maximum}: {carried}");
        }
    }
}
