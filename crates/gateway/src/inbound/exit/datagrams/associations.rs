//! The sockets by which a client's datagrams leave the exit, and answers come back: one for each socket of the client's programs,
//! whatever its destinations are (endpoint-independent mapping, RFC 4787, REQ-1).
//!
//! Only hosts that the client has sent to get datagrams through (address-dependent filtering, REQ-8).

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use plait_proto::exit::{ConnectFailure, Destination, Host};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, trace};

use super::session::Session;
use crate::datagrams::{CountedAssociation, DatagramCounters, ESTABLISHED_TIMEOUT, UNANSWERED_TIMEOUT};
use crate::inbound::exit::{Admission, ClientId, Exit};
use crate::resolver::nameservers;
use crate::socket::canonical;

/// Associations of a session at once.
const MAX_ASSOCIATIONS: usize = 4096;

/// Hosts that an association may receive from; the next one replaces all others.
const MAX_REMOTES: usize = 1024;

/// Names that a session resolves at once. Datagrams to further ones are dropped.
const MAX_LOOKUPS: usize = 32;

/// Names that an association remembers; the next one replaces all others.
const MAX_NAMES: usize = 256;

/// How long the address of a name serves the datagrams of an association.
const NAME_MAX_AGE: Duration = Duration::from_secs(60);

/// Datagrams that are received at once.
const MAX_BATCH: usize = 64;

thread_local! {
    /// Associations are many, and few receive at once.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How long the resolver that this host's configuration names is kept.
const RESOLVER_MAX_AGE: Duration = Duration::from_secs(5);

/// The associations of a session.
pub(super) struct Associations {
    exit: Arc<Exit>,
    client: ClientId,
    session: Weak<Session>,
    by_id: Arc<Mutex<HashMap<SocketId, Arc<Association>>>>,
    lookups: Arc<Semaphore>,
    resolver: Mutex<Option<(Instant, SocketAddr)>>,
    counters: Arc<DatagramCounters>,
    stop: CancellationToken,
}

/// A socket at the exit: that of an association, or that of its queries to the exit's resolver. Were they the same, answers of
/// the resolver could be those of the nameserver that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SocketId {
    association: u32,
    asks_resolver: bool,
}

struct Association {
    socket: UdpSocket,
    is_ipv6: bool,
    admission: Admission,
    state: Mutex<State>,
    _counted: CountedAssociation,
    stop: CancellationToken,
}

struct State {
    last_datagram: Instant,
    remotes: HashSet<IpAddr>,
    names: HashMap<Destination, (Instant, SocketAddr)>,
    has_answer: bool,
}

impl Associations {
    pub(super) fn new(
        exit: Arc<Exit>,
        client: ClientId,
        session: Weak<Session>,
        counters: Arc<DatagramCounters>,
    ) -> Associations {
        Associations {
            exit,
            client,
            session,
            by_id: Arc::default(),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            resolver: Mutex::default(),
            counters,
            stop: CancellationToken::new(),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.cancel();
        lock(&self.by_id).clear();
    }

    pub(super) fn close(&self, id: u32) {
        let mut by_id = lock(&self.by_id);
        for asks_resolver in [false, true] {
            if let Some(association) = by_id.remove(&SocketId { association: id, asks_resolver }) {
                association.stop.cancel();
            }
        }
    }

    /// Sends a datagram of the client to a destination.
    pub(super) fn send(&self, id: u32, destination: Destination, payload: &[u8]) {
        let asks_resolver = destination == Destination::Resolver;
        let association = match self.get_or_open(SocketId { association: id, asks_resolver }) {
            Ok(association) => association,
            Err(failure) => return self.refuse(id, failure, destination),
        };
        match &destination {
            Destination::Host(Host::Address(ip), port) => {
                let address = SocketAddr::new(*ip, port.get());
                match self.exit.permitted(self.client, vec![address]) {
                    Ok(_) => association.send(address, payload),
                    Err(failure) => self.refuse(id, failure, destination),
                }
            }
            Destination::Host(Host::Name(_), _) => self.send_to_name(id, association, destination, payload),
            Destination::Resolver => association.send(self.resolver(), payload),
            // A message has neither.
            Destination::Datagrams | Destination::Admission(_) => {}
        }
    }

    /// The first nameserver of this host, by its configuration of now or of some seconds ago.
    fn resolver(&self) -> SocketAddr {
        let mut cached = lock(&self.resolver);
        match *cached {
            Some((since, resolver)) if since.elapsed() < RESOLVER_MAX_AGE => resolver,
            _ => {
                let resolver = nameservers()[0];
                *cached = Some((Instant::now(), resolver));
                resolver
            }
        }
    }

    /// Resolves a name, unless that was done lately.
    fn send_to_name(&self, id: u32, association: Arc<Association>, destination: Destination, payload: &[u8]) {
        let known = lock(&association.state).names.get(&destination).copied();
        if let Some((since, address)) = known
            && since.elapsed() < NAME_MAX_AGE
        {
            return association.send(address, payload);
        }
        let Ok(place) = Arc::clone(&self.lookups).try_acquire_owned() else {
            return trace!("{destination}: too many names to resolve at once");
        };
        let (exit, client, session) = (Arc::clone(&self.exit), self.client, Weak::clone(&self.session));
        let (payload, stop) = (payload.to_vec(), association.stop.clone());
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            let _place = place;
            let found = exit.addresses(&destination, client).await;
            match found.map(|addresses| association.reachable(&addresses)) {
                Ok(Some(address)) => {
                    lock(&association.state).remember(destination, address);
                    association.send(address, &payload);
                }
                Ok(None) => refuse(&session, id, ConnectFailure::NetworkUnreachable, destination),
                Err(failure) => refuse(&session, id, failure, destination),
            }
        }));
    }

    fn refuse(&self, id: u32, failure: ConnectFailure, destination: Destination) {
        refuse(&self.session, id, failure, destination);
    }

    fn get_or_open(&self, id: SocketId) -> Result<Arc<Association>, ConnectFailure> {
        let mut by_id = lock(&self.by_id);
        if let Some(association) = by_id.get(&id) {
            return Ok(Arc::clone(association));
        }
        if by_id.len() >= MAX_ASSOCIATIONS || self.stop.is_cancelled() {
            return Err(ConnectFailure::Limit);
        }
        let admission = self.exit.admit(self.client)?;
        let association = Association::open(admission, self.counters.association(), self.stop.child_token())
            .map_err(|error| {
                debug!("cannot open a socket for datagrams: {error}");
                ConnectFailure::Failed
            })?;
        let association = Arc::new(association);
        by_id.insert(id, Arc::clone(&association));
        let (session, all) = (Weak::clone(&self.session), Arc::downgrade(&self.by_id));
        let stop = association.stop.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            association.receive_until_idle(id, &session).await;
            if let Some(all) = all.upgrade() {
                let mut all = lock(&all);
                if all.get(&id).is_some_and(|other| Arc::ptr_eq(other, &association)) {
                    all.remove(&id);
                }
            }
        }));
        Ok(Arc::clone(by_id.get(&id).ok_or(ConnectFailure::Failed)?))
    }
}

impl Association {
    fn open(
        admission: Admission,
        counted: CountedAssociation,
        stop: CancellationToken,
    ) -> io::Result<Association> {
        // A host without IPv6 has no such socket.
        let (socket, is_ipv6) = match socket(Ipv6Addr::UNSPECIFIED.into()) {
            Ok(socket) => (socket, true),
            Err(_) => (socket(Ipv4Addr::UNSPECIFIED.into())?, false),
        };
        let state = State {
            last_datagram: Instant::now(),
            remotes: HashSet::new(),
            names: HashMap::new(),
            has_answer: false,
        };
        Ok(Association { socket, is_ipv6, admission, state: Mutex::new(state), _counted: counted, stop })
    }

    /// The first of a name's addresses that this host's sockets can have.
    fn reachable(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        addresses.iter().copied().find(|address| self.is_ipv6 || address.is_ipv4())
    }

    fn send(&self, to: SocketAddr, payload: &[u8]) {
        let to = canonical(to);
        if !self.admission.meter().admit(payload.len()) {
            return trace!("{to}: the rate or the bytes of the client are used up");
        }
        let mut state = lock(&self.state);
        state.last_datagram = Instant::now();
        if state.remotes.len() >= MAX_REMOTES && !state.remotes.contains(&to.ip()) {
            state.remotes.clear();
        }
        state.remotes.insert(to.ip());
        drop(state);
        let native = match to.ip() {
            IpAddr::V4(ip) if self.is_ipv6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        // Not by the runtime, which does not know yet that a new socket can send, so that the first datagram would be lost.
        if let Err(error) = SockRef::from(&self.socket).send_to(payload, &native.into()) {
            trace!("{to}: {error}");
        }
    }

    /// Passes on what permitted hosts send, until nothing is sent in either direction for the time that RFC 4787 asks for.
    async fn receive_until_idle(&self, id: SocketId, session: &Weak<Session>) {
        loop {
            let deadline = lock(&self.state).deadline();
            match timeout_at(deadline.into(), self.socket.readable()).await {
                Ok(Ok(())) => self.receive(id, session),
                Ok(Err(error)) => {
                    trace!("{error}");
                    sleep(Duration::from_millis(1)).await;
                }
                Err(_) if lock(&self.state).deadline() <= Instant::now() => return,
                Err(_) => {}
            }
        }
    }

    /// Receives what waits, as far as other tasks can wait.
    fn receive(&self, id: SocketId, session: &Weak<Session>) {
        BUFFER.with_borrow_mut(|bytes| {
            bytes.resize(usize::from(u16::MAX), 0);
            for _ in 0..MAX_BATCH {
                match self.socket.try_recv_from(bytes) {
                    Ok((length, from)) => self.received(id, session, canonical(from), &bytes[..length]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    // Such as one that an ICMP message has caused.
                    Err(error) => trace!("{error}"),
                }
            }
        });
    }

    fn received(&self, id: SocketId, session: &Weak<Session>, from: SocketAddr, payload: &[u8]) {
        let mut state = lock(&self.state);
        if !state.remotes.contains(&from.ip()) || !self.admission.meter().admit(payload.len()) {
            return;
        }
        (state.has_answer, state.last_datagram) = (true, Instant::now());
        let destination = match NonZeroU16::new(from.port()) {
            Some(_) if id.asks_resolver => Destination::Resolver,
            Some(port) => Destination::Host(Host::Address(from.ip()), port),
            None => return,
        };
        drop(state);
        if let Some(session) = session.upgrade() {
            session.deliver(id.association, destination, payload);
        }
    }
}

impl State {
    /// Remembers the address of a name.
    fn remember(&mut self, name: Destination, address: SocketAddr) {
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        self.names.insert(name, (Instant::now(), address));
    }

    /// When it is no longer kept.
    fn deadline(&self) -> Instant {
        self.last_datagram + if self.has_answer { ESTABLISHED_TIMEOUT } else { UNANSWERED_TIMEOUT }
    }
}

fn refuse(session: &Weak<Session>, id: u32, failure: ConnectFailure, destination: Destination) {
    if let Some(session) = session.upgrade() {
        trace!("datagrams to {destination}: {failure}");
        session.refuse(id, failure, destination);
    }
}

/// A socket of any port, for both families if this one is IPv6.
fn socket(address: IpAddr) -> io::Result<UdpSocket> {
    let address = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
