//! `plait proxy`: serves programs that use a proxy, by SOCKS5 (RFC 1928, 1929) or HTTP CONNECT (RFC 9110).
//!
//! A client's first byte determines which of the two it uses. A request that is malformed, too long or too slow is answered
//! with the protocol's own error where it has one, and closed.

mod credentials;
mod http_connect;
mod socks5;
mod target;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, info, warn};

pub use credentials::{Credentials, CredentialsError};

use super::open::{OpenError, Opened, Outbound};
use crate::error::StartError;
use crate::socket::{close_on_drop, reset_on_drop};
use target::{ProxyError, Target};

/// A client must have sent its request within this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const SOCKS5_VERSION: u8 = 5;
const SOCKS4_VERSION: u8 = 4;
/// SOCKS4's reply to a rejected request; the last six bytes are ignored.
const SOCKS4_REJECTED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

/// A client's request, not yet answered.
enum Request {
    Socks5(socks5::Request),
    HttpConnect(http_connect::Request),
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
                    "expected SOCKS5 or HTTP CONNECT, got SOCKS4: configure the client to use SOCKS5".into(),
                ))
            }
            _ => Ok(Request::HttpConnect(http_connect::Request::read(near, credentials).await?)),
        }
    }

    fn target(&self) -> &Target {
        match self {
            Request::Socks5(request) => &request.target,
            Request::HttpConnect(request) => &request.target,
        }
    }

    async fn grant(self, opened: &Opened) -> Result<TcpStream, ProxyError> {
        match self {
            Request::Socks5(request) => request.grant(opened.local_addr()?).await,
            Request::HttpConnect(request) => request.grant().await,
        }
    }

    async fn deny(self, why: &OpenError) -> Result<(), ProxyError> {
        match self {
            Request::Socks5(request) => request.deny(why).await,
            Request::HttpConnect(request) => request.deny(why).await,
        }
    }
}

impl Outbound {
    /// A listener for proxy clients, on an ordinary TCP socket.
    pub async fn proxy_listener(address: SocketAddr) -> Result<TcpListener, StartError> {
        TcpListener::bind(address).await.map_err(|reason| StartError::Listen { address, reason })
    }

    /// Serves proxy clients until [`crate::Gateway::shut_down`]; with credentials, only clients that present them.
    pub async fn proxy(self: &Arc<Self>, listener: TcpListener, credentials: Option<Credentials>) {
        if let Ok(address) = listener.local_addr() {
            info!("proxy listening on {address} (SOCKS5 and HTTP CONNECT)");
        }
        let credentials = Arc::new(credentials);
        self.gateway()
            .accept(listener, |near, from| {
                let (outbound, credentials) = (Arc::clone(self), Arc::clone(&credentials));
                async move {
                    if let Err(error) = outbound.proxy_one(near, credentials.as_ref().as_ref()).await {
                        debug!("{from}: {error}");
                    }
                }
            })
            .await;
    }

    async fn proxy_one(&self, near: TcpStream, credentials: Option<&Credentials>) -> Result<(), ProxyError> {
        // A refused client must be able to read why.
        close_on_drop(&near)?;
        // A duplicate, while the request owns the socket.
        let socket = near.as_fd().try_clone_to_owned()?;
        let request = tokio::time::timeout(REQUEST_TIMEOUT, Request::read(near, credentials))
            .await
            .map_err(|_| ProxyError::Timeout)??;
        let opened = match request.target().resolve().await {
            Ok(destinations) => self.open(&request.target().peer(), &destinations).await,
            Err(error) => Err(OpenError::Connect(error)),
        };
        match opened {
            Ok(opened) => {
                // Before the client reads the success reply: from then on a close would look like the end of the stream.
                reset_on_drop(&socket)?;
                drop(socket);
                let near = request.grant(&opened).await?;
                Ok(self.carry(&near, opened).await?)
            }
            Err(why) => {
                // An operator must see this; the client's protocol has no room for it.
                if why.is_about_identity() {
                    warn!("{}: refused: {why}", request.target().peer());
                } else {
                    debug!("{:?}: {why}", request.target());
                }
                request.deny(&why).await?;
                Err(why.into())
            }
        }
    }
}
