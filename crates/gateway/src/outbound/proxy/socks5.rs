//! SOCKS5 (RFC 1928) with and without user name and password (RFC 1929), commands CONNECT and UDP ASSOCIATE.

use std::io;
use std::net::SocketAddr;

use fast_socks5::ReplyError;
use fast_socks5::Socks5Command;
use fast_socks5::server::{
    Socks5ServerProtocol, SocksServerError, StandardAuthentication, StandardAuthenticationStarted, states,
};
use fast_socks5::util::target_addr::TargetAddr;
use tokio::net::TcpStream;

use super::credentials::Credentials;
use super::proxy_error::ProxyError;
use crate::outbound::open::OpenError;
use crate::outbound::target::Target;

/// A request, not yet answered.
pub(super) struct Request {
    /// For UDP ASSOCIATE, where the client sends from, if it says.
    pub(super) target: Target,
    pub(super) command: Command,
    protocol: Socks5ServerProtocol<TcpStream, states::CommandRead>,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Connect,
    UdpAssociate,
}

impl Request {
    /// Without configured credentials a client may present any or none; with them, only these.
    pub(super) async fn read(
        near: TcpStream,
        credentials: Option<&Credentials>,
    ) -> Result<Request, ProxyError> {
        let methods = StandardAuthentication::allow_no_auth(credentials.is_none());
        let authenticated = match Socks5ServerProtocol::start(near).negotiate_auth(methods).await? {
            StandardAuthenticationStarted::NoAuthentication(started) => {
                Socks5ServerProtocol::finish_auth(started)
            }
            StandardAuthenticationStarted::PasswordAuthentication(started) => {
                let (user, password, asked) = started.read_username_password().await?;
                if credentials.is_some_and(|credentials| !credentials.verify(&user, &password)) {
                    asked.reject().await?;
                    return Err(ProxyError::Credentials);
                }
                Socks5ServerProtocol::finish_auth(asked.accept().await?)
            }
        };
        let (protocol, command, address) = authenticated.read_command().await?;
        let command = match command {
            Socks5Command::TCPConnect => Command::Connect,
            Socks5Command::UDPAssociate => Command::UdpAssociate,
            Socks5Command::TCPBind => {
                protocol.reply_error(&ReplyError::CommandNotSupported).await?;
                return Err(ProxyError::Request("expected CONNECT or UDP ASSOCIATE, got BIND".into()));
            }
        };
        let target = match address {
            TargetAddr::Ip(address) => Target::Address(address),
            TargetAddr::Domain(name, port) => Target::Name(name, port),
        };
        Ok(Request { target, command, protocol })
    }

    pub(super) async fn grant(self, bound: SocketAddr) -> Result<TcpStream, ProxyError> {
        Ok(self.protocol.reply_success(bound).await?)
    }

    pub(super) async fn deny(self, why: &OpenError) -> Result<(), ProxyError> {
        Ok(self.protocol.reply_error(&reply(why)).await?)
    }
}

fn reply(why: &OpenError) -> ReplyError {
    match why {
        OpenError::Refused(_) | OpenError::PeerAuth(_) | OpenError::Downgrade(_) | OpenError::Local(_) => {
            ReplyError::ConnectionNotAllowed
        }
        OpenError::Establish(error) if error.is_about_identity() => ReplyError::ConnectionNotAllowed,
        OpenError::Establish(_) | OpenError::WitnessTimeout => ReplyError::GeneralFailure,
        OpenError::Connect(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => ReplyError::ConnectionRefused,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => ReplyError::NetworkUnreachable,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NotFound => ReplyError::HostUnreachable,
            io::ErrorKind::TimedOut => ReplyError::TtlExpired,
            io::ErrorKind::PermissionDenied => ReplyError::ConnectionNotAllowed,
            io::ErrorKind::Unsupported => ReplyError::CommandNotSupported,
            _ => ReplyError::GeneralFailure,
        },
    }
}

impl From<SocksServerError> for ProxyError {
    fn from(error: SocksServerError) -> ProxyError {
        match error {
            SocksServerError::Io { source, .. } => ProxyError::Io(source),
            other => ProxyError::Request(other.to_string()),
        }
    }
}
