//! Which subflows of a connection to create, and when to retry.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use plait_linux::interfaces::Interface;

use super::events::PathEvent;
use crate::socket::canonical;

/// From one attempt to create a subflow to the next: at first, and at most.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// From one attempt to the next, if the last one was answered, and the peer has reset the subflow: it sends a first window on each, some
/// 15 KB.
const RETRY_DELAY_AFTER_RESET: Duration = Duration::from_secs(1);

/// From the loss of a subflow to the next attempt. The kernel reinjects what it had not delivered, oldest bytes first, on those that are established. A new
/// subflow on the same path would take some of it, although it may deliver no more than the one before.
const REINJECTION_TIME: Duration = Duration::from_millis(250);

/// Announced addresses kept per connection; a malicious peer may announce any number.
const MAX_ANNOUNCED: usize = 16;

/// The possible subflows of one connection.
pub(super) struct Plan {
    initial: SocketAddr,
    /// The interface of the initial subflow; 0 if it is unknown.
    initial_interface: u32,
    announced: Vec<(u8, SocketAddr)>,
    attempts: HashMap<u32, Attempts>,
    /// Local addresses; the place of each, from 1, is its identifier.
    sources: Vec<IpAddr>,
}

/// The attempts to create a subflow through one interface.
struct Attempts {
    delay: Duration,
    due: Instant,
    /// The interface had a subflow.
    was_live: bool,
    /// The last attempt has led to a subflow.
    answered: bool,
    last: Outcome,
    /// Subflows closed by this end whose event is still to come.
    closed_here: u32,
}

/// The outcome of the last attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// A subflow, or there was no attempt.
    Live,
    /// None yet, or silence.
    Open,
    /// A subflow that the peer has reset, as if nothing but the smallest packets arrives.
    Reset,
    /// A reset.
    Rejected,
}

impl Plan {
    /// `initial` is the peer's address of the initial subflow, `interface` its interface, or 0.
    pub(super) fn new(initial: SocketAddr, interface: u32) -> Plan {
        let initial = canonical(initial);
        Plan {
            initial,
            initial_interface: interface,
            announced: Vec::new(),
            attempts: HashMap::new(),
            sources: Vec::new(),
        }
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
                let Some(attempts) = self.attempts.get_mut(&interface) else { return };
                if attempts.closed_here > 0 {
                    attempts.closed_here -= 1;
                } else if attempts.last != Outcome::Live {
                    attempts.last = match by_peer {
                        false => Outcome::Open,
                        true if attempts.answered => Outcome::Reset,
                        true => Outcome::Rejected,
                    };
                } else {
                    self.postpone_for_reinjection(interface);
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

    /// Retries interfaces at once that had a subflow, unless the peer resets attempts: this host's interfaces have changed, or the
    /// connection is in use again.
    pub(super) fn retry_lost(&mut self) {
        for attempts in self.attempts.values_mut().filter(|attempts| attempts.is_lost()) {
            (attempts.delay, attempts.due) = (RETRY_DELAY.0, Instant::now());
        }
    }

    /// The interface has a subflow that answers. One that the peer resets soon after its SYN-ACK does not count. Returns whether
    /// it had lost one before.
    pub(super) fn set_live(&mut self, interface: u32) -> bool {
        let attempts = self.attempts(interface);
        attempts.answered = true;
        if attempts.due > Instant::now() {
            return false;
        }
        let was_lost = attempts.is_lost() && attempts.last == Outcome::Open;
        (attempts.delay, attempts.was_live, attempts.last) = (RETRY_DELAY.0, true, Outcome::Live);
        was_lost
    }

    /// This end closes a subflow. The kernel reports one whose SYN was not answered as reset.
    pub(super) fn closes(&mut self, interface: u32) {
        self.attempts(interface).closed_here += 1;
    }

    /// The interface has lost its subflow. If another one has a subflow, which sends what the lost one had not delivered, attempts are put off.
    pub(super) fn postpone_for_reinjection(&mut self, interface: u32) {
        let is_live = |attempts: &Attempts| attempts.was_live && attempts.last == Outcome::Live;
        if self.attempts.iter().any(|(other, attempts)| *other != interface && is_live(attempts)) {
            self.postpone(interface, REINJECTION_TIME);
        }
    }

    /// The number of attempts at the same time: two where a subflow was lost, so that two SYNs are sent in a second.
    pub(super) fn max_opening(&self, interface: u32) -> usize {
        if self.attempts.get(&interface).is_some_and(Attempts::is_lost) { 2 } else { 1 }
    }

    /// Whether the interface had a subflow, and an attempt to create another one has failed.
    pub(super) fn is_probe(&self, interface: u32) -> bool {
        let attempts = self.attempts.get(&interface);
        attempts.is_some_and(|attempts| attempts.is_lost() && attempts.last != Outcome::Live)
    }

    /// Puts off an attempt.
    pub(super) fn postpone(&mut self, interface: u32, delay: Duration) {
        let attempts = self.attempts(interface);
        attempts.due = attempts.due.max(Instant::now() + delay);
    }

    pub(super) fn is_due(&self, interface: u32) -> bool {
        self.attempts.get(&interface).is_none_or(|attempts| attempts.due <= Instant::now())
    }

    /// Whether the peer has reset the last subflow of every interface, and of the initial one a further attempt: it does not
    /// know the connection any longer.
    pub(super) fn is_rejected(&self) -> bool {
        self.attempts.contains_key(&self.initial_interface)
            && self.attempts.values().all(|attempts| attempts.last == Outcome::Rejected)
    }

    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.attempts.values().map(|attempts| attempts.due).filter(|due| *due > Instant::now()).min()
    }

    /// Records an attempt, and returns the identifier of its local address. A connection that is in use looks for a path that it
    /// has lost all the time, by two SYNs a second, or one if the peer resets the subflows, unless it resets the SYNs.
    pub(super) fn record_attempt(&mut self, interface: u32, source: IpAddr, in_use: bool) -> u8 {
        let attempts = self.attempts(interface);
        let max = match attempts.last {
            _ if !in_use || !attempts.is_lost() => RETRY_DELAY.1,
            Outcome::Reset => RETRY_DELAY_AFTER_RESET,
            _ => RETRY_DELAY.0,
        };
        (attempts.last, attempts.answered) = (Outcome::Open, false);
        attempts.due = Instant::now() + attempts.delay.min(max);
        attempts.delay = (attempts.delay * 2).min(max);
        self.identifier(source)
    }

    fn attempts(&mut self, interface: u32) -> &mut Attempts {
        self.attempts.entry(interface).or_insert_with(|| Attempts {
            delay: RETRY_DELAY.0,
            due: Instant::now(),
            was_live: false,
            answered: false,
            last: Outcome::Live,
            closed_here: 0,
        })
    }

    /// The kernel takes no other address for an identifier, and no other identifier for an address.
    fn identifier(&mut self, source: IpAddr) -> u8 {
        let place = self.sources.iter().position(|known| *known == source).unwrap_or(self.sources.len());
        if place == self.sources.len() {
            self.sources.push(source);
        }
        u8::try_from(place + 1).unwrap_or(u8::MAX)
    }
}

impl Attempts {
    /// Whether the interface had a subflow, and the peer does not reject a further one.
    fn is_lost(&self) -> bool {
        self.was_live && self.last != Outcome::Rejected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    #[test]
    fn announced_address_is_tried_at_once_but_not_forever() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        let address = "198.51.100.1:443".parse().expect("an address");
        let mut attempts = 0;
        for _ in 0..100 {
            plan.apply(PathEvent::Announced { id: 1, address });
            if plan.is_due(7) {
                plan.record_attempt(7, LOCAL, false);
                attempts += 1;
            }
            assert!(!plan.is_due(7), "a delay follows every attempt");
        }
        // Delays of 0.5, 1, 2, 4, 8, 16, 32 and 60 s.
        assert_eq!(attempts, 7);
    }

    #[test]
    fn peer_that_resets_every_interface_has_lost_the_connection() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        let reset = |interface| PathEvent::Closed { interface, by_peer: true };
        plan.set_live(1);
        plan.record_attempt(2, LOCAL, true);
        plan.apply(reset(2));
        plan.apply(reset(1));
        assert!(!plan.is_rejected(), "the initial interface was not tried again");
        plan.record_attempt(1, LOCAL, true);
        assert!(!plan.is_rejected(), "it has not answered");
        plan.apply(PathEvent::Closed { interface: 1, by_peer: false });
        assert!(!plan.is_rejected(), "it is silent");
        plan.record_attempt(1, LOCAL, true);
        plan.apply(reset(1));
        assert!(plan.is_rejected());
    }

    #[test]
    fn lost_path_is_tried_all_the_time_while_the_connection_is_in_use() {
        let attempt = |in_use| {
            let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
            plan.set_live(1);
            for _ in 0..20 {
                plan.record_attempt(1, LOCAL, in_use);
            }
            plan.next_retry().expect("it was tried").duration_since(Instant::now())
        };
        assert!(attempt(true) <= RETRY_DELAY.0);
        assert!(attempt(false) > RETRY_DELAY.0 * 100);
    }

    #[test]
    fn subflows_that_the_peer_resets_are_tried_once_a_second() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        plan.set_live(1);
        for _ in 0..20 {
            plan.record_attempt(1, LOCAL, true);
            plan.set_live(1);
            plan.apply(PathEvent::Closed { interface: 1, by_peer: true });
            assert!(!plan.is_rejected());
        }
        let delay = plan.next_retry().expect("it was tried").duration_since(Instant::now());
        assert!(RETRY_DELAY.0 < delay && delay <= RETRY_DELAY_AFTER_RESET, "{delay:?}");
    }

    #[test]
    fn lost_path_is_retried_after_reinjection() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        let reset = PathEvent::Closed { interface: 1, by_peer: true };
        plan.set_live(1);
        plan.apply(reset);
        assert!(plan.is_due(1), "no other path works");
        plan.set_live(2);
        plan.apply(reset);
        let until_retry =
            |plan: &Plan| plan.next_retry().expect("it is put off").duration_since(Instant::now());
        assert!(!plan.is_due(1) && until_retry(&plan) <= REINJECTION_TIME);
        plan.retry_lost();
        assert!(plan.is_due(1), "the interface has changed");
        plan.postpone_for_reinjection(1);
        assert!(!plan.is_due(1), "this end closes it");
        plan.retry_lost();
        plan.record_attempt(1, LOCAL, true);
        plan.postpone_for_reinjection(2);
        assert!(plan.is_due(2), "the other one was lost, too");
    }

    #[test]
    fn attempt_that_is_given_up_is_not_rejected() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        let reset = PathEvent::Closed { interface: 1, by_peer: true };
        plan.record_attempt(1, LOCAL, true);
        plan.closes(1);
        plan.record_attempt(1, LOCAL, true);
        plan.apply(reset);
        assert!(!plan.is_rejected());
        plan.apply(reset);
        assert!(plan.is_rejected());
    }

    #[test]
    fn identifiers_belong_to_addresses() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"), 1);
        let other = IpAddr::from([192, 0, 2, 8]);
        assert_eq!(plan.record_attempt(1, LOCAL, true), 1);
        assert_eq!(plan.record_attempt(1, other, true), 2, "the interface has another address");
        assert_eq!(plan.record_attempt(2, LOCAL, true), 1);
    }
}
