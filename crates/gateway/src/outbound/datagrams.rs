//! Datagrams of programs through an exit: the client's end of [sessions of datagrams](plait_proto::datagrams).
//!
//! All programs share one session, which is opened when the first of them needs it, and again when it ended. An association
//! outlives sessions: when the exit is back, its datagrams are carried on, from another port of the exit.

mod link;
mod senders;
mod transparent;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use plait_proto::datagrams::SessionId;
use plait_proto::exit::{ConnectFailure, Destination};
use tokio::io::AsyncReadExt;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::exit_url::ExitUrl;
use super::open::{OpenError, Outbound};
use super::route::Route;
use crate::datagrams::{CountedAssociation, DatagramScheduler};
use crate::handshake::HANDSHAKE_TIMEOUT;
use link::Link;

pub(super) use senders::{Answers, Outgoing, Senders};
pub(super) use transparent::{Clients, TransparentAsker, TransparentDatagrams, bind_transparent};

/// Datagrams that wait for a program. Further ones are dropped.
const MAX_WAITING: usize = 512;

/// How long a session without associations is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait after a session could not be opened, or was closed by the exit.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How long a session may take until a path answers: some lost packets, and a second attempt.
const READY_TIMEOUT: Duration = Duration::from_secs(4);

/// The datagrams of this gateway's programs.
pub(super) struct Datagrams {
    exit: ExitUrl,
    associations: Mutex<HashMap<u32, mpsc::Sender<Delivered>>>,
    next_id: AtomicU32,
    state: watch::Sender<State>,
    /// An association was added.
    demand: Notify,
}

/// The state of the session.
#[derive(Clone)]
enum State {
    Closed,
    /// Opening it failed, and is repeated.
    Failed(Arc<io::Error>),
    Open(Arc<Link>),
}

/// A socket at the exit for datagrams of a program. It exists from the first datagram on, and after a pause of minutes another one
/// takes its place.
pub(super) struct Association {
    id: u32,
    datagrams: Arc<Datagrams>,
    delivered: mpsc::Receiver<Delivered>,
    _counted: CountedAssociation,
}

/// What arrives for an association.
#[derive(Debug)]
pub(super) enum Delivered {
    /// A datagram.
    Data { from: Destination, payload: Vec<u8> },
    /// Datagrams to this destination are not sent.
    Refused { destination: Destination, reason: ConnectFailure },
}

impl Outbound {
    /// The same, with its datagrams on these paths.
    #[must_use]
    pub fn with_datagram_scheduler(mut self, scheduler: DatagramScheduler) -> Outbound {
        self.datagram_scheduler = scheduler;
        self
    }

    /// Opens an association with the exit.
    ///
    /// # Errors
    /// For seconds, the exit is unreachable, carries no datagrams, or none of its packets arrive; or connections do not go to an exit.
    pub(super) async fn associate(self: &Arc<Self>) -> io::Result<Association> {
        let datagrams = self.datagrams()?;
        let (sender, delivered) = mpsc::channel(MAX_WAITING);
        let id = datagrams.next_id.fetch_add(1, Ordering::Relaxed);
        datagrams.associations().insert(id, sender);
        // Removes it if it is dropped meanwhile.
        let association = Association {
            id,
            datagrams: Arc::clone(&datagrams),
            delivered,
            _counted: self.gateway().datagrams.association(),
        };
        datagrams.demand.notify_one();
        let mut failure = None;
        let ready = timeout(READY_TIMEOUT, datagrams.ready(&mut failure)).await;
        match ready {
            Ok(()) => Ok(association),
            Err(_) => Err(failure.unwrap_or_else(|| silent(&datagrams.exit))),
        }
    }

    /// What carries datagrams, running.
    fn datagrams(self: &Arc<Self>) -> io::Result<Arc<Datagrams>> {
        let Route::Exit(exit) = self.route() else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "expected an exit (--exit) for datagrams, got none",
            ));
        };
        let mut started = self.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(datagrams) = &*started {
            return Ok(Arc::clone(datagrams));
        }
        let datagrams = Arc::new(Datagrams {
            exit: exit.clone(),
            associations: Mutex::default(),
            next_id: AtomicU32::new(0),
            state: watch::Sender::new(State::Closed),
            demand: Notify::new(),
        });
        *started = Some(Arc::clone(&datagrams));
        self.gateway().spawn_until_stopped(run(Arc::clone(self), Arc::clone(&datagrams)));
        Ok(datagrams)
    }

    /// Opens a session with the exit.
    async fn open_link(
        self: &Arc<Self>,
        datagrams: &Arc<Datagrams>,
    ) -> io::Result<(Arc<Link>, tokio::net::TcpStream)> {
        let opened = self.open_through(&datagrams.exit, &Destination::Datagrams, None).await;
        let opened = opened.map_err(|error| match error {
            OpenError::Connect(error) => error,
            other => io::Error::other(other),
        })?;
        let (peer, exporter) = (opened.peer(), opened.exporter());
        let exporter = exporter.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        let mut stream = self.carry_stream(opened).await.map_err(io::Error::other)?.into_socket();
        let mut id = SessionId([0; SessionId::LEN]);
        timeout(HANDSHAKE_TIMEOUT, stream.read_exact(&mut id.0))
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        let counters = Arc::clone(&self.gateway().datagrams);
        Ok((Link::new(datagrams, self.datagram_scheduler, id, &exporter, peer, counters), stream))
    }
}

impl Datagrams {
    fn associations(&self) -> MutexGuard<'_, HashMap<u32, mpsc::Sender<Delivered>>> {
        self.associations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes something on to a program; it is dropped if the program does not take it.
    fn deliver(&self, association: u32, delivered: Delivered) {
        if let Some(sender) = self.associations().get(&association) {
            let _ = sender.try_send(delivered);
        }
    }

    /// Waits until a path of the session answers. `failure`: why there is no session so far.
    async fn ready(&self, failure: &mut Option<io::Error>) {
        let mut state = self.state.subscribe();
        state.mark_unchanged();
        loop {
            let now = state.borrow().clone();
            match now {
                State::Open(link) => {
                    *failure = None;
                    tokio::select! {
                        () = link.ready() => return,
                        _ = state.changed() => {}
                    }
                }
                State::Closed => drop(state.changed().await),
                State::Failed(error) => {
                    *failure = Some(io::Error::new(error.kind(), error.to_string()));
                    drop(state.changed().await);
                }
            }
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        match &*self.state.borrow() {
            State::Open(link) => Some(Arc::clone(link)),
            State::Closed | State::Failed(_) => None,
        }
    }
}

/// Keeps a session open while there are associations.
async fn run(outbound: Arc<Outbound>, datagrams: Arc<Datagrams>) {
    let mut is_known = false;
    loop {
        while datagrams.associations().is_empty() {
            datagrams.demand.notified().await;
        }
        match outbound.open_link(&datagrams).await {
            Ok((link, stream)) => {
                debug!("datagrams: a session with the exit {}", datagrams.exit.peer());
                datagrams.state.send_replace(State::Open(Arc::clone(&link)));
                let warned = async {
                    sleep(READY_TIMEOUT).await;
                    if !link.is_ready() && !is_known {
                        is_known = true;
                        warn!("{}", silent(&datagrams.exit));
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = link.run(&outbound, stream) => {}
                    () = until_idle(&datagrams) => {}
                    () = warned => {}
                }
                if link.is_ready() {
                    is_known = false;
                }
                datagrams.state.send_replace(State::Closed);
            }
            Err(error) => {
                if !std::mem::replace(&mut is_known, true) {
                    warn!("no datagrams to the exit {}: {error}", datagrams.exit.peer());
                }
                datagrams.state.send_replace(State::Failed(Arc::new(error)));
            }
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Waits until there was no association for a while.
async fn until_idle(datagrams: &Datagrams) {
    loop {
        sleep(IDLE_TIMEOUT).await;
        let idle = async {
            while datagrams.associations().is_empty() {
                datagrams.demand.notified().await;
            }
        };
        if datagrams.associations().is_empty() && timeout(IDLE_TIMEOUT, idle).await.is_err() {
            return;
        }
    }
}

fn silent(exit: &ExitUrl) -> io::Error {
    let (host, port) = exit.peer().host_and_port();
    let text = format!(
        "the exit {host} does not answer datagrams (UDP) on port {port}, which a firewall may drop; connections are not affected"
    );
    io::Error::new(io::ErrorKind::TimedOut, text)
}

impl Association {
    /// Sends a datagram, if the exit can be reached now.
    pub(super) fn send(&self, destination: &Destination, payload: &[u8]) {
        if let Some(link) = self.datagrams.link() {
            link.send(self.id, destination, payload);
        }
    }

    /// Waits for what arrives next.
    pub(super) async fn receive(&mut self) -> Delivered {
        match self.delivered.recv().await {
            Some(delivered) => delivered,
            // The sender is removed with the association.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.datagrams.associations().remove(&self.id);
        if let Some(link) = self.datagrams.link() {
            link.close(self.id);
        }
    }
}

/// A link does not keep what delivers its datagrams.
type Recipient = Weak<Datagrams>;
