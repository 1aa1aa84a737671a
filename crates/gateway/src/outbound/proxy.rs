//! `plait proxy`: serves programs that use a proxy, by SOCKS5 (RFC 1928, 1929) or HTTP (RFC 9110).
//!
//! A client's first byte determines which of the two it uses. A request that is malformed, too long or too slow is answered
//! with the protocol's own error where it has one, and closed.

mod credentials;
mod http;
mod proxy_error;
mod socks5;
mod udp_associate;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info};

pub use credentials::{Credentials, CredentialsError};

use super::open::{OpenError, Opened, Outbound};
use super::target::Target;
use crate::error::StartError;
use crate::relay::RelayError;
use crate::socket::{close_on_drop, reset_on_drop, tcp_listener};
use proxy_error::ProxyError;

/// A client must have sent its request within this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const SOCKS5_VERSION: u8 = 5;
const SOCKS4_VERSION: u8 = 4;
/// SOCKS4's reply to a rejected request; the last six bytes are ignored.
const SOCKS4_REJECTED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

/// Who may use a proxy, and to reach what.
#[derive(Clone, Debug, Default)]
pub struct ProxyAccess {
    /// What clients must present; `None`: nothing.
    pub credentials: Option<Credentials>,
    /// Whether destinations may be loopback and link-local addresses of this host. Services there often do not
    /// authenticate their clients.
    pub local_destinations: bool,
}

/// A client's request, not yet answered.
enum Request {
    Socks5(socks5::Request),
    Http(http::Request),
}

impl Request {
    async fn read(near: TcpStream, credentials: Option<&Credentials>) -> Result<Request, ProxyError> {
        let mut first = [0];
        if near.peek(&mut first).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match first[0] {
            SOCKS5_VERSION => Ok(Request::Socks5(socks5::Request::read(near, credentials).await?)),
            SOCKS4_VERSION => {
                // Closing with the request unread would reset the connection, and so lose the reply.
                near.try_read(&mut [0; 512])?;
                near.try_write(&SOCKS4_REJECTED)?;
                Err(ProxyError::Request(
                    "expected SOCKS5 or HTTP, got SOCKS4: configure the client to use SOCKS5".into(),
                ))
            }
            _ => Ok(Request::Http(http::Request::read(near, credentials).await?)),
        }
    }

    fn target(&self) -> &Target {
        match self {
            Request::Socks5(request) => &request.target,
            Request::Http(request) => &request.target,
        }
    }

    /// Returns the connection to carry, and what forwards to it meanwhile, if the client is not connected directly.
    async fn grant(self, opened: &Opened) -> Result<(TcpStream, Option<http::Forwarding>), ProxyError> {
        match self {
            Request::Socks5(request) => Ok((request.grant(opened.local_addr()?).await?, None)),
            Request::Http(request) => request.grant(opened).await,
        }
    }

    async fn deny(self, why: &OpenError) -> Result<(), ProxyError> {
        match self {
            Request::Socks5(request) => request.deny(why).await,
            Request::Http(request) => request.deny(why).await,
        }
    }
}

impl Outbound {
    /// A listener for proxy clients, on an ordinary TCP socket.
    pub fn proxy_listener(address: SocketAddr) -> Result<TcpListener, StartError> {
        tcp_listener(address).map_err(|reason| StartError::Listen { address, reason })
    }

    /// Serves proxy clients until [`crate::Gateway::shut_down`].
    pub async fn proxy(self: &Arc<Self>, listener: TcpListener, access: ProxyAccess) {
        if let Ok(address) = listener.local_addr() {
            info!("proxy listening on {address} (SOCKS5 and HTTP)");
        }
        let access = Arc::new(access);
        self.gateway()
            .accept(listener, self.gateway().capacity().places_per_carried, |near, from, place| {
                let (outbound, access) = (Arc::clone(self), Arc::clone(&access));
                async move {
                    if let Err(error) = outbound.proxy_one(near, &access).await {
                        debug!("{from}: {error}");
                    }
                    drop(place);
                }
            })
            .await;
    }

    async fn proxy_one(self: &Arc<Self>, near: TcpStream, access: &ProxyAccess) -> Result<(), ProxyError> {
        // A refused client must be able to read why.
        close_on_drop(&near)?;
        let ends = udp_associate::Ends { own: near.local_addr()?.ip(), client: near.peer_addr()?.ip() };
        // A duplicate, while the request owns the socket.
        let socket = near.as_fd().try_clone_to_owned()?;
        let request = tokio::time::timeout(REQUEST_TIMEOUT, Request::read(near, access.credentials.as_ref()))
            .await
            .map_err(|_| ProxyError::Timeout)??;
        let _carried = self.gateway().capacity().permit().await;
        let request = match request {
            Request::Socks5(request) if request.command == socks5::Command::UdpAssociate => {
                return self.associate_one(request, ends, access).await;
            }
            request => request,
        };
        match self.open_target(request.target(), None, access.local_destinations).await {
            Ok(opened) => {
                // Before the client reads the success reply: from then on a close would look like the end of the stream.
                reset_on_drop(&socket)?;
                drop(socket);
                let (near, forwarding) = request.grant(&opened).await?;
                let forwarded = async {
                    match forwarding {
                        Some(forwarding) => forwarding.run().await,
                        None => Ok(()),
                    }
                };
                // Both own their sockets, so that each ends when the other has failed.
                let carried = async move {
                    let near = near;
                    self.carry(&near, opened).await
                };
                let (forwarded, carried) = tokio::join!(forwarded, carried);
                Ok(carried.and(forwarded.map_err(|error| RelayError::Near(error).into()))?)
            }
            Err(why) => {
                debug!("{:?}: {why}", request.target());
                request.deny(&why).await?;
                Err(why.into())
            }
        }
    }
}
