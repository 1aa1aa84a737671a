//! What single connections and subflows come to at this moment, without listing all others.

use std::net::SocketAddr;

use super::Error;
use super::message;
use super::watch::group;
use crate::mptcp::{Info, Token};
use crate::netlink::Socket;
use crate::tcp_info::{State, TcpInfo};

/// Asks the kernel about sockets, whichever process has them, of the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Sockets(Socket);

impl Sockets {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Open`], or [`Error::Missing`] if the kernel cannot say what is asked here.
    pub fn open() -> Result<Sockets, Error> {
        let mut sockets = Sockets(Socket::diag().map_err(Error::Open)?);
        // To look single ones up fails alike if there is none and if the kernel cannot.
        sockets.subflows()?;
        Ok(sockets)
    }

    /// The state of a connection; `None` if there is none with this token.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn connection(&mut self, token: Token) -> Result<Option<Info>, Error> {
        message::mptcp_socket(&mut self.0, token).map(|found| found.map(|socket| socket.info))
    }

    /// The figures of the TCP socket with these two ends, which is bound to the interface `if_index` or, with 0, to none;
    /// `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn subflow(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        if_index: u32,
    ) -> Result<Option<TcpInfo>, Error> {
        message::tcp_socket(&mut self.0, local, remote, if_index).map(|found| found.map(|(_, tcp)| tcp))
    }

    /// The subflows that there are now, of all connections: of which connection, where here, and how.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Refused`]
    pub fn subflows(&mut self) -> Result<Vec<(Token, SocketAddr, State)>, Error> {
        let connections = message::mptcp_sockets(&mut self.0)?;
        let subflows = message::subflow_sockets(&mut self.0)?;
        let found = group(&connections, subflows).into_iter();
        Ok(found.map(|(token, socket)| (token, socket.head.local, socket.tcp.state)).collect())
    }
}
