//! Answers the DNS queries of redirected programs by an exit's resolver: queries arrive as datagrams on loopback, and share one
//! connection to the exit (RFC 7766).

mod message;

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::exit_url::ExitUrl;
use super::open::Outbound;
use super::redirect::Listeners;
use super::route::Route;
use message::{frame, split_frame};

pub(super) use message::{Asker, Query};

/// Queries that wait for the exit; further ones are dropped, as a network may do. Programs repeat them.
const MAX_WAITING: usize = 1024;

/// Queries that were sent and not answered. Beyond that the oldest ones may be forgotten.
const MAX_SENT: usize = 4096;

/// The connection ends when nothing was asked for this long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Longer than programs wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The sockets that queries are redirected to.
#[derive(Clone)]
pub(super) struct DnsSockets {
    v4: Option<Arc<UdpSocket>>,
    v6: Option<Arc<UdpSocket>>,
}

impl DnsSockets {
    pub(super) async fn bind() -> DnsSockets {
        let v4 = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.ok().map(Arc::new);
        let v6 = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).await.ok().map(Arc::new);
        DnsSockets { v4, v6 }
    }

    pub(super) fn listeners(&self) -> Listeners {
        let port = |socket: &Option<Arc<UdpSocket>>| Some(socket.as_ref()?.local_addr().ok()?.port());
        Listeners { v4: port(&self.v4), v6: port(&self.v6) }
    }

    /// `None` if connections do not go to an exit.
    pub(super) fn forwarder(&self, route: &Route) -> Option<DnsForwarder> {
        let Route::Exit(exit) = route else { return None };
        Some(DnsForwarder { exit: exit.clone(), sockets: self.clone() })
    }
}

/// Answers the queries that arrive at the sockets.
pub(super) struct DnsForwarder {
    exit: ExitUrl,
    sockets: DnsSockets,
}

impl DnsForwarder {
    /// `None` if connections do not go to an exit.
    pub(super) async fn of(route: &Route) -> Option<DnsForwarder> {
        match route {
            Route::Direct => None,
            Route::Exit(_) => DnsSockets::bind().await.forwarder(route),
        }
    }

    pub(super) fn listeners(&self) -> Listeners {
        self.sockets.listeners()
    }

    /// Answers until the gateway stops.
    pub(super) fn spawn(self, outbound: &Arc<Outbound>) {
        let queries = answer_queries(outbound, self.exit);
        for socket in self.sockets.v4.into_iter().chain(self.sockets.v6) {
            outbound.gateway().spawn_until_stopped(receive(socket, queries.clone()));
        }
    }
}

/// Answers the queries that are sent to this channel by the exit's resolver, until the gateway stops.
pub(super) fn answer_queries(outbound: &Arc<Outbound>, exit: ExitUrl) -> mpsc::Sender<Query> {
    let (sender, queries) = mpsc::channel(MAX_WAITING);
    outbound.gateway().spawn_until_stopped(forward(Arc::clone(outbound), exit, queries));
    sender
}

/// Receives queries.
async fn receive(socket: Arc<UdpSocket>, queries: mpsc::Sender<Query>) {
    let mut bytes = vec![0; usize::from(u16::MAX)];
    loop {
        let received = match socket.recv_from(&mut bytes).await {
            Ok((length, from)) => Query::read(&bytes[..length], Asker::Program(Arc::clone(&socket), from)),
            Err(error) => {
                // Such as an ICMP error for an answer that nobody waited for.
                debug!("DNS: {error}");
                sleep(Duration::from_millis(1)).await;
                None
            }
        };
        if let Some(query) = received
            && let Err(mpsc::error::TrySendError::Closed(_)) = queries.try_send(query)
        {
            return;
        }
    }
}

/// Opens a connection whenever there is something to ask.
async fn forward(outbound: Arc<Outbound>, exit: ExitUrl, mut queries: mpsc::Receiver<Query>) {
    let mut unanswered = Vec::new();
    loop {
        if unanswered.is_empty() {
            let Some(query) = queries.recv().await else { return };
            unanswered.push(query);
        }
        let Some(stream) = connect(&outbound, &exit).await else {
            for query in unanswered.drain(..) {
                query.fail().await;
            }
            continue;
        };
        let mut session = Session::new(stream);
        session.run(std::mem::take(&mut unanswered), &mut queries).await;
        // A resolver may end the connection at any time. Programs repeat what is asked in vain a second time.
        unanswered.extend(session.sent.into_values().filter_map(Query::retried));
    }
}

async fn connect(outbound: &Arc<Outbound>, exit: &ExitUrl) -> Option<TcpStream> {
    let opened = outbound.open_resolver(exit).await;
    opened.inspect_err(|error| warn!("cannot resolve names by the exit: {error}")).ok()
}

/// A connection to the resolver.
struct Session {
    stream: TcpStream,
    /// The start of an answer.
    received: Vec<u8>,
    /// By the id under which they were sent.
    sent: HashMap<u16, Query>,
    next_id: u16,
    last_answer: Instant,
}

impl Session {
    fn new(stream: TcpStream) -> Session {
        let last_answer = Instant::now();
        Session { stream, received: Vec::new(), sent: HashMap::new(), next_id: 0, last_answer }
    }

    /// Asks until the connection ends.
    async fn run(&mut self, first: Vec<Query>, queries: &mut mpsc::Receiver<Query>) {
        for query in first {
            if self.ask(query).await.is_none() {
                return;
            }
        }
        loop {
            tokio::select! {
                read = self.stream.read_buf(&mut self.received) => {
                    if !read.is_ok_and(|length| length > 0) || self.answer().await.is_none() {
                        return;
                    }
                }
                query = queries.recv() => {
                    let Some(query) = query else { return };
                    if self.ask(query).await.is_none() {
                        return;
                    }
                }
                () = sleep(IDLE_TIMEOUT) => return,
            }
        }
    }

    /// `None` if the connection has ended, or is silent.
    async fn ask(&mut self, query: Query) -> Option<()> {
        let is_late = |query: &Query| query.since.elapsed() > ANSWER_TIMEOUT;
        if self.last_answer.elapsed() > ANSWER_TIMEOUT && self.sent.values().any(is_late) {
            return None;
        }
        if self.sent.len() >= MAX_SENT {
            self.sent.retain(|_, query| !is_late(query));
        }
        if self.sent.len() >= MAX_SENT {
            return Some(());
        }
        while self.sent.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let bytes = frame(&query.with_id(self.next_id));
        self.sent.insert(self.next_id, query);
        self.next_id = self.next_id.wrapping_add(1);
        timeout(ANSWER_TIMEOUT, self.stream.write_all(&bytes)).await.ok()?.ok()
    }

    /// Passes on the answers that have arrived; `None` if the resolver does not speak DNS.
    async fn answer(&mut self) -> Option<()> {
        while let Some((message, consumed)) = split_frame(&self.received) {
            let id = message.first_chunk().map(|id| u16::from_be_bytes(*id))?;
            if let Some(query) = self.sent.remove(&id) {
                query.answer(message).await;
                self.last_answer = Instant::now();
            }
            self.received.drain(..consumed);
        }
        Some(())
    }
}
