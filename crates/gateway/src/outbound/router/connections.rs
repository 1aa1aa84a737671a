//! Connections of hosts behind an interface: opened when a SYN arrives, and carried when the listener has accepted it.
//!
//! At the gateway's limits, a connection is opened when it is accepted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plait_proto::exit::Destination;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::hooks::Hooks;
use crate::bindings::plait_lan_syn;
use crate::outbound::accepting::{Accepting, CHECK_INTERVAL, OpenedConnections};
use crate::outbound::open::{OpenError, Opened, Outbound};
use crate::outbound::reply_sender::ReplySender;
use crate::outbound::route::Route;
use crate::outbound::syn::{Rejection, Syn};
use crate::outbound::target::Target;
use crate::resolver::DNS_PORT;
use crate::ring_events::RingEvents;

/// A connection, by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) client: SocketAddr,
    pub(super) destination: SocketAddr,
}

/// The connections of one router.
pub(super) struct LanConnections {
    outbound: Arc<Outbound>,
    hooks: Arc<Hooks>,
    sender: Arc<ReplySender>,
    /// Limits the connections that are opened and not accepted, whose descriptors they take.
    opening: Arc<Semaphore>,
    opened: Mutex<OpenedConnections<Flow>>,
    /// When the router has ended, its connections are reset: no packet of theirs arrives any longer.
    ended: CancellationToken,
}

impl LanConnections {
    pub(super) fn new(
        outbound: Arc<Outbound>,
        hooks: Arc<Hooks>,
        sender: Arc<ReplySender>,
        ended: CancellationToken,
    ) -> Arc<LanConnections> {
        let opening = Arc::new(Semaphore::new((outbound.gateway().capacity().max_carried / 4).max(1)));
        Arc::new(LanConnections { outbound, hooks, sender, opening, opened: Mutex::default(), ended })
    }

    fn opened(&self) -> MutexGuard<'_, OpenedConnections<Flow>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the connections of held SYNs, and rejects them once the gateway stops, as the kernel does not: it sends no resets
    /// in the name of others.
    pub(super) async fn open_held(self: Arc<Self>, mut syns: RingEvents<plait_lan_syn>) {
        let mut tick = tokio::time::interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                ready = syns.ready() => {
                    if let Err(error) = ready {
                        return warn!("cannot read the SYNs of hosts: {error}");
                    }
                }
                // What was not accepted then never will be.
                _ = tick.tick() => match self.outbound.gateway().is_stopping() {
                    true => self.opened().clear(),
                    false => self.opened().expire(),
                }
            }
            for event in syns.take().unwrap_or_default() {
                if let Some(held) = HeldSyn::read(&event, &self) {
                    let opening = Arc::clone(&self).open_one(held);
                    self.outbound.gateway().spawn_until_stopped(opening);
                }
            }
        }
    }

    async fn open_one(self: Arc<Self>, mut held: HeldSyn) {
        let flow = held.flow();
        // One that is opened already was released, and the answer lost: the host has sent its SYN again.
        if !self.opened().contains(flow) {
            let opening = Arc::clone(&self.opening).try_acquire_owned().ok();
            // At its limits this gateway accepts the connection and opens it later: the host may wait for it before it ends
            // another.
            if let Some((opening, carried)) = opening.zip(self.outbound.gateway().capacity().try_permit()) {
                match self.open(flow).await {
                    Ok(opened) => self.opened().add(flow, Accepting::new(opened, opening, carried)),
                    Err(error) => {
                        // If the destination does not answer, neither does this host.
                        held.answer = Rejection::of(&error).map_or(Answer::None, Answer::Reject);
                        return;
                    }
                }
            }
        }
        held.answer = Answer::Accept;
    }

    async fn open(&self, flow: Flow) -> Result<Opened, OpenError> {
        let Flow { client, destination } = flow;
        let opened = match self.outbound.route() {
            // Whichever resolver the host asks: it may be one of its own network, or this host.
            Route::Exit(exit) if destination.port() == DNS_PORT => {
                self.outbound.open_through(exit, &Destination::Resolver, None).await
            }
            _ => self.outbound.open_target(&Target::Address(destination), None, false).await,
        };
        opened.inspect_err(|error| info!("{client} to {destination}: {error}"))
    }

    /// Accepts connections and carries them, until the gateway stops.
    pub(super) async fn accept(self: Arc<Self>, listener: TcpListener) {
        let gateway = Arc::clone(self.outbound.gateway());
        let own = listener.local_addr().ok();
        gateway
            .accept(listener, gateway.capacity().places_per_carried, |near, from, place| {
                let connections = Arc::clone(&self);
                async move {
                    let _place = place;
                    // The socket has the address that the host connected to.
                    let destination = match near.local_addr() {
                        Ok(destination) if Some(destination) != own => without_scope(destination),
                        _ => return debug!("{from}: connected to the listener itself"),
                    };
                    let flow = Flow { client: without_scope(from), destination };
                    let accepting = connections.opened().take(flow);
                    let (opened, _carried) = match accepting {
                        Some(Accepting { opened, carried, .. }) => (opened, carried),
                        None => {
                            let carried = connections.outbound.gateway().capacity().permit().await;
                            // It was logged.
                            let Ok(opened) = Box::pin(connections.open(flow)).await else { return };
                            (opened, carried)
                        }
                    };
                    // On the heap: it would be part of several futures.
                    let carried = Box::pin(connections.outbound.carry(&near, opened));
                    if let Some(Err(error)) = connections.ended.run_until_cancelled(carried).await {
                        debug!("{from} to {destination}: {error}");
                    }
                }
            })
            .await;
    }
}

/// How a SYN is answered.
enum Answer {
    /// By the listener.
    Accept,
    Reject(Rejection),
    None,
}

/// A held SYN, answered when it is dropped: with a reset unless something else was decided, as when the gateway stops.
struct HeldSyn {
    connections: Arc<LanConnections>,
    syn: Syn,
    if_index: u32,
    answer: Answer,
}

impl HeldSyn {
    /// `None` if the event is malformed.
    fn read(event: &plait_lan_syn, connections: &Arc<LanConnections>) -> Option<HeldSyn> {
        let headers = event.headers.get(..usize::try_from(event.length).ok()?)?;
        let syn = Syn::parse(headers.to_vec()).ok()?;
        let answer = Answer::Reject(Rejection::Reset);
        Some(HeldSyn { connections: Arc::clone(connections), syn, if_index: event.interface, answer })
    }

    fn flow(&self) -> Flow {
        Flow { client: self.syn.client, destination: self.syn.server }
    }
}

impl Drop for HeldSyn {
    fn drop(&mut self) {
        let LanConnections { hooks, sender, .. } = &*self.connections;
        hooks.release(self.flow());
        let answered = match self.answer {
            Answer::Accept => sender.release(&self.syn, self.if_index),
            Answer::Reject(rejection) => sender.reject(&self.syn, rejection, self.if_index),
            Answer::None => Ok(()),
        };
        if let Err(error) = answered {
            debug!("{}: cannot answer its SYN: {error}", self.syn.client);
        }
    }
}

/// Without scope and flow label, which packets do not show.
fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}
