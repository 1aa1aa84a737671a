//! Datagrams of hosts behind an interface: DNS queries, which the exit's resolver answers whichever one was asked, and all others,
//! which go through the exit.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plait_linux::packet_info;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::lan_sender::LanSender;
use crate::outbound::datagrams::{Answers, Outgoing, Senders};
use crate::outbound::dns::{Asker, Query};
use crate::outbound::open::Outbound;
use crate::resolver::DNS_PORT;

/// Datagrams that are received at once.
const MAX_BATCH: usize = 64;

/// Associations at once, and those of one host.
const MAX_ASSOCIATIONS: usize = 4096;
const MAX_ASSOCIATIONS_PER_HOST: usize = 256;

/// A host that waits for an answer of the resolver that it asked.
pub(in crate::outbound) struct LanAsker {
    sender: Arc<LanSender>,
    host: SocketAddr,
    resolver: SocketAddr,
    if_index: u32,
}

impl LanAsker {
    /// Sends the answer in the name of the resolver. Without it, the host asks again.
    pub(in crate::outbound) fn send(&self, answer: &[u8]) {
        if let Err(error) = self.sender.send_datagram(self.resolver, self.host, answer, self.if_index) {
            debug!("{}: cannot answer its query: {error}", self.host);
        }
    }
}

/// The datagrams of all hosts.
pub(super) struct LanDatagrams {
    sender: Arc<LanSender>,
    queries: mpsc::Sender<Query>,
    senders: Arc<Senders<LanAnswers>>,
}

/// Sends hosts what has arrived, in the name of the destinations.
struct LanAnswers(Arc<LanSender>);

impl Answers for LanAnswers {
    /// The interface that the host is behind.
    type Way = u32;

    fn answer(&self, from: SocketAddr, to: SocketAddr, payload: &[u8], if_index: u32) {
        // Both ends of a packet are of one version of IP.
        if let Err(error) = self.0.send_datagram(from, to, payload, if_index) {
            debug!("{to}: cannot send it a datagram of {from}: {error}");
        }
    }
}

impl LanDatagrams {
    /// `stop` ends all associations.
    pub(super) fn new(
        outbound: &Arc<Outbound>,
        sender: Arc<LanSender>,
        queries: mpsc::Sender<Query>,
        stop: CancellationToken,
    ) -> Arc<LanDatagrams> {
        let answers = LanAnswers(Arc::clone(&sender));
        let limits = (MAX_ASSOCIATIONS, MAX_ASSOCIATIONS_PER_HOST);
        let senders = Senders::new(outbound, answers, limits, stop);
        Arc::new(LanDatagrams { sender, queries, senders })
    }

    /// Receives what the hosts send.
    pub(super) async fn receive(self: Arc<Self>, socket: UdpSocket) {
        let own = socket.local_addr().ok();
        let mut bytes = vec![0; usize::from(u16::MAX)];
        loop {
            let received = socket.async_io(Interest::READABLE, || {
                for _ in 0..MAX_BATCH {
                    let received = packet_info::receive(&socket, &mut bytes)?;
                    // A program of this host may have sent something to the socket itself.
                    if Some(received.to) != own {
                        self.received(&received, &bytes[..received.length]);
                    }
                }
                Ok::<_, io::Error>(())
            });
            if let Err(error) = received.await {
                debug!("datagrams of hosts: {error}");
                sleep(Duration::from_millis(1)).await;
            }
            tokio::task::yield_now().await;
        }
    }

    fn received(&self, received: &packet_info::Received, payload: &[u8]) {
        let packet_info::Received { from, to, if_index, .. } = *received;
        // Without the zone of an address.
        let (from, to) = (SocketAddr::new(from.ip(), from.port()), SocketAddr::new(to.ip(), to.port()));
        if to.port() != DNS_PORT {
            return self.senders.send(from, Outgoing { to, payload: payload.to_vec(), way: if_index });
        }
        let asker = LanAsker { sender: Arc::clone(&self.sender), host: from, resolver: to, if_index };
        if let Some(query) = Query::read(payload, Asker::LanHost(asker)) {
            // Dropped if too many wait, as a network may do.
            let _ = self.queries.try_send(query);
        }
    }
}
