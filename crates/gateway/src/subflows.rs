//! Trusted path first: a connection's further subflows are made here, and not before its first flight has arrived.
//!
//! While a connection has one subflow the kernel has nowhere else to send. So a connection starts with one, on the
//! trusted path, with its path manager in user space; once the first flight ([`FirstFlight`]) is DATA_ACKed, one subflow
//! per further interface is made. From then on [`Watch::tend`] compares what is there with what should be, whenever the
//! kernel reports a change and every few seconds, so that a lost subflow is made again and a new interface is used.
//!
//! The connections are those of a gateway, or those that the kernel module protects ([`crate::kmod`]).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::interfaces::{self, Interface};
use plait_linux::mptcp::{FullInfo, Info, Token};
use plait_linux::pm::{Event, Events, Local, PathManager};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::debug;

use crate::connections::Connection;
use crate::establish::FirstFlight;
use crate::roles::Roles;

/// A peer that says nothing gets further subflows without its own first flight when we have this many bytes for it, looked
/// at this often. Who merely waits for an answer has no use for them.
pub(crate) const UPLOAD: u64 = 256 << 10;
pub(crate) const UPLOAD_LOOK: Duration = Duration::from_secs(1);

/// Between two looks at whether the first flight was acknowledged: at first, and at most.
pub(crate) const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Before a subflow that failed or was lost is made again: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Interfaces are compared with subflows at least this often.
const TICK: Duration = Duration::from_secs(5);

/// A connection without a path for this long has ended. The kernel says so too (`net.mptcp.close_timeout`), but every
/// attempt to make a subflow begins its time anew, also if the peer has long forgotten the connection and resets it.
const PATHLESS: Duration = Duration::from_secs(60);

/// A list of interfaces serves all connections for this long.
const INTERFACES_FRESH: Duration = Duration::from_millis(200);

/// Events wait this long for the connection they belong to: the kernel is faster than connect()'s return.
const UNCLAIMED_KEPT: Duration = Duration::from_secs(10);

/// Announced addresses kept per connection; a hostile peer may announce without end.
const MAX_ANNOUNCED: usize = 16;

/// News kept per connection until it is read.
const MAX_NEWS: usize = 64;

/// What the kernel reports of one connection.
#[derive(Clone, Copy, Debug)]
enum News {
    Announced { id: u8, address: SocketAddr },
    Withdrawn { id: u8 },
    Changed,
}

/// A subflow: its address here and how it is.
pub(crate) type Path = (IpAddr, State);

/// Makes the further subflows of connections.
pub(crate) struct Subflows {
    roles: Roles,
    manager: PathManager,
    desk: Mutex<Desk>,
    interfaces: Mutex<Option<(Instant, Arc<[Interface]>)>>,
}

impl Subflows {
    /// Listens to the kernel's path-manager events in a task of its own, which ends with the last user of this value.
    pub(crate) fn start(roles: Roles) -> io::Result<Arc<Subflows>> {
        let manager = PathManager::open().map_err(io::Error::other)?;
        let events = Events::open().map_err(io::Error::other)?;
        let wakeups = wakeups(&events)?;
        let subflows =
            Arc::new(Subflows { roles, manager, desk: Mutex::default(), interfaces: Mutex::default() });
        let listening = Arc::downgrade(&subflows);
        tokio::spawn(async move {
            let deliver = |event| listening.upgrade().map(|subflows| subflows.desk().deliver(event));
            if let Err(error) = listen(events, wakeups, deliver).await {
                tracing::warn!("no more news of paths: lost subflows are noticed late: {error}");
            }
        });
        Ok(subflows)
    }

    fn desk(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to listen to what is told of one connection's paths.
    pub(crate) fn watch(&self, token: Token, peer: SocketAddr) -> Watch<'_> {
        let plan = Plan::new(peer);
        let news = self.desk().subscribe(token);
        Watch { token, news, plan, last_path: Instant::now(), subflows: self }
    }

    /// The interfaces that connections may use now.
    pub(crate) fn usable(&self) -> Vec<Interface> {
        let Ok(interfaces) = self.interfaces() else { return Vec::new() };
        let usable = interfaces.iter().filter(|interface| interface.up && !interface.loopback);
        usable.filter(|interface| self.roles.of(&interface.name).is_some()).cloned().collect()
    }

    /// The interfaces that were named and that connections cannot use now.
    pub(crate) fn absent(&self) -> Vec<String> {
        let usable = self.usable();
        let is_absent = |name: &&str| usable.iter().all(|interface| interface.name != **name);
        self.roles.names().filter(is_absent).map(str::to_owned).collect()
    }

    /// The interface that a connection leaves by, by its address here.
    pub(crate) fn interface_of(&self, far: &TcpStream) -> Option<String> {
        let local = far.local_addr().ok()?.ip().to_canonical();
        let interfaces = self.interfaces().ok()?;
        let has_it = |interface: &&Interface| interface.addresses.iter().any(|address| address.ip == local);
        interfaces.iter().find(has_it).map(|interface| interface.name.clone())
    }

    /// How many paths connections are to use: those of interfaces that were named, there or not, and of usable ones.
    pub(crate) fn configured(&self) -> usize {
        let usable = self.usable();
        let unnamed =
            usable.iter().filter(|interface| !self.roles.names().any(|name| name == interface.name));
        self.roles.names().count() + unnamed.count()
    }

    fn interfaces(&self) -> io::Result<Arc<[Interface]>> {
        let mut kept = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((since, list)) if since.elapsed() < INTERFACES_FRESH => Ok(Arc::clone(list)),
            _ => {
                let list: Arc<[Interface]> = interfaces::interfaces().map_err(io::Error::other)?.into();
                *kept = Some((Instant::now(), Arc::clone(&list)));
                Ok(list)
            }
        }
    }
}

/// What is told of one connection's paths.
pub(crate) struct Watch<'a> {
    token: Token,
    news: mpsc::Receiver<News>,
    plan: Plan,
    /// When the connection was last seen to have a subflow.
    last_path: Instant,
    subflows: &'a Subflows,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.subflows.desk().readers.remove(&self.token);
    }
}

impl Watch<'_> {
    /// Looks after the connection's subflows from the end of its first flight on, for as long as it is polled, or until it
    /// has been without any for too long, which is the error. `paths` says what subflows it has.
    pub(crate) async fn tend(
        mut self,
        first_flight: impl Future<Output = ()>,
        paths: impl Fn() -> io::Result<Vec<Path>>,
    ) -> io::Error {
        first_flight.await;
        self.last_path = Instant::now();
        loop {
            self.take_news();
            if let Ok(paths) = paths() {
                self.reconcile(&paths);
            } else {
                self.last_path = Instant::now();
            }
            if self.last_path.elapsed() > PATHLESS {
                let why = format!("no path for {} s", PATHLESS.as_secs());
                return io::Error::new(io::ErrorKind::TimedOut, why);
            }
            let next = self.plan.next_retry();
            let wait = next.map_or(TICK, |due| due.saturating_duration_since(Instant::now()).min(TICK));
            if let Ok(Some(news)) = tokio::time::timeout(wait, self.news.recv()).await {
                self.plan.hear(news);
            }
        }
    }

    fn take_news(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            self.plan.hear(news);
        }
    }

    /// Makes a subflow by every interface with a role that has none.
    fn reconcile(&mut self, paths: &[Path]) {
        if paths.iter().any(|(_, state)| !matches!(state, State::SynSent | State::Closed)) {
            self.last_path = Instant::now();
        }
        let is_live = |ip: IpAddr| paths.iter().any(|(local, _)| *local == ip);
        for interface in &self.subflows.usable() {
            if interface.addresses.iter().any(|address| is_live(address.ip)) {
                self.plan.is_live(interface.index);
            } else if self.plan.is_due(interface.index) {
                self.make(interface);
            }
        }
    }

    fn make(&mut self, interface: &Interface) {
        let Some((remote_id, remote, source)) =
            self.plan.choose(interface, |remote| source_by(interface, remote))
        else {
            return;
        };
        let id = self.plan.attempt(interface.index);
        let local = Local { address: source, id, if_index: interface.index, backup: false };
        match self.subflows.manager.subflow_create(self.token, &local, remote, remote_id) {
            Ok(()) => debug!("subflow by {} from {source} to {remote}", interface.name),
            Err(error) => debug!("no subflow by {} to {remote}: {error}", interface.name),
        }
    }
}

/// Ends once a gateway's connection may have further subflows.
pub(crate) async fn first_flight(connection: &Connection, first: FirstFlight) {
    match first {
        FirstFlight::OfBothEnds => {
            connection.progress.first_sent.notified().await;
            acknowledged(connection).await;
            answered(connection).await;
        }
        FirstFlight::Told => acknowledged(connection).await,
    }
}

/// The subflows of a gateway's connection.
pub(crate) fn paths(connection: &Connection) -> io::Result<Vec<Path>> {
    let subflows = FullInfo::of(&connection.far)?.subflows;
    Ok(subflows.iter().map(|subflow| (subflow.local.ip().to_canonical(), subflow.tcp.state)).collect())
}

/// Ends once what was sent until now is DATA_ACKed.
async fn acknowledged(connection: &Connection) {
    let Ok(sent) = Info::of(&connection.far) else { return };
    let mut look = LOOK.0;
    // What is sent in the meantime leaves by the only subflow too, so the mark need not move with it.
    while Info::of(&connection.far).is_ok_and(|now| now.snd_una < sent.write_seq) {
        tokio::time::sleep(look).await;
        look = (look * 2).min(LOOK.1);
    }
}

/// Ends once the peer has begun to answer, or listens to an upload in silence.
async fn answered(connection: &Connection) {
    let uploading = async {
        tokio::time::sleep(UPLOAD_LOOK).await;
        while connection.progress.sent() < UPLOAD {
            tokio::time::sleep(UPLOAD_LOOK).await;
        }
    };
    tokio::select! {
        () = connection.progress.first_received.notified() => {}
        () = uploading => {}
    }
}

/// Our address for packets that leave for `remote` by an interface, if it leads there.
pub(crate) fn source_by(interface: &Interface, remote: IpAddr) -> Option<IpAddr> {
    interfaces::route_via(remote, interface.index).ok().flatten()
}

/// What is known of a connection's possible subflows.
struct Plan {
    initial: SocketAddr,
    announced: Vec<(u8, SocketAddr)>,
    attempts: HashMap<u32, Attempts>,
}

/// The attempts to make a subflow by one interface.
struct Attempts {
    /// The interface's address identifier in this connection.
    id: u8,
    pause: Duration,
    due: Instant,
}

impl Plan {
    fn new(initial: SocketAddr) -> Plan {
        let initial = SocketAddr::new(initial.ip().to_canonical(), initial.port());
        Plan { initial, announced: Vec::new(), attempts: HashMap::new() }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Announced { id, address } => {
                self.announced.retain(|(known, _)| *known != id);
                if self.announced.len() < MAX_ANNOUNCED {
                    let port = if address.port() == 0 { self.initial.port() } else { address.port() };
                    self.announced.push((id, SocketAddr::new(address.ip().to_canonical(), port)));
                    self.try_again();
                }
            }
            News::Withdrawn { id } => self.announced.retain(|(known, _)| *known != id),
            News::Changed => {}
        }
    }

    /// The peer's address for a subflow by this interface, and our source address for it: an announced one of the
    /// interface's own network, else the one the connection began with, else any announced one that routing reaches.
    fn choose(
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

    /// An address to try is news for interfaces whose attempt failed, but for those that failed again and again: the
    /// peer shall not make us try without end.
    fn try_again(&mut self) {
        for attempts in self.attempts.values_mut().filter(|attempts| attempts.pause < RETRY.1) {
            attempts.due = Instant::now();
        }
    }

    fn is_live(&mut self, interface: u32) {
        if let Some(attempts) = self.attempts.get_mut(&interface) {
            attempts.pause = RETRY.0;
        }
    }

    fn is_due(&self, interface: u32) -> bool {
        self.attempts.get(&interface).is_none_or(|attempts| attempts.due <= Instant::now())
    }

    fn next_retry(&self) -> Option<Instant> {
        self.attempts.values().map(|attempts| attempts.due).filter(|due| *due > Instant::now()).min()
    }

    /// Notes an attempt and gives the interface's address identifier.
    fn attempt(&mut self, interface: u32) -> u8 {
        let next_id = u8::try_from(self.attempts.len() + 1).unwrap_or(u8::MAX);
        let attempts = self.attempts.entry(interface).or_insert(Attempts {
            id: next_id,
            pause: RETRY.0,
            due: Instant::now(),
        });
        attempts.due = Instant::now() + attempts.pause;
        attempts.pause = (attempts.pause * 2).min(RETRY.1);
        attempts.id
    }
}

/// Hands news to connections by token.
#[derive(Default)]
struct Desk {
    readers: HashMap<Token, mpsc::Sender<News>>,
    unclaimed: HashMap<Token, (Instant, Vec<News>)>,
}

impl Desk {
    fn subscribe(&mut self, token: Token) -> mpsc::Receiver<News> {
        let (sender, receiver) = mpsc::channel(MAX_NEWS);
        for news in self.unclaimed.remove(&token).map(|(_, news)| news).unwrap_or_default() {
            // As many as are kept fit.
            let _ = sender.try_send(news);
        }
        self.readers.insert(token, sender);
        receiver
    }

    fn deliver(&mut self, event: Event) {
        let (token, news) = match event {
            Event::Announced { token, remote_id, address } => {
                (token, News::Announced { id: remote_id, address })
            }
            Event::Removed { token, remote_id } => (token, News::Withdrawn { id: remote_id }),
            Event::SubflowClosed(subflow) => (subflow.token, News::Changed),
            Event::Lost => {
                for reader in self.readers.values() {
                    let _ = reader.try_send(News::Changed);
                }
                return;
            }
            _ => return,
        };
        if let Some(reader) = self.readers.get(&token) {
            // A reader with this much unread looks for itself at its next tick.
            let _ = reader.try_send(news);
            return;
        }
        self.unclaimed.retain(|_, (since, _)| since.elapsed() < UNCLAIMED_KEPT);
        let (_, kept) = self.unclaimed.entry(token).or_insert((Instant::now(), Vec::new()));
        if kept.len() < MAX_NEWS {
            kept.push(news);
        }
    }
}

/// Tells when there may be something to read.
pub(crate) fn wakeups(source: impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = source.as_fd().try_clone_to_owned()?;
    // SAFETY: the descriptor is owned by the result, which never replaces or closes it while it lives.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }?)
}

/// Reads events until nobody wants them any more.
async fn listen(
    mut events: Events,
    wakeups: AsyncFd<OwnedFd>,
    deliver: impl Fn(Event) -> Option<()>,
) -> io::Result<()> {
    loop {
        let mut ready = wakeups.readable().await?;
        while let Some(event) = events.try_next()? {
            if deliver(event).is_none() {
                return Ok(());
            }
        }
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_address_is_tried_at_once_but_not_without_end() {
        let mut plan = Plan::new("192.0.2.1:443".parse().expect("an address"));
        let announced = News::Announced { id: 1, address: "198.51.100.1:443".parse().expect("an address") };
        let mut attempts = 0;
        for _ in 0..100 {
            plan.hear(announced);
            if plan.is_due(7) {
                plan.attempt(7);
                attempts += 1;
            }
            assert!(!plan.is_due(7), "a pause follows every attempt");
        }
        // Pauses of 2, 4, 8, 16, 32 and 60 s.
        assert_eq!(attempts, 5);
    }
}
