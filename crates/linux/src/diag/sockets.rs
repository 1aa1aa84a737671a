//! Queries the current state of single connections and subflows, without listing all others.

use std::net::SocketAddr;

use super::Error;
use super::message::{self, SubflowSocket};
use super::watch::group;
use crate::mptcp::{Info, Subflow, Token};
use crate::netlink::Socket;
use crate::tcp_info::TcpInfo;

/// Who has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user who created it.
    pub uid: u32,
    /// Its inode in the directories /proc/PID/fd; 0 if no program has it open.
    pub inode: u32,
}

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

    /// How many connections of this host's programs a TCP listener on this port of loopback has not accepted yet: their SYNs are not
    /// answered, or they are in its accept queue.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Refused`]
    pub fn pending_connections(&mut self, port: u16) -> Result<usize, Error> {
        let connecting = message::syn_sent_sockets(&mut self.0, port)?;
        let connecting = connecting.iter().filter(|socket| socket.remote.ip().is_loopback()).count();
        let listening = message::listening_sockets(&mut self.0, port)?;
        let established = listening
            .iter()
            .filter(|(socket, _)| socket.local.ip().is_loopback())
            .map(|(_, accept_queue)| *accept_queue as usize);
        Ok(connecting + established.sum::<usize>())
    }

    /// Who has the TCP socket between two addresses, which is bound to no interface; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Refused`]
    pub fn owner(&mut self, local: SocketAddr, remote: SocketAddr) -> Result<Option<Owner>, Error> {
        let found = message::tcp_socket(&mut self.0, local, remote, 0)?;
        Ok(found.map(|(head, _)| Owner { uid: head.uid, inode: head.inode }))
    }

    /// Aborts the subflow between two addresses that is bound to the interface `if_index` or, with 0, to none, of any connection.
    /// Its connection sends what it had not delivered on the other subflows at once. The peer sees a reset of this subflow, if
    /// the path works. Returns whether it existed. Requires `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// [`Error::Abort`] or [`Error::Refused`]
    pub fn abort_subflow(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        if_index: u32,
    ) -> Result<bool, Error> {
        match message::subflow_socket(&mut self.0, local, remote, if_index)? {
            Some(subflow) => message::abort(&mut self.0, &subflow.head),
            None => Ok(false),
        }
    }

    /// All current subflows, with the token of their connection.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Refused`]
    pub fn subflows(&mut self) -> Result<Vec<(Token, Subflow)>, Error> {
        let connections = message::mptcp_sockets(&mut self.0)?;
        let subflows = message::subflow_sockets(&mut self.0)?;
        let found = group(&connections, subflows).into_iter();
        let subflow =
            |SubflowSocket { head, tcp, .. }| Subflow { local: head.local, remote: head.remote, tcp };
        Ok(found.map(|(token, socket)| (token, subflow(socket))).collect())
    }
}
