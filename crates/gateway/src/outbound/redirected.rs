//! The connections of a redirected program: opened when a SYN arrives, and carried when the listener has accepted it.
//!
//! Without held SYNs, and at the gateway's limits, a connection is opened when it is accepted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::accepting::{Accepting, CHECK_INTERVAL, OpenedConnections};
use super::held_syn::{HeldSyn, LoopbackSender};
use super::open::{OpenError, Opened, Outbound};
use super::redirect::{Destination, Redirect};
use super::syn::Rejection;
use super::target::Target;
use crate::bindings::plait_syn;
use crate::ring_events::RingEvents;

/// A program's connections.
pub(super) struct RedirectedConnections {
    outbound: Arc<Outbound>,
    redirect: Arc<Redirect>,
    /// Limits the connections that are opened and not accepted, whose descriptors they take.
    opening: Arc<Semaphore>,
    opened: Mutex<OpenedConnections<SocketAddr>>,
}

impl RedirectedConnections {
    pub(super) fn new(outbound: Arc<Outbound>, redirect: Arc<Redirect>) -> Arc<RedirectedConnections> {
        let opening = Arc::new(Semaphore::new((outbound.gateway().capacity().max_carried / 4).max(1)));
        Arc::new(RedirectedConnections { outbound, redirect, opening, opened: Mutex::default() })
    }

    fn opened(&self) -> MutexGuard<'_, OpenedConnections<SocketAddr>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the connections of held SYNs, until the gateway stops.
    pub(super) async fn open_held(
        self: Arc<Self>,
        mut syns: RingEvents<plait_syn>,
        sender: Arc<LoopbackSender>,
    ) {
        // When this is cancelled, what was not accepted never will be.
        let _clear = ClearOnDrop(Arc::clone(&self));
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
                    // A gateway that stops may drop a task that has never run.
                    let release = ReleaseOnDrop(Some((Arc::clone(&self.redirect), syn.syn.client)));
                    let opening = Arc::clone(&self).open_one(syn, release, Arc::clone(&sender));
                    self.outbound.gateway().spawn_until_stopped(opening);
                }
            }
        }
    }

    async fn open_one(
        self: Arc<Self>,
        syn: HeldSyn,
        mut release: ReleaseOnDrop,
        sender: Arc<LoopbackSender>,
    ) {
        let opening = Arc::clone(&self.opening).try_acquire_owned().ok();
        let permits = opening.zip(self.outbound.gateway().capacity().try_permit());
        let opened = match permits {
            Some(permits) => self.open(&syn.destination).await.map(|opened| Some((permits, opened))),
            // At its limits this gateway accepts the connection and opens it later: the program may wait for it before it
            // ends another.
            None => Ok(None),
        };
        let answered = match opened {
            Ok(opened) => {
                if let Some(((opening, carried), opened)) = opened {
                    self.opened().add(syn.syn.client, Accepting::new(opened, opening, carried));
                }
                self.redirect.release(syn.syn.client);
                sender.release(&syn)
            }
            // If the destination does not answer, neither does the listener.
            Err(error) => Rejection::of(&error).map_or(Ok(()), |rejection| sender.reject(&syn, rejection)),
        };
        if let Err(error) = answered {
            debug!("{}: cannot answer its SYN: {error}", syn.syn.client);
        }
        release.0 = None;
    }

    async fn open(&self, destination: &Destination) -> Result<Opened, OpenError> {
        let Destination { address, interface } = destination;
        let target = Target::Address(*address);
        let opened = self.outbound.open_target(&target, interface.as_deref(), true).await;
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
            .accept(listener, gateway.capacity().places_per_carried, |near, from, place| {
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
                            let carried = connections.outbound.gateway().capacity().permit().await;
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

/// A SYN that is not answered, because the gateway stops, is no longer held: the next gateway on these sockets accepts it when TCP
/// sends it again.
struct ReleaseOnDrop(Option<(Arc<Redirect>, SocketAddr)>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        if let Some((redirect, client)) = self.0.take() {
            redirect.release(client);
        }
    }
}

/// Drops the connections that were not accepted.
struct ClearOnDrop(Arc<RedirectedConnections>);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.opened().clear();
    }
}
