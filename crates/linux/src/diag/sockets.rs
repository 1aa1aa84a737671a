//! Queries the current state of single connections and subflows, without listing all others.

use std::net::SocketAddr;

use super::Error;
use super::message;
use super::watch::group;
use crate::mptcp::{Info, Token};
use crate::netlink::Socket;
use crate::tcp_info::{State, TcpInfo};

/// Queries sockets of any process in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Sockets(Socket);

impl Sockets {
    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Open`], or [`Error::Missing`] if the kernel does not support these queries.
    pub fn open() -> Result<Sockets, Error> {
        let mut sockets = Sockets(Socket::diag().map_err(Error::Open)?);
        // Listing detects missing kernel support; looking up a socket returns the same error as if it did not exist.
        sockets.subflows()?;
        Ok(sockets)
    }

    /// The state of a connection; `None` if no connection has this token.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn connection(&mut self, token: Token) -> Result<Option<Info>, Error> {
        message::mptcp_socket(&mut self.0, token).map(|found| found.map(|socket| socket.info))
    }

    /// The state of the TCP socket between two addresses that is bound to the interface `if_index` or, with 0, to none;
    /// `None` if it does not exist.
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

    /// All current subflows: the token of the connection, the local address, and the state.
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
