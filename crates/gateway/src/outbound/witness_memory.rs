//! What is known of paths' witnesses, so that not every connection waits for one that is slow or does not come.
//!
//! A witness that is not waited for comes late: until it has, an attacker in the middle of the main connection is undetected.
//! Where witnesses are required, connections wait and fail regardless of this memory; so they do, unless a witness does not come
//! at all, with a peer for which a late one has proved somebody in the middle.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_proto::sealed::peer_network;

/// Failures in a row, without a success between them, after which a path is tried less often.
const MAX_FAILURES: u32 = 2;

/// Between two attempts on such a path.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Witnesses in a row that were slower than the main connection, after which connections no longer wait for a path: more than
/// one, because a busy host delays some.
const MAX_DELAYED: u32 = 3;

/// Witnesses in a row that were not, after which a path that was slow is waited for again.
const PROMPT_WITNESSES: u32 = 8;

/// Before a path that lost messages is waited for again. Only a session shows whether it works, and one may be too short.
const LOSS_INTERVAL: Duration = Duration::from_secs(60);

/// Paths beyond which those that were tried longest ago are forgotten.
const MAX_PATHS: usize = 4096;

/// Peers with intercepted connections beyond which further ones are not remembered.
const MAX_INTERCEPTED: usize = 4096;

/// What is known of paths, by interface and network of the peer, and of peers. A path that is not in it works.
#[derive(Default)]
pub(super) struct WitnessMemory {
    paths: Mutex<HashMap<(String, IpAddr), PathHistory>>,
    intercepted: Mutex<HashSet<IpAddr>>,
}

#[derive(Clone, Copy)]
struct PathHistory {
    /// Attempts in a row that opened no connection.
    failures: u32,
    last_attempt: Instant,
    /// Its witnesses are slower than the main connection.
    slow: bool,
    /// Witnesses in a row that were slower.
    delayed: u32,
    /// Those in a row that were not.
    prompt: u32,
    /// When messages were lost.
    lost: Option<Instant>,
}

/// What to do about a path's witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Open it, and let the handshake wait for it.
    Wait,
    /// Open it, and add it to the session when it comes.
    Late,
    /// The path does not work.
    Skip,
}

impl WitnessMemory {
    fn paths(&self) -> MutexGuard<'_, HashMap<(String, IpAddr), PathHistory>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn intercepted(&self) -> MutexGuard<'_, HashSet<IpAddr>> {
        self.intercepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to do about the path through an interface to a peer, now.
    pub(super) fn advice(&self, interface: &str, peer: IpAddr, now: Instant) -> Advice {
        let mut paths = self.paths();
        let Some(known) = paths.get_mut(&key(interface, peer)) else { return Advice::Wait };
        if known.failures >= MAX_FAILURES {
            if now.duration_since(known.last_attempt) < RETRY_INTERVAL {
                return Advice::Skip;
            }
            known.last_attempt = now;
            return Advice::Late;
        }
        if known.lost.is_some_and(|lost| now.duration_since(lost) >= LOSS_INTERVAL) {
            known.lost = None;
        }
        if known.slow || known.lost.is_some() { Advice::Late } else { Advice::Wait }
    }

    /// Its witness was as fast as the main connection.
    pub(super) fn prompt(&self, interface: &str, peer: IpAddr) {
        let mut paths = self.paths();
        let key = key(interface, peer);
        let Some(known) = paths.get_mut(&key) else { return };
        (known.failures, known.delayed, known.prompt) = (0, 0, known.prompt + 1);
        known.slow &= known.prompt < PROMPT_WITNESSES;
        if !known.slow && known.lost.is_none() {
            paths.remove(&key);
        }
    }

    /// Its witness was slower than the main connection.
    pub(super) fn delayed(&self, interface: &str, peer: IpAddr, now: Instant) {
        self.record(interface, peer, now, |known| {
            (known.failures, known.delayed, known.prompt) = (0, known.delayed + 1, 0);
            known.slow |= known.delayed >= MAX_DELAYED;
        });
    }

    /// Its witness was so slow that the handshake did not wait for it.
    pub(super) fn slow(&self, interface: &str, peer: IpAddr, now: Instant) {
        self.record(interface, peer, now, |known| {
            (known.failures, known.slow, known.prompt) = (0, true, 0);
        });
    }

    /// Messages were lost.
    pub(super) fn lost(&self, interface: &str, peer: IpAddr, now: Instant) {
        self.record(interface, peer, now, |known| (known.failures, known.lost) = (0, Some(now)));
    }

    /// No connection was opened.
    pub(super) fn failed(&self, interface: &str, peer: IpAddr, now: Instant) {
        self.record(interface, peer, now, |known| {
            (known.failures, known.prompt, known.last_attempt) = (known.failures.saturating_add(1), 0, now);
        });
    }

    /// A late witness proved that somebody is in the middle of a connection with the peer.
    pub(super) fn set_intercepted(&self, peer: IpAddr) {
        let mut intercepted = self.intercepted();
        if intercepted.len() < MAX_INTERCEPTED {
            intercepted.insert(peer_network(peer.to_canonical()));
        }
    }

    pub(super) fn was_intercepted(&self, peer: IpAddr) -> bool {
        self.intercepted().contains(&peer_network(peer.to_canonical()))
    }

    fn record(&self, interface: &str, peer: IpAddr, now: Instant, change: impl FnOnce(&mut PathHistory)) {
        let mut paths = self.paths();
        if paths.len() >= MAX_PATHS {
            let oldest = paths.iter().min_by_key(|(_, known)| known.last_attempt).map(|(key, _)| key.clone());
            oldest.map(|key| paths.remove(&key));
        }
        let new =
            PathHistory { failures: 0, last_attempt: now, slow: false, delayed: 0, prompt: 0, lost: None };
        change(paths.entry(key(interface, peer)).or_insert(new));
    }
}

fn key(interface: &str, peer: IpAddr) -> (String, IpAddr) {
    (interface.to_owned(), peer_network(peer.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_fails_twice_is_tried_every_5_seconds_until_it_works() {
        let (memory, peer) = (WitnessMemory::default(), IpAddr::from([192, 0, 2, 1]));
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        memory.failed("wlan0", peer, start);
        assert_eq!(memory.advice("wlan0", peer, later(1)), Advice::Wait);
        memory.failed("wlan0", peer, later(1));
        assert_eq!(memory.advice("wlan0", peer, later(2)), Advice::Skip);
        assert_eq!(memory.advice("lte0", peer, later(2)), Advice::Wait);
        assert_eq!(memory.advice("wlan0", IpAddr::from([192, 0, 2, 2]), later(2)), Advice::Wait);
        assert_eq!(memory.advice("wlan0", peer, later(7)), Advice::Late);
        assert_eq!(memory.advice("wlan0", peer, later(8)), Advice::Skip);
        memory.prompt("wlan0", peer);
        assert_eq!(memory.advice("wlan0", peer, later(8)), Advice::Wait);
    }

    #[test]
    fn slow_path_is_waited_for_again_after_several_prompt_witnesses_in_a_row() {
        let (memory, peer) = (WitnessMemory::default(), IpAddr::from([192, 0, 2, 1]));
        let now = Instant::now();
        memory.slow("wlan0", peer, now);
        for _ in 1..PROMPT_WITNESSES {
            memory.prompt("wlan0", peer);
        }
        assert_eq!(memory.advice("wlan0", peer, now), Advice::Late);
        memory.slow("wlan0", peer, now);
        for _ in 0..PROMPT_WITNESSES {
            assert_eq!(memory.advice("wlan0", peer, now), Advice::Late);
            memory.prompt("wlan0", peer);
        }
        assert_eq!(memory.advice("wlan0", peer, now), Advice::Wait);
    }

    #[test]
    fn path_that_is_slower_several_times_in_a_row_is_not_waited_for() {
        let (memory, peer) = (WitnessMemory::default(), IpAddr::from([192, 0, 2, 1]));
        let now = Instant::now();
        for _ in 0..2 * MAX_DELAYED {
            memory.delayed("wlan0", peer, now);
            memory.prompt("wlan0", peer);
            assert_eq!(memory.advice("wlan0", peer, now), Advice::Wait);
        }
        for _ in 0..MAX_DELAYED {
            assert_eq!(memory.advice("wlan0", peer, now), Advice::Wait);
            memory.delayed("wlan0", peer, now);
        }
        assert_eq!(memory.advice("wlan0", peer, now), Advice::Late);
    }

    #[test]
    fn path_that_loses_messages_is_not_waited_for_for_a_minute() {
        let (memory, peer) = (WitnessMemory::default(), IpAddr::from([192, 0, 2, 1]));
        let start = Instant::now();
        memory.lost("wlan0", peer, start);
        memory.prompt("wlan0", peer);
        assert_eq!(memory.advice("wlan0", peer, start + Duration::from_secs(59)), Advice::Late);
        assert_eq!(memory.advice("wlan0", peer, start + Duration::from_secs(61)), Advice::Wait);
    }

    #[test]
    fn memory_is_bounded() {
        let memory = WitnessMemory::default();
        let now = Instant::now();
        for number in 0..2 * MAX_PATHS as u32 {
            let peer = IpAddr::from(number.to_be_bytes());
            memory.failed("wlan0", peer, now + Duration::from_millis(number.into()));
            memory.set_intercepted(peer);
        }
        assert!(memory.paths().len() <= MAX_PATHS && memory.intercepted().len() <= MAX_INTERCEPTED);
    }
}
