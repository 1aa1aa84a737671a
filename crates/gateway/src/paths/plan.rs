//! Which subflows of a connection to create, and when to retry.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use plait_linux::interfaces::Interface;

use super::events::PathEvent;
use crate::socket::canonical;

/// Before a subflow that failed or was lost is created again: at first, and at most.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Announced addresses kept per connection; a malicious peer may announce any number.
const MAX_ANNOUNCED: usize = 16;

/// The possible subflows of one connection.
pub(super) struct Plan {
    initial: SocketAddr,
    /// The interface of the initial subflow; 0 if it is unknown.
    initial_interface: u32,
    announced: Vec<(u8, SocketAddr)>,
    attempts: HashMap<u32, Attempts>,
}

/// The attempts to create a subflow through one interface.
struct Attempts {
    /// The interface's address identifier in this connection.
    id: u8,
    delay: Duration,
    due: Instant,
    /// The peer has reset the last one.
    rejected: bool,
}

impl Plan {
    /// `initial` is the peer's address of the initial subflow, `interface` its interface, or 0.
    pub(super) fn new(initial: SocketAddr, interface: u32) -> Plan {
        let initial = canonical(initial);
        Plan { initial, initial_interface: interface, announced: Vec::new(), attempts: HashMap::new() }
    }

    pub(super) fn apply(&mut self, event: PathEvent) {
        match event {
            PathEvent::Announced { id, address } => {
                self.announced.retain(|(known, _)| *known != id);
                if self.announced.len() < MAX_ANNOUNCED {
                    let port = if address.port() == 0 { self.initial.port() } else { address.port() };
                    self.announced.push((id, SocketAddr::new(address.ip().to_canonical(), port)));
                    self.retry_now();
                }
            }
            PathEvent::Withdrawn { id } => self.announced.retain(|(known, _)| *known != id),
            PathEvent::Closed { interface, by_peer } => {
                if let Some(attempts) = self.attempts.get_mut(&interface) {
                    attempts.rejected = by_peer;
                }
            }
            PathEvent::Changed => {}
        }
    }

    /// The peer's address for a subflow through this interface, and the source address for it: an announced one in the
    /// interface's own network, else the initial one, else any announced one with a route.
    pub(super) fn choose(
        &self,
        interface: &Interface,
        route: impl Fn(IpAddr) -> Option<IpAddr>,
    ) -> Option<(u8, SocketAddr, IpAddr)> {
        let same_family = |address: &SocketAddr| address.is_ipv4() == self.initial.is_ipv4();
        let announced = || self.announced.iter().copied().filter(|(_, address)| same_family(address));
        let on_link = announced().filter(|(_, remote)| {
            interface.addresses.iter().any(|address| address.network_contains(remote.ip()))
        });
        on_link
            .chain([(0, self.initial)])
            .chain(announced())
            .find_map(|(id, remote)| Some((id, remote, route(remote.ip())?)))
    }

    /// Retries interfaces whose attempt failed, because there is a new address, but not those that reached the longest
    /// delay: the peer must not cause an unlimited number of attempts.
    fn retry_now(&mut self) {
        for attempts in self.attempts.values_mut().filter(|attempts| attempts.delay < RETRY_DELAY.1) {
            attempts.due = Instant::now();
        }
    }

    /// The interface has a subflow.
    pub(super) fn set_live(&mut self, interface: u32) {
        if let Some(attempts) = self.attempts.get_mut(&interface) {
            attempts.delay = RETRY_DELAY.0;
        }
    }

    pub(super) fn is_due(&self, interface: u32) -> bool {
        self.attempts.get(&interface).is_none_or(|attempts| attempts.due <= Instant::now())
    }

    /// Whether the peer has reset the last subflow of every interface, and of the initial one a further attempt: it does not
    /// know the connection any longer.
    pub(super) fn is_rejected(&self) -> bool {
        self.attempts.contains_key(&self.initial_interface)
            && self.attempts.values().all(|attempts| attempts.rejected)
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.attempts.values().map(|attempts| attempts.due).filter(|due| *due > Instant::now()).min()
    }

    /// Records an attempt and returns the interface's address identifier.
    pub(super) fn record_attempt(&mut self, interface: u32) -> u8 {
        let next_id = u8::try_from(self.attempts.len() + 1).unwrap_or(u8::MAX);
        let attempts = self.attempts.entry(interface).or_insert(Attempts {
            id: next_id,
            delay: RETRY_DELAY.0,
            due: Instant::now(),
            rejected: false,
        });
        attempts.rejected = false;
        attempts.due = Instant::now() + attempts.delay;
        attempts.delay = (attempts.delay * 2).min(RETRY_DELAY.1);
        attempts.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_address_is_tried_at_once_but_not_forever() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        let address = "198.51.100.1:443".parse().expect("an address");
        let mut attempts = 0;
        for _ in 0..100 {
            plan.apply(PathEvent::Announced { id: 1, address });
            if plan.is_due(7) {
                plan.record_attempt(7);
                attempts += 1;
            }
            assert!(!plan.is_due(7), "a delay follows every attempt");
        }
        // Delays of 2, 4, 8, 16, 32 and 60 s.
        assert_eq!(attempts, 5);
    }

    #[test]
    fn peer_that_resets_every_interface_has_lost_the_connection() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        let reset = |interface| PathEvent::Closed { interface, by_peer: true };
        plan.record_attempt(2);
        plan.apply(reset(2));
        plan.apply(reset(1));
        assert!(!plan.is_rejected(), "the initial interface was not tried again");
        plan.record_attempt(1);
        assert!(!plan.is_rejected(), "it has not answered");
        plan.apply(PathEvent::Closed { interface: 1, by_peer: false });
        assert!(!plan.is_rejected(), "it is silent");
        plan.record_attempt(1);
        plan.apply(reset(1));
        assert!(plan.is_rejected());
    }
}
