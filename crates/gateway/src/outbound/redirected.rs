//! The connections of a redirected program: opened when a SYN arrives, and carried when the listener has accepted it.
//!
//! Without held SYNs, and at the gateway's limits, a connection is opened when it is accepted.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use super::held_syn::{HeldSyn, LoopbackSender, Rejection};
use super::open::{OpenError, Opened, Outbound};
use super::redirect::{Destination, Redirect};
use crate::bindings::plait_syn;
use crate::ring_events::RingEvents;

/// An opened connection that is not accepted within this time is reset: the program has given up its socket. Should it be
/// accepted after all, it is opened again.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two checks for such connections.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A program's connections.
pub(super) struct RedirectedConnections {
    outbound: Arc<Outbound>,
    redirect: Redirect,
    /// Limits the connections that are opened and not accepted, whose descriptors they take.
    opening: Arc<Semaphore>,
    opened: Mutex<OpenedConnections>,
}

impl RedirectedConnections {
    pub(super) fn new(outbound: Arc<Outbound>, redirect: Redirect) -> Arc<RedirectedConnections> {
        let opening = Arc::new(Semaphore::new((outbound.gateway().max_carried() / 4).max(1)));
        Arc::new(RedirectedConnections { outbound, redirect, opening, opened: Mutex::default() })
    }

    fn opened(&self) -> MutexGuard<'_, OpenedConnections> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the connections of held SYNs, until the gateway stops.
    pub(super) async fn open_held(self: Arc<Self>, mut syns: RingEvents<plait_syn>, sender: LoopbackSender) {
        // When this is cancelled, what was not accepted never will be.
        let _clear = ClearOnDrop(Arc::clone(&self));
        let sender = Arc::new(sender);
        let mut tick = tokio::time::interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                ready = syns.ready() => {
                    if let Err(error) = ready {
                        return warn!("cannot read the SYNs of programs: {error}");
                    }
                }
                _ = tick.tick() => self.opened().expire(),
            }
            for event in syns.take().unwrap_or_default() {
                if let Some(syn) = HeldSyn::read(&event) {
                    let opening = Arc::clone(&self).open_one(syn, Arc::clone(&sender));
                    self.outbound.gateway().spawn_until_stopped(opening);
                }
            }
        }
    }

    async fn open_one(self: Arc<Self>, syn: HeldSyn, sender: Arc<LoopbackSender>) {
        let opening = Arc::clone(&self.opening).try_acquire_owned().ok();
        let permits = opening.zip(self.outbound.gateway().try_permit());
        let opened = match permits {
            Some(permits) => self.open(&syn.destination).await.map(|opened| Some((permits, opened))),
            // At its limits this gateway accepts the connection and opens it later: the program may wait for it before it
            // ends another.
            None => Ok(None),
        };
        let answered = match opened {
            Ok(opened) => {
                if let Some(((opening, carried), opened)) = opened {
                    let since = Instant::now();
                    self.opened().add(syn.client, Accepting { since, opened, carried, _opening: opening });
                }
                self.redirect.release(syn.client);
                sender.release(&syn)
            }
            // If the destination does not answer, neither does the listener.
            Err(error) => Rejection::of(&error).map_or(Ok(()), |rejection| sender.reject(&syn, rejection)),
        };
        if let Err(error) = answered {
            debug!("{}: cannot answer its SYN: {error}", syn.client);
        }
    }

    async fn open(&self, destination: &Destination) -> Result<Opened, OpenError> {
        let Destination { address, interface } = destination;
        let opened = self.outbound.open(&(*address).into(), &[*address], interface.as_deref()).await;
        opened.inspect_err(|error| match error {
            // The program gets an error number; only this message tells why.
            OpenError::Connect(_) => warn!("{address}: {error}"),
            // Of a failed handshake it was logged.
            _ => debug!("{address}: {error}"),
        })
    }

    /// Accepts connections and carries them, until the gateway stops.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let gateway = Arc::clone(self.outbound.gateway());
        gateway
            .accept(listener, gateway.places_per_carried, |near, from, place| {
                let connections = Arc::clone(&self);
                let destination = self.redirect.take_destination(from);
                async move {
                    let _place = place;
                    let accepting = connections.opened().take(from);
                    let (opened, _carried) = match accepting {
                        Some(Accepting { opened, carried, .. }) => (opened, carried),
                        None => {
                            let Some(destination) = destination else {
                                return debug!("{from}: not a redirected connection");
                            };
                            let carried = connections.outbound.gateway().permit().await;
                            // It was logged.
                            let Ok(opened) = connections.open(&destination).await else { return };
                            (opened, carried)
                        }
                    };
                    if let Err(error) = connections.outbound.carry(&near, opened).await {
                        debug!("{from}: {error}");
                    }
                }
            })
            .await;
    }
}

/// Drops the connections that were not accepted.
struct ClearOnDrop(Arc<RedirectedConnections>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.opened().by_client.clear();
    }
}

/// A connection to be accepted.
struct Accepting {
    since: Instant,
    opened: Opened,
    carried: OwnedSemaphorePermit,
    _opening: OwnedSemaphorePermit,
}

/// Opened connections, by the address of the program's socket.
#[derive(Default)]
struct OpenedConnections {
    by_client: HashMap<SocketAddr, Accepting>,
    by_age: VecDeque<(Instant, SocketAddr)>,
}

impl OpenedConnections {
    fn add(&mut self, client: SocketAddr, accepting: Accepting) {
        self.by_age.push_back((accepting.since, client));
        self.by_client.insert(client, accepting);
    }

    fn take(&mut self, client: SocketAddr) -> Option<Accepting> {
        self.by_client.remove(&client)
    }

    fn expire(&mut self) {
        while self.by_age.front().is_some_and(|(since, _)| since.elapsed() > ACCEPT_TIMEOUT) {
            let Some((since, client)) = self.by_age.pop_front() else { return };
            // Another connection may have the same address now.
            if self.by_client.get(&client).is_some_and(|accepting| accepting.since == since) {
                self.by_client.remove(&client);
            }
        }
    }
}
