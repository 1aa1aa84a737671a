//! A session with the exit: a socket on each interface, probes, and the packets of all associations.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use plait_proto::datagrams::{Message, Opener, PathChoice, PathId, Preference, Sealer, SessionId, keys};
use plait_proto::exit::Destination;
use plait_proto::sealed::Exporter;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, trace};

use super::{Datagrams, Delivered, Recipient};
use crate::datagrams::{
    Copies, CountedLosses, DatagramCounters, DatagramScheduler, DatagramSocket, InOrder, MAX_PAYLOAD,
    PathCounters, Paths, ReceiveBuffers, Received,
};
use crate::outbound::open::Outbound;

/// Interfaces are looked at this often, beside their changes.
const REVIEW_INTERVAL: Duration = Duration::from_secs(2);

/// A session.
pub(super) struct Link {
    recipient: Recipient,
    /// Where the exit receives.
    exit: SocketAddr,
    sealer: Sealer,
    opener: Opener,
    counters: Arc<DatagramCounters>,
    losses: CountedLosses,
    /// For datagrams that are spread over paths.
    in_order: Option<Arc<InOrder<(u32, Delivered)>>>,
    state: Mutex<State>,
    ready: watch::Sender<bool>,
    /// Datagrams flow again.
    busy: Notify,
}

struct State {
    paths: Paths,
    sockets: BTreeMap<PathId, PathSocket>,
    copies: Copies,
    next_copy: u64,
    message: Vec<u8>,
    packet: Vec<u8>,
}

/// The socket of a path.
struct PathSocket {
    interface: Interface,
    socket: Arc<DatagramSocket>,
    counters: Arc<PathCounters>,
    _reader: AbortOnDropHandle<()>,
}

/// An interface that leads to the exit; `None`: as routing decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Interface(Option<(u32, String)>);

impl Link {
    pub(super) fn new(
        datagrams: &Arc<Datagrams>,
        scheduler: DatagramScheduler,
        session: SessionId,
        exporter: &Exporter,
        exit: SocketAddr,
        counters: Arc<DatagramCounters>,
    ) -> Arc<Link> {
        let (sealer, opener) = keys(exporter, session).of_initiator(session);
        let state = State {
            paths: Paths::new(scheduler),
            sockets: BTreeMap::new(),
            copies: Copies::default(),
            next_copy: 0,
            message: Vec::new(),
            packet: Vec::new(),
        };
        Arc::new(Link {
            recipient: Arc::downgrade(datagrams),
            exit,
            sealer,
            opener,
            counters,
            losses: CountedLosses::default(),
            in_order: (scheduler == DatagramScheduler::Bonded).then(|| in_order(datagrams)),
            state: Mutex::new(state),
            ready: watch::Sender::new(false),
            busy: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a path has answered.
    pub(super) async fn ready(&self) {
        // The sender lives as long as this.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Whether a path has answered.
    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Keeps sockets and probes up until the exit closes the connection.
    pub(super) async fn run(self: &Arc<Self>, outbound: &Outbound, mut control: TcpStream) {
        let mut changes = outbound.interface_changes();
        let mut reviewed: Option<Instant> = None;
        let mut ignored = [0; 64];
        loop {
            let now = Instant::now();
            if reviewed.is_none_or(|last| now.duration_since(last) >= REVIEW_INTERVAL) {
                self.review(&outbound.interfaces_to(self.exit.ip()));
                reviewed = Some(now);
            }
            let next_look = self.probe();
            tokio::select! {
                read = control.read(&mut ignored) => match read {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return info!("datagrams: the exit has ended the session; a new one follows"),
                },
                () = changed(&mut changes) => reviewed = None,
                () = self.busy.notified() => {}
                () = sleep(next_look) => {}
            }
        }
    }

    /// Opens and closes sockets as interfaces come and go. `None`: routing decides about the only path.
    fn review(self: &Arc<Self>, interfaces: &Option<Vec<(u32, String)>>) {
        let wanted: BTreeSet<Interface> = match interfaces {
            Some(interfaces) => interfaces.iter().cloned().map(Some).map(Interface).collect(),
            None => BTreeSet::from([Interface(None)]),
        };
        let (mut state, now) = (self.state(), Instant::now());
        let State { paths, sockets, .. } = &mut *state;
        sockets.retain(|path, PathSocket { interface, .. }| {
            let stays = wanted.contains(interface);
            if !stays {
                debug!("datagrams: no longer through {interface}");
                paths.remove(*path, now);
            }
            stays
        });
        for interface in wanted {
            if sockets.values().any(|path| path.interface == interface) {
                continue;
            }
            let Some(path) = PathId::all().find(|path| !sockets.contains_key(path)) else { return };
            match self.open(path, &interface) {
                Ok(socket) => {
                    debug!("datagrams: through {interface}");
                    sockets.insert(path, socket);
                    paths.add(path);
                }
                Err(error) => debug!("datagrams: not through {interface}: {error}"),
            }
        }
    }

    fn open(self: &Arc<Self>, path: PathId, interface: &Interface) -> io::Result<PathSocket> {
        let any: IpAddr =
            if self.exit.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let device = interface.0.as_ref().map(|(_, name)| name.as_str());
        let socket = Arc::new(DatagramSocket::bind(SocketAddr::new(any, 0), device)?);
        let counters = self.counters.path(device.unwrap_or("default route"));
        let reading = read(Arc::downgrade(self), Arc::clone(&socket), Arc::clone(&counters), path);
        let reader = AbortOnDropHandle::new(tokio::spawn(reading));
        Ok(PathSocket { interface: interface.clone(), socket, counters, _reader: reader })
    }

    /// Sends the probes that are due; returns when to look again.
    fn probe(&self) -> Duration {
        let (mut state, now) = (self.state(), Instant::now());
        for (path, number) in state.paths.due(now) {
            // Before a path has answered, the exit has nothing to send.
            let unknown = Preference { number: 0, paths: PathChoice::One(path) };
            let preference = state.paths.preference(path).unwrap_or(unknown);
            self.send_by(&mut state, path, &Message::Probe { number, preference });
        }
        state.paths.next_look(now)
    }

    /// Sends a datagram of a program.
    pub(super) fn send(&self, association: u32, destination: &Destination, payload: &[u8]) {
        if payload.len() > MAX_PAYLOAD {
            return debug!("datagrams: expected at most {MAX_PAYLOAD} bytes, got {}", payload.len());
        }
        let (mut state, now) = (self.state(), Instant::now());
        if !state.paths.is_busy(now) {
            self.busy.notify_one();
        }
        state.paths.carries_data(now);
        // If the interface has just gone, another path is chosen.
        for _ in 0..2 {
            let chosen = state.paths.choice();
            let copy = (state.paths.numbers_datagrams() && !chosen.is_empty()).then(|| {
                state.next_copy += 1;
                state.next_copy - 1
            });
            let message = Message::Data { association, copy, destination: destination.clone(), payload };
            let sent = chosen.into_iter().filter(|path| self.send_by(&mut state, *path, &message)).count();
            if sent > 0 {
                return;
            }
        }
    }

    /// Tells the exit that an association has ended.
    pub(super) fn close(&self, association: u32) {
        let mut state = self.state();
        for path in state.paths.choice() {
            self.send_by(&mut state, path, &Message::Close { association });
        }
    }

    /// Sends a message by a path; returns whether the kernel took it.
    fn send_by(&self, state: &mut State, path: PathId, message: &Message<'_>) -> bool {
        let State { paths, sockets, message: bytes, packet, .. } = state;
        let Some(PathSocket { socket, interface, counters, .. }) = sockets.get(&path) else { return false };
        message.encode(bytes);
        self.sealer.seal(path, bytes, packet);
        match socket.send(self.exit, None, packet) {
            Ok(()) => {
                if let Message::Data { payload, .. } = message {
                    counters.sent(payload.len());
                }
                true
            }
            // As a full queue of a router.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => {
                trace!("datagrams: through {interface}: {error}");
                paths.failed(path, Instant::now());
                false
            }
        }
    }

    /// Takes a packet of a path's socket.
    fn received(&self, path: PathId, counters: &PathCounters, received: Received<'_>) {
        let Received { from, packet, .. } = received;
        if from != self.exit {
            return;
        }
        let message = match self.opener.open(packet) {
            Ok((of_packet, bytes)) if of_packet == path => {
                self.losses.count(&self.opener, path, counters);
                Message::decode(bytes).ok()
            }
            Ok(_) => None,
            Err(error) => {
                trace!("datagrams: {from}: {error}");
                None
            }
        };
        match message {
            Some(Message::Probe { number, .. }) => {
                self.send_by(&mut self.state(), path, &Message::ProbeReply { number });
            }
            Some(Message::ProbeReply { number }) => self.answered(path, number),
            Some(Message::Data { association, copy, destination, payload }) => {
                counters.received(payload.len());
                let mut state = self.state();
                state.paths.carries_data(Instant::now());
                if copy.is_some_and(|copy| !state.copies.is_first(copy)) {
                    return;
                }
                drop(state);
                let delivered = Delivered::Data { from: destination, payload: payload.to_vec() };
                match (&self.in_order, copy) {
                    (Some(in_order), Some(number)) => in_order.arrived(number, (association, delivered)),
                    _ => self.deliver(association, delivered),
                }
            }
            Some(Message::Refused { association, reason, destination }) => {
                self.deliver(association, Delivered::Refused { destination, reason });
            }
            Some(Message::Close { .. }) | None => {}
        }
    }

    /// A probe was answered. If that changes the path, the exit learns it at once.
    fn answered(&self, path: PathId, number: u64) {
        let (mut state, now) = (self.state(), Instant::now());
        state.paths.answered(path, number, now);
        if state.paths.is_ready() {
            self.ready.send_if_modified(|ready| !std::mem::replace(ready, true));
        }
    }

    fn deliver(&self, association: u32, delivered: Delivered) {
        if let Some(datagrams) = self.recipient.upgrade() {
            datagrams.deliver(association, delivered);
        }
    }
}

fn in_order(datagrams: &Arc<Datagrams>) -> Arc<InOrder<(u32, Delivered)>> {
    let recipient = Arc::downgrade(datagrams);
    InOrder::new(move |(association, delivered)| {
        if let Some(datagrams) = recipient.upgrade() {
            datagrams.deliver(association, delivered);
        }
    })
}

/// Receives the packets of a path.
async fn read(link: Weak<Link>, socket: Arc<DatagramSocket>, counters: Arc<PathCounters>, path: PathId) {
    let mut buffers = ReceiveBuffers::default();
    loop {
        let received = socket.receive(&mut buffers, |received| {
            if let Some(link) = link.upgrade() {
                link.received(path, &counters, received);
            }
        });
        if let Err(error) = received.await {
            trace!("datagrams: {error}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn changed(changes: &mut Option<watch::Receiver<()>>) {
    let told = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !told {
        std::future::pending().await
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.as_ref().map_or("the default route", |(_, name)| name))
    }
}
