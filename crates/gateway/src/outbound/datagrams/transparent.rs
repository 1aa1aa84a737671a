//! Datagrams that others than this process sent to others than this host, by transparent sockets (`IP_TRANSPARENT`): DNS queries,
//! which the exit's resolver answers whichever one was asked, and all others, which go through the exit.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket as StdUdpSocket};
use std::sync::Arc;
use std::time::Duration;

use plait_linux::packet_info;
use socket2::{Protocol, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{Answers, Outgoing, Senders};
use crate::datagrams::SOCKET_BUFFER;
use crate::outbound::dns::{Asker, Query};
use crate::outbound::open::Outbound;
use crate::outbound::reply_sender::ReplySender;
use crate::resolver::DNS_PORT;
use crate::socket::transparent_socket;

/// Datagrams that are received at once.
const MAX_BATCH: usize = 64;

/// Associations at once, and those of one host behind an interface.
const MAX_ASSOCIATIONS: usize = 4096;
const MAX_ASSOCIATIONS_PER_HOST: usize = 256;

/// Whose datagrams they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::outbound) enum Clients {
    /// Of hosts behind interfaces.
    Hosts,
    /// Of programs of this host.
    Programs,
}

/// A socket for the datagrams of one address family, which the kernel has to be told to deliver to it.
pub(in crate::outbound) fn bind_transparent(loopback: IpAddr) -> io::Result<StdUdpSocket> {
    let socket = transparent_socket(loopback, Type::DGRAM, Protocol::UDP)?;
    packet_info::enable(&socket, loopback.is_ipv4())?;
    // Less also works.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    Ok(socket.into())
}

/// Who waits for an answer of the resolver that it asked.
pub(in crate::outbound) struct TransparentAsker {
    sender: Arc<ReplySender>,
    client: SocketAddr,
    resolver: SocketAddr,
    if_index: u32,
}

impl TransparentAsker {
    /// Sends the answer in the name of the resolver. Without it, the client asks again.
    pub(in crate::outbound) fn send(&self, answer: &[u8]) {
        if let Err(error) = self.sender.send_datagram(self.resolver, self.client, answer, self.if_index) {
            debug!("{}: cannot answer its query: {error}", self.client);
        }
    }
}

/// The datagrams of all clients.
pub(in crate::outbound) struct TransparentDatagrams {
    clients: Clients,
    sender: Arc<ReplySender>,
    queries: mpsc::Sender<Query>,
    senders: Arc<Senders<Replies>>,
}

/// Sends clients what has arrived, in the name of the destinations.
struct Replies(Arc<ReplySender>);

impl Answers for Replies {
    /// The index of the interface that the client is behind; 0: it is on this host.
    type Way = u32;

    fn answer(&self, from: SocketAddr, to: SocketAddr, payload: &[u8], if_index: u32) {
        // Both ends of a packet are of one version of IP.
        if let Err(error) = self.0.send_datagram(from, to, payload, if_index) {
            debug!("{to}: cannot send it a datagram of {from}: {error}");
        }
    }
}

impl TransparentDatagrams {
    /// `stop` ends all associations.
    pub(in crate::outbound) fn new(
        outbound: &Arc<Outbound>,
        clients: Clients,
        sender: Arc<ReplySender>,
        queries: mpsc::Sender<Query>,
        stop: CancellationToken,
    ) -> Arc<TransparentDatagrams> {
        let answers = Replies(Arc::clone(&sender));
        let max_per_host = match clients {
            Clients::Hosts => MAX_ASSOCIATIONS_PER_HOST,
            Clients::Programs => MAX_ASSOCIATIONS,
        };
        let limits = (MAX_ASSOCIATIONS, max_per_host);
        let senders = Senders::new(outbound, answers, limits, stop);
        Arc::new(TransparentDatagrams { clients, sender, queries, senders })
    }

    /// Receives what the clients send.
    pub(in crate::outbound) async fn receive(self: Arc<Self>, socket: UdpSocket) {
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
                debug!("datagrams to others: {error}");
                sleep(Duration::from_millis(1)).await;
            }
            tokio::task::yield_now().await;
        }
    }

    fn received(&self, received: &packet_info::Received, payload: &[u8]) {
        let packet_info::Received { from, to, .. } = *received;
        let if_index = match self.clients {
            Clients::Hosts => received.if_index,
            // Their addresses are this host's, by whichever interface they send.
            Clients::Programs => 0,
        };
        // Without the zone of an address.
        let (from, to) = (SocketAddr::new(from.ip(), from.port()), SocketAddr::new(to.ip(), to.port()));
        if to.port() != DNS_PORT {
            return self.senders.send(from, Outgoing { to, payload: payload.to_vec(), way: if_index });
        }
        let asker =
            TransparentAsker { sender: Arc::clone(&self.sender), client: from, resolver: to, if_index };
        if let Some(query) = Query::read(payload, Asker::Transparent(asker)) {
            // Dropped if too many wait, as a network may do.
            let _ = self.queries.try_send(query);
        }
    }
}
