//! Datagrams that are taken from those who send them without their knowledge: each address and port that sends has an association,
//! from its first datagram on until there was none for a while in either direction.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use plait_proto::exit::{Destination, Host};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Delivered;
use crate::datagrams::{ESTABLISHED_TIMEOUT, UNANSWERED_TIMEOUT};
use crate::outbound::open::Outbound;

/// Datagrams of one sender that wait for the exit. Further ones are dropped.
const MAX_WAITING: usize = 256;

/// How what has arrived gets to those who wait for it.
pub(in crate::outbound) trait Answers: Send + Sync + 'static {
    /// How a sender is reached, besides its address.
    type Way: Copy + Send + 'static;

    /// Sends a datagram in the name of `from`.
    fn answer(&self, from: SocketAddr, to: SocketAddr, payload: &[u8], way: Self::Way);
}

/// A datagram that a sender has sent.
pub(in crate::outbound) struct Outgoing<W> {
    pub(in crate::outbound) to: SocketAddr,
    pub(in crate::outbound) payload: Vec<u8>,
    pub(in crate::outbound) way: W,
}

/// All senders.
pub(in crate::outbound) struct Senders<A: Answers> {
    outbound: Arc<Outbound>,
    answers: A,
    max: usize,
    max_per_host: usize,
    by_address: Mutex<HashMap<SocketAddr, Sender<A::Way>>>,
    stop: CancellationToken,
}

struct Sender<W> {
    outgoing: mpsc::Sender<Outgoing<W>>,
    last_datagram: Instant,
}

impl<A: Answers> Senders<A> {
    /// `limits`: how many there are at most, and of one host. Beyond that, the one whose last datagram is oldest has to go.
    pub(in crate::outbound) fn new(
        outbound: &Arc<Outbound>,
        answers: A,
        (max, max_per_host): (usize, usize),
        stop: CancellationToken,
    ) -> Arc<Senders<A>> {
        let by_address = Mutex::default();
        Arc::new(Senders { outbound: Arc::clone(outbound), answers, max, max_per_host, by_address, stop })
    }

    fn by_address(&self) -> MutexGuard<'_, HashMap<SocketAddr, Sender<A::Way>>> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram through the exit, or drops it if the exit is not reached in time.
    pub(in crate::outbound) fn send(self: &Arc<Self>, from: SocketAddr, datagram: Outgoing<A::Way>) {
        let mut by_address = self.by_address();
        if let Some(sender) = by_address.get_mut(&from) {
            sender.last_datagram = Instant::now();
            let _ = sender.outgoing.try_send(datagram);
            return;
        }
        make_room(&mut by_address, from.ip(), self.max, self.max_per_host);
        let (outgoing, waiting) = mpsc::channel(MAX_WAITING);
        let _ = outgoing.try_send(datagram);
        by_address.insert(from, Sender { outgoing: outgoing.clone(), last_datagram: Instant::now() });
        drop(by_address);
        let (senders, stop) = (Arc::clone(self), self.stop.clone());
        // Only the map keeps the sending end.
        let own = outgoing.downgrade();
        self.outbound.gateway().spawn_until_stopped(async move {
            stop.run_until_cancelled(senders.carry(from, waiting)).await;
            // After an eviction there may be another one.
            let mut by_address = senders.by_address();
            let is_own = own.upgrade().zip(by_address.get(&from));
            if is_own.is_some_and(|(own, now)| own.same_channel(&now.outgoing)) {
                by_address.remove(&from);
            }
        });
    }

    /// Carries the datagrams of one sender until none was sent in either direction for the time that RFC 4787 asks for.
    async fn carry(&self, sender: SocketAddr, mut waiting: mpsc::Receiver<Outgoing<A::Way>>) {
        let mut association = match self.outbound.associate().await {
            Ok(association) => association,
            Err(error) => return debug!("{sender}: its datagrams are dropped: {error}"),
        };
        let (mut way, mut timeout) = (None, UNANSWERED_TIMEOUT);
        let mut last_datagram = Instant::now();
        loop {
            tokio::select! {
                outgoing = waiting.recv() => {
                    let Some(Outgoing { to, payload, way: by }) = outgoing else { return };
                    let Some(port) = NonZeroU16::new(to.port()) else { continue };
                    way = Some(by);
                    association.send(&Destination::Host(Host::Address(to.ip()), port), &payload);
                }
                delivered = association.receive() => match delivered {
                    Delivered::Data { from: Destination::Host(Host::Address(ip), port), payload } => {
                        timeout = ESTABLISHED_TIMEOUT;
                        let from = SocketAddr::new(ip, port.get());
                        if let Some(way) = way && ip.is_ipv4() == sender.is_ipv4() {
                            self.answers.answer(from, sender, &payload, way);
                        }
                    }
                    Delivered::Data { .. } => continue,
                    Delivered::Refused { destination, reason } => {
                        debug!("{sender}: the exit sends no datagrams to {destination}: {reason}");
                        continue;
                    }
                },
                () = sleep_until((last_datagram + timeout).into()) => return,
            }
            last_datagram = Instant::now();
        }
    }
}

fn make_room<W>(
    by_address: &mut HashMap<SocketAddr, Sender<W>>,
    host: IpAddr,
    max: usize,
    max_per_host: usize,
) {
    let of_host = by_address.keys().filter(|address| address.ip() == host).count();
    if of_host < max_per_host && by_address.len() < max {
        return;
    }
    let candidates = by_address.iter().filter(|(at, _)| of_host < max_per_host || at.ip() == host);
    let oldest = candidates.min_by_key(|(_, sender)| sender.last_datagram).map(|(at, _)| *at);
    if let Some(oldest) = oldest {
        by_address.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_host_with_too_many_senders_loses_its_oldest() {
        let now = Instant::now();
        let mut by_address = HashMap::new();
        let mut add = |address: &str, age: u64| {
            let sender = Sender::<()> {
                outgoing: mpsc::channel(1).0,
                last_datagram: now.checked_sub(Duration::from_secs(age)).expect("a recent time"),
            };
            by_address.insert(address.parse::<SocketAddr>().expect("an address"), sender);
        };
        add("10.0.0.1:1", 9);
        add("10.0.0.2:1", 3);
        add("10.0.0.2:2", 5);
        let left = |by_address: &HashMap<SocketAddr, Sender<()>>| {
            let mut left: Vec<_> = by_address.keys().map(ToString::to_string).collect();
            left.sort();
            left
        };
        make_room(&mut by_address, [10, 0, 0, 2].into(), 10, 3);
        assert_eq!(by_address.len(), 3, "there is room");
        make_room(&mut by_address, [10, 0, 0, 2].into(), 10, 2);
        assert_eq!(left(&by_address), ["10.0.0.1:1", "10.0.0.2:1"]);
        make_room(&mut by_address, [10, 0, 0, 2].into(), 2, 2);
        assert_eq!(left(&by_address), ["10.0.0.2:1"]);
    }
}
