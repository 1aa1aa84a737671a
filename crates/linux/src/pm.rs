//! The kernel's MPTCP path manager (generic netlink family `mptcp_pm`).
//!
//! [`PathManager`] creates and destroys subflows of connections managed from user space ([`user_space_sockets`]).
//! [`Events`] receives the path manager's events. Both act on the network namespace of the thread that opened them;
//! changes require `CAP_NET_ADMIN` there. No data from the kernel makes this module panic.

mod event;
mod user_space;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

pub use event::{Event, Events};
pub(crate) use user_space::remove_empty_path_manager_record;
pub use user_space::{
    UserSpaceError, keep_record_open, path_manager_record, restore_after_crash, user_space_sockets,
};

use crate::bytes::ip_address;
use crate::mptcp::Token;
use crate::netlink::message::{Message, NLM_F_ACK, Request};
use crate::netlink::{self, Family, Socket};

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

/// The local address of a subflow to create.
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

/// An endpoint of the in-kernel path manager (`ip mptcp endpoint`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its identifier.
    pub id: u8,
    /// Its address.
    pub address: IpAddr,
    /// Index of the interface that its subflows are bound to; 0: routing chooses it.
    pub if_index: u32,
    /// Whether it is announced to peers (`signal`).
    pub signal: bool,
    /// Whether subflows are created from it (`subflow`, with or without `fullmesh`).
    pub subflow: bool,
}

impl Endpoint {
    fn read(message: &Message) -> Option<Endpoint> {
        let attributes = message.attributes(4).nested(ATTR_ADDR);
        let address = attributes.find(ADDR_ATTR_ADDR4).or_else(|| attributes.find(ADDR_ATTR_ADDR6))?;
        let flags = attributes.u32(ADDR_ATTR_FLAGS).unwrap_or(0);
        Some(Endpoint {
            id: attributes.u8(ADDR_ATTR_ID)?,
            address: ip_address(address)?,
            if_index: attributes.u32(ADDR_ATTR_IF_IDX).unwrap_or(0),
            signal: flags & ADDR_FLAG_SIGNAL != 0,
            subflow: flags & ADDR_FLAG_SUBFLOW != 0,
        })
    }
}

/// The in-kernel path manager's limits for each connection (`ip mptcp limits`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Additional subflows.
    pub subflows: u32,
    /// Announced addresses of the peer that are used.
    pub add_addr_accepted: u32,
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

    /// The endpoints, which only connections of the in-kernel path manager use.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let request = |flags| Request::generic(self.family, CMD_GET_ADDR, VERSION, flags);
        socket
            .dump(request, Endpoint::read)
            .map_err(|reason| Error::Refused { operation: "list the endpoints".into(), reason })
    }

    /// The in-kernel path manager's limits.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn limits(&self) -> Result<Limits, Error> {
        let mut limits = None;
        self.exchange(self.request(CMD_GET_LIMITS), |message| {
            let attributes = message.attributes(4);
            let both = attributes.u32(ATTR_SUBFLOWS).zip(attributes.u32(ATTR_RCV_ADD_ADDRS));
            limits = both.map(|(subflows, add_addr_accepted)| Limits { subflows, add_addr_accepted });
        })
        .and_then(|()| limits.ok_or(netlink::Error::Unexpected { expected: "limits of subflows" }))
        .map_err(|reason| Error::Refused { operation: "get the limits".into(), reason })
    }

    /// Starts to create a subflow from a local address to an address of the peer with the identifier `remote_id` (0: the
    /// address of the initial subflow, or unknown).
    ///
    /// # Errors
    /// `ESRCH` or `EINVAL` if the connection does not exist or is not managed from user space; or an error of
    /// `connect(2)`, such as `ENETUNREACH`.
    pub fn subflow_create(
        &self,
        token: Token,
        local: &Local,
        remote: SocketAddr,
        remote_id: u8,
    ) -> Result<(), Error> {
        let request = self
            .connection_request(CMD_SUBFLOW_CREATE, token)
            .nested(ATTR_ADDR, |inner| local.write(inner))
            .nested(ATTR_ADDR_REMOTE, |inner| {
                write_socket_address(inner, remote).attribute(ADDR_ATTR_ID, &[remote_id])
            });
        self.execute(request, || {
            format!("create a subflow of connection {token} from {} to {remote}", local.address)
        })
    }

    /// Closes a subflow.
    ///
    /// # Errors
    /// `ESRCH` if no subflow has these addresses; otherwise as [`subflow_create`](PathManager::subflow_create).
    pub fn subflow_destroy(&self, token: Token, local: SocketAddr, remote: SocketAddr) -> Result<(), Error> {
        let request = self
            .connection_request(CMD_SUBFLOW_DESTROY, token)
            .nested(ATTR_ADDR, |inner| write_socket_address(inner, local))
            .nested(ATTR_ADDR_REMOTE, |inner| write_socket_address(inner, remote));
        self.execute(request, || format!("close the subflow of connection {token} from {local} to {remote}"))
    }

    /// Asks the peer to send on a subflow only if no other works (MP_PRIO, RFC 8684, section 3.3.8), or no longer. The same then
    /// applies to this end.
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
        let flags = if backup { ADDR_FLAG_BACKUP } else { 0 };
        let request = self
            .connection_request(CMD_SET_FLAGS, token)
            .nested(ATTR_ADDR, |inner| {
                write_socket_address(inner, local).attribute(ADDR_ATTR_FLAGS, &flags.to_ne_bytes())
            })
            .nested(ATTR_ADDR_REMOTE, |inner| write_socket_address(inner, remote));
        self.execute(request, || {
            format!("change the priority of the subflow of connection {token} from {local} to {remote}")
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

    fn exchange(&self, request: Request, each: impl FnMut(&Message)) -> Result<(), netlink::Error> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).request(request, each)
    }
}

impl Local {
    fn write(&self, request: Request) -> Request {
        let mut request = write_address(request, self.address).attribute(ADDR_ATTR_ID, &[self.id]);
        if self.backup {
            request = request.attribute(ADDR_ATTR_FLAGS, &ADDR_FLAG_BACKUP.to_ne_bytes());
        }
        if self.if_index != 0 {
            request = request.attribute(ADDR_ATTR_IF_IDX, &self.if_index.to_ne_bytes());
        }
        request
    }
}

fn write_socket_address(request: Request, address: SocketAddr) -> Request {
    write_address(request, address.ip()).attribute(ADDR_ATTR_PORT, &address.port().to_ne_bytes())
}

fn write_address(request: Request, address: IpAddr) -> Request {
    match address {
        IpAddr::V4(v4) => request
            .attribute(ADDR_ATTR_FAMILY, &(libc::AF_INET as u16).to_ne_bytes())
            .attribute(ADDR_ATTR_ADDR4, &v4.octets()),
        IpAddr::V6(v6) => request
            .attribute(ADDR_ATTR_FAMILY, &(libc::AF_INET6 as u16).to_ne_bytes())
            .attribute(ADDR_ATTR_ADDR6, &v6.octets()),
    }
}

const FAMILY: &str = "mptcp_pm";
const VERSION: u8 = 1;

const CMD_GET_ADDR: u8 = 3;
const CMD_GET_LIMITS: u8 = 6;
const CMD_SET_FLAGS: u8 = 7;
const CMD_SUBFLOW_CREATE: u8 = 10;
const CMD_SUBFLOW_DESTROY: u8 = 11;

const ATTR_ADDR: u16 = 1;
const ATTR_RCV_ADD_ADDRS: u16 = 2;
const ATTR_SUBFLOWS: u16 = 3;
const ATTR_TOKEN: u16 = 4;
const ATTR_ADDR_REMOTE: u16 = 6;

const ADDR_ATTR_FAMILY: u16 = 1;
const ADDR_ATTR_ID: u16 = 2;
const ADDR_ATTR_ADDR4: u16 = 3;
const ADDR_ATTR_ADDR6: u16 = 4;
const ADDR_ATTR_PORT: u16 = 5;
const ADDR_ATTR_FLAGS: u16 = 6;
const ADDR_ATTR_IF_IDX: u16 = 7;
const ADDR_FLAG_SIGNAL: u32 = 1 << 0;
const ADDR_FLAG_SUBFLOW: u32 = 1 << 1;
const ADDR_FLAG_BACKUP: u32 = 1 << 2;
