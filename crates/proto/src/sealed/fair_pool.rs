//! A bounded pool of half-open sessions. A full one drops the oldest session of the network that has the most, so that a flood
//! from one network displaces its own sessions and not those of others.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use super::limits::Limits;
use super::session_id::SessionId;

/// Half-open sessions by the network they came from, in the order of their arrival.
pub(super) struct FairPool {
    limits: Limits,
    by_network: HashMap<IpAddr, VecDeque<Entry>>,
    len: usize,
    next_number: u64,
}

struct Entry {
    number: u64,
    session: SessionId,
}

impl FairPool {
    pub(super) fn new(limits: Limits) -> FairPool {
        FairPool { limits, by_network: HashMap::new(), len: 0, next_number: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a session, which is not in the pool. Returns the one that makes room: of a crowded pool the oldest of this
    /// network, if it has its share; of a full one the oldest of the network that has the most.
    pub(super) fn add(&mut self, network: IpAddr, session: SessionId) -> Option<SessionId> {
        let Limits { sessions, crowded, per_network, .. } = self.limits;
        let has = self.by_network.get(&network).map_or(0, VecDeque::len);
        let crowding = if self.len >= crowded && has >= per_network {
            Some(network)
        } else if self.len >= sessions {
            self.most_crowding()
        } else {
            None
        };
        let evicted = crowding.and_then(|network| self.remove_oldest(network));
        self.len += 1;
        self.next_number += 1;
        let entry = Entry { number: self.next_number, session };
        self.by_network.entry(network).or_default().push_back(entry);
        evicted
    }

    pub(super) fn remove(&mut self, network: IpAddr, session: &SessionId) {
        self.remove_where(network, |entries| entries.iter().position(|entry| entry.session == *session));
    }

    fn remove_oldest(&mut self, network: IpAddr) -> Option<SessionId> {
        self.remove_where(network, |_| Some(0))
    }

    fn remove_where(
        &mut self,
        network: IpAddr,
        position: impl Fn(&VecDeque<Entry>) -> Option<usize>,
    ) -> Option<SessionId> {
        let entries = self.by_network.get_mut(&network)?;
        let removed = entries.remove(position(entries)?)?;
        if entries.is_empty() {
            self.by_network.remove(&network);
        }
        self.len -= 1;
        Some(removed.session)
    }

    /// The network with the most sessions; among several, the one with the oldest.
    fn most_crowding(&self) -> Option<IpAddr> {
        let crowding =
            |entries: &VecDeque<Entry>| (entries.len(), Reverse(entries.front().map(|entry| entry.number)));
        self.by_network.iter().max_by_key(|(_, entries)| crowding(entries)).map(|(network, _)| *network)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn pool(sessions: usize, crowded: usize, per_network: usize) -> FairPool {
        FairPool::new(Limits { sessions, crowded, per_network, timeout: Duration::ZERO })
    }

    fn network(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    fn session(number: u8) -> SessionId {
        SessionId::new([number; 32])
    }

    #[test]
    fn a_network_may_have_more_than_its_share_until_the_pool_is_crowded() {
        let mut pool = pool(10, 4, 2);
        assert!((0..4).all(|number| pool.add(network(1), session(number)).is_none()));
        assert_eq!(pool.add(network(1), session(4)), Some(session(0)));
        assert_eq!(pool.add(network(2), session(5)), None);
        assert_eq!(pool.add(network(2), session(6)), None);
        assert_eq!(pool.add(network(2), session(7)), Some(session(5)));
        assert_eq!(pool.len(), 6);
    }

    #[test]
    fn of_a_full_pool_the_network_with_the_most_loses_its_oldest() {
        let mut pool = pool(4, 4, 4);
        for (network_number, number) in [(1, 0), (2, 1), (2, 2), (3, 3)] {
            assert_eq!(pool.add(network(network_number), session(number)), None);
        }
        assert_eq!(pool.add(network(4), session(4)), Some(session(1)));
        assert_eq!(pool.add(network(5), session(5)), Some(session(0)), "all have one: the oldest");
        pool.remove(network(2), &session(2));
        pool.remove(network(2), &session(9));
        assert_eq!(pool.len(), 3);
    }

    proptest! {
        /// However somebody floods from one network, a session of another stays.
        #[test]
        fn nobody_crowds_out_others(flood in 0..200u8, others in proptest::collection::vec(2..250u8, 0..20)) {
            let mut pool = pool(32, 8, 4);
            prop_assert_eq!(pool.add(network(1), session(255)), None);
            for (number, other) in (0..flood).zip(others.iter().cycle().map(|other| network(*other)).chain([network(2)])) {
                let evicted = pool.add(if number % 8 == 0 { other } else { network(2) }, session(number));
                prop_assert!(evicted != Some(session(255)));
                prop_assert!(pool.len() <= 32);
            }
            prop_assert_eq!(pool.by_network.values().map(VecDeque::len).sum::<usize>(), pool.len());
        }
    }
}
