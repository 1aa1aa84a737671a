//! Which paths carried no witness lately, so that not every connection waits for one that does not come.
//!
//! An attacker who blocks a path has the same effect on a connection with and without this memory: there is no witness on that
//! path. Where one is required, connections wait and fail regardless of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_proto::sealed::peer_network;

/// Failures in a row, without a success between them, after which a path is not waited for.
const MAX_FAILURES: u32 = 2;

/// Between two attempts on a path that is not waited for.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Before a path is waited for again whose connections were opened but lost messages: only a session can tell whether it works.
const LOSS_INTERVAL: Duration = Duration::from_secs(60);

/// Paths beyond which those that failed longest ago are forgotten.
const MAX_PATHS: usize = 4096;

/// The paths whose last witness failed: by interface, and network of the peer.
#[derive(Default)]
pub(super) struct WitnessMemory(Mutex<HashMap<(String, IpAddr), Failures>>);

struct Failures {
    in_a_row: u32,
    last_attempt: Instant,
    /// Connections are opened, but messages were lost.
    loses: bool,
}

/// What to do about a path's witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Open it and wait for it.
    Wait,
    /// Open it to learn whether the path works again, but do not wait.
    Probe,
    /// The path does not work.
    Skip,
}

impl WitnessMemory {
    fn failures(&self) -> MutexGuard<'_, HashMap<(String, IpAddr), Failures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to do about the path through an interface to a peer, now.
    pub(super) fn advice(&self, interface: &str, peer: IpAddr, now: Instant) -> Advice {
        let mut failures = self.failures();
        let Some(known) = failures.get_mut(&key(interface, peer)) else { return Advice::Wait };
        let (interval, retry) = match known {
            Failures { loses: true, .. } => (LOSS_INTERVAL, Advice::Wait),
            Failures { in_a_row: ..MAX_FAILURES, .. } => return Advice::Wait,
            _ => (RETRY_INTERVAL, Advice::Probe),
        };
        if now.duration_since(known.last_attempt) < interval {
            return Advice::Skip;
        }
        known.last_attempt = now;
        retry
    }

    pub(super) fn succeeded(&self, interface: &str, peer: IpAddr) {
        self.failures().remove(&key(interface, peer));
    }

    /// No connection was opened.
    pub(super) fn failed(&self, interface: &str, peer: IpAddr, now: Instant) {
        self.record(interface, peer, now, false);
    }

    /// A connection was opened, and its messages did not arrive.
    pub(super) fn lost(&self, interface: &str, peer: IpAddr, now: Instant) {
        self.record(interface, peer, now, true);
    }

    fn record(&self, interface: &str, peer: IpAddr, now: Instant, loses: bool) {
        let mut failures = self.failures();
        if failures.len() >= MAX_PATHS {
            let oldest =
                failures.iter().min_by_key(|(_, known)| known.last_attempt).map(|(key, _)| key.clone());
            oldest.map(|key| failures.remove(&key));
        }
        let known = failures.entry(key(interface, peer));
        let known = known.or_insert(Failures { in_a_row: 0, last_attempt: now, loses });
        known.in_a_row = known.in_a_row.saturating_add(1);
        (known.last_attempt, known.loses) = (now, loses);
    }
}

fn key(interface: &str, peer: IpAddr) -> (String, IpAddr) {
    (interface.to_owned(), peer_network(peer.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_fails_twice_is_probed_until_it_works() {
        let (memory, peer) = (WitnessMemory::default(), IpAddr::from([192, 0, 2, 1]));
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        memory.failed("wlan0", peer, start);
        assert_eq!(memory.advice("wlan0", peer, later(1)), Advice::Wait);
        memory.failed("wlan0", peer, later(1));
        assert_eq!(memory.advice("wlan0", peer, later(2)), Advice::Skip);
        assert_eq!(memory.advice("lte0", peer, later(2)), Advice::Wait);
        assert_eq!(memory.advice("wlan0", IpAddr::from([192, 0, 2, 2]), later(2)), Advice::Wait);
        assert_eq!(memory.advice("wlan0", peer, later(7)), Advice::Probe);
        assert_eq!(memory.advice("wlan0", peer, later(8)), Advice::Skip);
        memory.succeeded("wlan0", peer);
        assert_eq!(memory.advice("wlan0", peer, later(8)), Advice::Wait);
    }

    #[test]
    fn path_that_loses_messages_is_not_used_for_a_minute() {
        let (memory, peer) = (WitnessMemory::default(), IpAddr::from([192, 0, 2, 1]));
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        memory.lost("wlan0", peer, start);
        assert_eq!(memory.advice("wlan0", peer, later(59)), Advice::Skip);
        assert_eq!(memory.advice("wlan0", peer, later(61)), Advice::Wait);
        assert_eq!(memory.advice("wlan0", peer, later(62)), Advice::Skip, "one connection tries it");
    }

    #[test]
    fn memory_is_bounded() {
        let memory = WitnessMemory::default();
        let now = Instant::now();
        for number in 0..2 * MAX_PATHS as u32 {
            memory.failed(
                "wlan0",
                IpAddr::from(number.to_be_bytes()),
                now + Duration::from_millis(number.into()),
            );
        }
        assert!(memory.failures().len() <= MAX_PATHS);
    }
}
