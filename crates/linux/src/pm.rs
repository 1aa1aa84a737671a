//! The kernel's MPTCP path manager (generic netlink family `mptcp_pm`).
//!
//! [`PathManager`] configures the in-kernel path manager (endpoints and limits), and creates and destroys subflows and
//! announces addresses of connections managed from user space ([`user_space_sockets`]). [`Events`] receives the path
//! manager's events. Both act on the network namespace of the thread that opened them; changes require `CAP_NET_ADMIN`
//! there. No data from the kernel makes this module panic.

mod endpoint;
mod event;
mod user_space;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

pub use endpoint::{Endpoint, Flags, Limits};
pub use event::{Connection, Event, Events, Subflow};
pub use user_space::{UserSpaceError, restore_after_crash, user_space_sockets};

use crate::mptcp::Token;
use crate::netlink::message::{NLM_F_ACK, Request};
use crate::netlink::{self, Family, Socket};
use endpoint::{write_flags, write_id, write_socket_address};

/// Why a command to the path manager failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no MPTCP path manager.
    #[error(
        "this kernel has no MPTCP path manager: expected the netlink family mptcp_pm; \
         use a kernel of version 5.19 or later with CONFIG_MPTCP"
    )]
    Missing,
    /// The kernel refused the request.
    #[error("the MPTCP path manager cannot {operation}: {reason}{}", hint(.reason))]
    Refused {
        /// The failed operation.
        operation: String,
        /// The kernel's reason.
        reason: netlink::Error,
    },
}

impl Error {
    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Missing => None,
            Error::Refused { reason, .. } => reason.errno(),
        }
    }
}

fn hint(error: &netlink::Error) -> &'static str {
    match error.errno() {
        Some(libc::EPERM) => "; this requires root, or CAP_NET_ADMIN in this network namespace",
        _ => "",
    }
}

/// The local address of a subflow to create, or an address to announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The address.
    pub address: IpAddr,
    /// Its address identifier, 1..=255; 0 is the address of the initial subflow.
    pub id: u8,
    /// Index of the interface to use; with 0, routing chooses it, which may lead to an unintended path.
    pub if_index: u32,
    /// Whether the subflow is a backup.
    pub backup: bool,
}

/// The path manager of one network namespace.
#[derive(Debug)]
pub struct PathManager {
    socket: Mutex<Socket>,
    family: u16,
}

impl PathManager {
    /// Opens the path manager of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Missing`] if the kernel has none.
    pub fn open() -> Result<PathManager, Error> {
        let open = || {
            let mut socket = Socket::generic()?;
            let family = Family::find(&mut socket, FAMILY)?;
            Ok((socket, family))
        };
        match open() {
            Ok((socket, Some(family))) => Ok(PathManager { socket: Mutex::new(socket), family: family.id }),
            Ok((_, None)) => Err(Error::Missing),
            Err(reason) => Err(Error::Refused { operation: "open".into(), reason }),
        }
    }

    /// Adds an endpoint, which existing and new connections use according to its flags.
    ///
    /// # Errors
    /// `EEXIST` if the address or the identifier is taken.
    pub fn add(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let request = self.request(CMD_ADD_ADDR).nested(ATTR_ADDR, |inner| endpoint.write(inner));
        self.execute(request, || format!("add the endpoint {}", endpoint.address))
    }

    /// Removes the endpoint with this identifier and closes its subflows. With identifier 0, closes the initial subflows
    /// that use its address.
    ///
    /// # Errors
    /// `EINVAL` if the endpoint does not exist.
    pub fn delete(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let request = self.request(CMD_DEL_ADDR).nested(ATTR_ADDR, |inner| endpoint.write(inner));
        self.execute(request, || format!("delete the endpoint {} with id {}", endpoint.address, endpoint.id))
    }

    /// The endpoint with this identifier.
    ///
    /// # Errors
    /// `EINVAL` if the endpoint does not exist.
    pub fn endpoint(&self, id: u8) -> Result<Endpoint, Error> {
        let request = self.request(CMD_GET_ADDR).nested(ATTR_ADDR, |inner| write_id(inner, id));
        let operation = || format!("get the endpoint with id {id}");
        let mut found = None;
        self.exchange(request, |message| {
            found = Endpoint::read(message.attributes(4).nested(ATTR_ADDR));
        })
        .and_then(|()| found.ok_or(netlink::Error::Unexpected { expected: "an endpoint" }))
        .map_err(|reason| Error::Refused { operation: operation(), reason })
    }

    /// All endpoints.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket
            .dump(
                |flags| Request::generic(self.family, CMD_GET_ADDR, VERSION, flags),
                |message| Endpoint::read(message.attributes(4).nested(ATTR_ADDR)),
            )
            .map_err(|reason| Error::Refused { operation: "list the endpoints".into(), reason })
    }

    /// Removes all endpoints.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn flush(&self) -> Result<(), Error> {
        self.execute(self.request(CMD_FLUSH_ADDRS), || "remove all endpoints".into())
    }

    /// The limits.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn limits(&self) -> Result<Limits, Error> {
        let mut limits = None;
        self.exchange(self.request(CMD_GET_LIMITS), |message| {
            let attributes = message.attributes(4);
            let values = (attributes.u32(ATTR_SUBFLOWS), attributes.u32(ATTR_RCV_ADD_ADDRS));
            if let (Some(subflows), Some(add_addr_accepted)) = values {
                limits = Some(Limits { subflows, add_addr_accepted });
            }
        })
        .and_then(|()| limits.ok_or(netlink::Error::Unexpected { expected: "two limits" }))
        .map_err(|reason| Error::Refused { operation: "get the limits".into(), reason })
    }

    /// Sets the limits.
    ///
    /// # Errors
    /// `EINVAL` if one is above 8.
    pub fn set_limits(&self, limits: Limits) -> Result<(), Error> {
        let request = self
            .request(CMD_SET_LIMITS)
            .attribute(ATTR_SUBFLOWS, &limits.subflows.to_ne_bytes())
            .attribute(ATTR_RCV_ADD_ADDRS, &limits.add_addr_accepted.to_ne_bytes());
        self.execute(request, || {
            format!(
                "set the limits to {} subflows and {} accepted addresses",
                limits.subflows, limits.add_addr_accepted
            )
        })
    }

    /// Updates [`Flags::BACKUP`] and [`Flags::FULLMESH`] of an endpoint; its other flags do not change.
    ///
    /// # Errors
    /// `EINVAL` if the endpoint does not exist.
    pub fn set_flags(&self, id: u8, flags: Flags) -> Result<(), Error> {
        let request =
            self.request(CMD_SET_FLAGS).nested(ATTR_ADDR, |inner| write_flags(write_id(inner, id), flags));
        self.execute(request, || format!("change the flags of the endpoint with id {id} to '{flags}'"))
    }

    /// Announces a local address to the peer (ADD_ADDR). Only for connections managed from user space; the identifier
    /// must not be 0.
    ///
    /// # Errors
    /// `ESRCH` or `EINVAL` if the connection does not exist or is not managed from user space.
    pub fn announce(&self, token: Token, local: &Local, port: u16) -> Result<(), Error> {
        let endpoint = Endpoint { port, flags: Flags::SIGNAL, ..local.as_endpoint() };
        let request =
            self.connection_request(CMD_ANNOUNCE, token).nested(ATTR_ADDR, |inner| endpoint.write(inner));
        self.execute(request, || format!("announce {} for connection {token}", local.address))
    }

    /// Withdraws an announced address (REMOVE_ADDR) and closes its subflows.
    ///
    /// # Errors
    /// `EINVAL` if the address was not announced; otherwise as [`announce`](PathManager::announce).
    pub fn remove(&self, token: Token, id: u8) -> Result<(), Error> {
        let request = self.connection_request(CMD_REMOVE, token).attribute(ATTR_LOC_ID, &[id]);
        self.execute(request, || format!("withdraw the address with id {id} of connection {token}"))
    }

    /// Starts to create a subflow from a local address to an address of the peer with the identifier `remote_id` (0: the
    /// address of the initial subflow, or unknown). [`Event::SubflowEstablished`] reports its completion.
    ///
    /// # Errors
    /// As [`announce`](PathManager::announce); or an error of `connect(2)`, such as `ENETUNREACH`.
    pub fn subflow_create(
        &self,
        token: Token,
        local: &Local,
        remote: SocketAddr,
        remote_id: u8,
    ) -> Result<(), Error> {
        let endpoint = local.as_endpoint();
        let request = self
            .connection_request(CMD_SUBFLOW_CREATE, token)
            .nested(ATTR_ADDR, |inner| endpoint.write(inner))
            .nested(ATTR_ADDR_REMOTE, |inner| write_id(write_socket_address(inner, remote), remote_id));
        self.execute(request, || {
            format!("create a subflow of connection {token} from {} to {remote}", local.address)
        })
    }

    /// Closes a subflow.
    ///
    /// # Errors
    /// `ESRCH` if no subflow has these addresses; otherwise as [`announce`](PathManager::announce).
    pub fn subflow_destroy(&self, token: Token, local: SocketAddr, remote: SocketAddr) -> Result<(), Error> {
        let request = self
            .connection_request(CMD_SUBFLOW_DESTROY, token)
            .nested(ATTR_ADDR, |inner| write_socket_address(inner, local))
            .nested(ATTR_ADDR_REMOTE, |inner| write_socket_address(inner, remote));
        self.execute(request, || format!("close the subflow of connection {token} from {local} to {remote}"))
    }

    /// Makes a subflow a backup or a regular subflow, and notifies the peer (MP_PRIO). Only for connections managed from
    /// user space.
    ///
    /// # Errors
    /// As [`subflow_destroy`](PathManager::subflow_destroy).
    pub fn set_backup(
        &self,
        token: Token,
        local: SocketAddr,
        remote: SocketAddr,
        backup: bool,
    ) -> Result<(), Error> {
        let flags = if backup { Flags::BACKUP } else { Flags::empty() };
        let request = self
            .connection_request(CMD_SET_FLAGS, token)
            .nested(ATTR_ADDR, |inner| write_flags(write_socket_address(inner, local), flags))
            .nested(ATTR_ADDR_REMOTE, |inner| write_socket_address(inner, remote));
        self.execute(request, || {
            let priority = if backup { "a backup" } else { "a regular subflow" };
            format!("make the subflow of connection {token} from {local} to {remote} {priority}")
        })
    }

    fn request(&self, command: u8) -> Request {
        Request::generic(self.family, command, VERSION, NLM_F_ACK)
    }

    fn connection_request(&self, command: u8, token: Token) -> Request {
        self.request(command).attribute(ATTR_TOKEN, &token.0.to_ne_bytes())
    }

    fn execute(&self, request: Request, operation: impl FnOnce() -> String) -> Result<(), Error> {
        self.exchange(request, |_| ()).map_err(|reason| Error::Refused { operation: operation(), reason })
    }

    fn exchange(
        &self,
        request: Request,
        each: impl FnMut(&netlink::message::Message),
    ) -> Result<(), netlink::Error> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).request(request, each)
    }
}

impl Local {
    fn as_endpoint(&self) -> Endpoint {
        let flags = if self.backup { Flags::BACKUP } else { Flags::empty() };
        Endpoint { address: self.address, id: self.id, port: 0, flags, if_index: self.if_index }
    }
}

const FAMILY: &str = "mptcp_pm";
const VERSION: u8 = 1;

const CMD_ADD_ADDR: u8 = 1;
const CMD_DEL_ADDR: u8 = 2;
const CMD_GET_ADDR: u8 = 3;
const CMD_FLUSH_ADDRS: u8 = 4;
const CMD_SET_LIMITS: u8 = 5;
const CMD_GET_LIMITS: u8 = 6;
const CMD_SET_FLAGS: u8 = 7;
const CMD_ANNOUNCE: u8 = 8;
const CMD_REMOVE: u8 = 9;
const CMD_SUBFLOW_CREATE: u8 = 10;
const CMD_SUBFLOW_DESTROY: u8 = 11;

const ATTR_ADDR: u16 = 1;
const ATTR_RCV_ADD_ADDRS: u16 = 2;
const ATTR_SUBFLOWS: u16 = 3;
const ATTR_TOKEN: u16 = 4;
const ATTR_LOC_ID: u16 = 5;
const ATTR_ADDR_REMOTE: u16 = 6;
