//! SOCKS5's UDP ASSOCIATE (RFC 1928, section 7): datagrams of a proxy's client, through an exit.
//!
//! The client sends datagrams, each with its destination in front, to a socket of the proxy's address. It lasts as long as the
//! connection of the request.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use fast_socks5::util::target_addr::TargetAddr;
use fast_socks5::{new_udp_header, parse_udp_request};
use plait_proto::exit::{Destination, Host};
use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UdpSocket};
use tracing::debug;

use super::proxy_error::ProxyError;
use super::{ProxyAccess, socks5};
use crate::datagrams::SOCKET_BUFFER;
use crate::outbound::datagrams::{Association, Delivered};
use crate::outbound::exit::destination;
use crate::outbound::open::{OpenError, Outbound};
use crate::outbound::target::Target;
use crate::socket::canonical;

/// The addresses of the connection of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) own: IpAddr,
    pub(super) client: IpAddr,
}

/// The socket of an association, and who may use it.
struct Relay {
    socket: UdpSocket,
    client: IpAddr,
    /// The port that the client sends from: the one that it named, or that of its first datagram.
    port: Option<u16>,
    local_destinations: bool,
    /// The nameserver that the client asks, if the exit's resolver answers in its place.
    nameserver: Option<SocketAddr>,
}

impl Outbound {
    /// Answers a request, and carries datagrams until the client closes the connection.
    pub(super) async fn associate_one(
        self: &Arc<Self>,
        request: socks5::Request,
        ends: Ends,
        access: &ProxyAccess,
    ) -> Result<(), ProxyError> {
        let association = match self.associate().await {
            Ok(association) => association,
            Err(error) => {
                debug!("{}: UDP ASSOCIATE: {error}", ends.client);
                let error = OpenError::Connect(error);
                request.deny(&error).await?;
                return Err(error.into());
            }
        };
        let port = match &request.target {
            Target::Address(address) => address.port(),
            Target::Name(_, port) => *port,
        };
        let socket = UdpSocket::bind((ends.own, 0)).await?;
        // A burst of the client waits here; with less, it works, too.
        let _ = SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER);
        let relay = Relay {
            socket,
            client: ends.client.to_canonical(),
            port: Some(port).filter(|port| *port != 0),
            local_destinations: access.local_destinations,
            nameserver: None,
        };
        let near = request.grant(canonical(relay.socket.local_addr()?)).await?;
        // What is in flight is lost with the session.
        self.gateway().until_stopped(relay.run(near, association)).await;
        Ok(())
    }
}

impl Relay {
    /// Relays until the connection ends.
    async fn run(mut self, mut near: TcpStream, mut association: Association) {
        let mut bytes = vec![0; usize::from(u16::MAX)];
        let mut ignored = [0; 64];
        loop {
            tokio::select! {
                received = self.socket.recv_from(&mut bytes) => match received {
                    Ok((length, from)) => self.forward(&bytes[..length], canonical(from), &association).await,
                    // Such as an ICMP error for an answer that the client does not take.
                    Err(error) => debug!("{}: {error}", self.client),
                },
                delivered = association.receive() => self.answer(delivered),
                read = near.read(&mut ignored) => match read {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return,
                },
            }
        }
    }

    /// Sends a datagram of the client. One that is malformed or a fragment, or of another client, is dropped.
    async fn forward(&mut self, bytes: &[u8], from: SocketAddr, association: &Association) {
        if from.ip() != self.client || self.port.is_some_and(|port| port != from.port()) {
            return debug!("{from}: a datagram of an association of {}", self.client);
        }
        let Ok((0, target, payload)) = parse_udp_request(bytes).await else {
            return debug!("{from}: expected a datagram of SOCKS5 without fragments");
        };
        self.port = Some(from.port());
        let target = match target {
            TargetAddr::Ip(address) => Target::Address(address),
            TargetAddr::Domain(name, port) => Target::Name(name, port),
        };
        match self.destination(&target) {
            Ok(destination) => association.send(&destination, payload),
            Err(error) => debug!("{from}: {error}"),
        }
    }

    fn destination(&mut self, target: &Target) -> io::Result<Destination> {
        let destination = destination(target)?;
        match (target, &destination) {
            (Target::Address(address), Destination::Resolver) => self.nameserver = Some(canonical(*address)),
            _ => {
                if let Some(local) = target.local_address().filter(|_| !self.local_destinations) {
                    return Err(io::Error::other(OpenError::Local(local)));
                }
            }
        }
        Ok(destination)
    }

    /// Sends the client what has arrived.
    fn answer(&self, delivered: Delivered) {
        let (from, payload) = match delivered {
            Delivered::Data { from, payload } => (from, payload),
            Delivered::Refused { destination, reason } => {
                return debug!("{}: the exit sends no datagrams to {destination}: {reason}", self.client);
            }
        };
        let from = match from {
            Destination::Host(Host::Address(ip), port) => Some(SocketAddr::new(ip, port.get())),
            Destination::Resolver => self.nameserver,
            Destination::Host(Host::Name(_), _) | Destination::Datagrams | Destination::Admission(_) => None,
        };
        let (Some(from), Some(port)) = (from, self.port) else { return };
        let Ok(mut datagram) = new_udp_header(from) else { return };
        datagram.extend_from_slice(&payload);
        // Dropped if the client does not keep up.
        if let Err(error) = self.socket.try_send_to(&datagram, SocketAddr::new(self.client, port)) {
            debug!("{}: {error}", self.client);
        }
    }
}
