//! The MPTCP path manager of the kernel (generic netlink family `mptcp_pm`): which addresses make subflows.
//!
//! [`PathManager`] gives the kernel's own path manager its endpoints and limits, and makes, announces and ends
//! subflows of the connections that user space manages ([`user_space_sockets`]). [`Events`] reports events.
//! All of it concerns the network namespace of the thread that opened it, and changing anything takes
//! `CAP_NET_ADMIN` there. Nothing that the kernel sends makes this module panic.

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
    /// The kernel has no MPTCP.
    #[error(
        "this kernel has no MPTCP path manager (expected the netlink family mptcp_pm): \
         use a kernel with CONFIG_MPTCP, version 5.19 or later"
    )]
    Missing,
    /// The kernel refused.
    #[error("the MPTCP path manager did not {operation}: {reason}{}", hint(.reason))]
    Refused {
        /// What was asked for.
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
        Some(libc::EPERM) => "; it takes root, or CAP_NET_ADMIN in this network namespace",
        _ => "",
    }
}

/// The local end of a subflow to be made, or an address to be announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The address.
    pub address: IpAddr,
    /// Its identifier, 1..=255; 0 stands for the address of the initial subflow.
    pub id: u8,
    /// Index of the interface to use; 0 leaves that to routing, which may choose another path than meant.
    pub if_index: u32,
    /// The subflow is a backup.
    pub backup: bool,
}

/// The path manager of one network namespace. Calls can be made from several threads.
#[derive(Debug)]
pub struct PathManager {
    socket: Mutex<Socket>,
    family: u16,
}

impl PathManager {
    /// Opens the path manager of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Missing`] if there is none.
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

    /// Adds an endpoint: existing and new connections use it as its flags say.
    ///
    /// # Errors
    /// `EEXIST` if the address or the identifier is taken.
    pub fn add(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let request = self.request(CMD_ADD_ADDR).nested(ATTR_ADDR, |inner| endpoint.write(inner));
        self.ask(request, || format!("add the endpoint {}", endpoint.address))
    }

    /// Removes an endpoint, found by its identifier; its subflows end. With identifier 0 it is the address that
    /// counts: subflows that connections began with it end.
    ///
    /// # Errors
    /// `EINVAL` if the endpoint does not exist.
    pub fn delete(&self, endpoint: &Endpoint) -> Result<(), Error> {
        let request = self.request(CMD_DEL_ADDR).nested(ATTR_ADDR, |inner| endpoint.write(inner));
        self.ask(request, || format!("delete the endpoint {} with id {}", endpoint.address, endpoint.id))
    }

    /// The endpoint with this identifier.
    ///
    /// # Errors
    /// `EINVAL` if the endpoint does not exist.
    pub fn endpoint(&self, id: u8) -> Result<Endpoint, Error> {
        let request = self.request(CMD_GET_ADDR).nested(ATTR_ADDR, |inner| write_id(inner, id));
        let operation = || format!("give the endpoint with id {id}");
        let mut found = None;
        self.exchange(request, |message| {
            found = Endpoint::read(message.attributes(4).inside(ATTR_ADDR));
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
                |message| Endpoint::read(message.attributes(4).inside(ATTR_ADDR)),
            )
            .map_err(|reason| Error::Refused { operation: "list its endpoints".into(), reason })
    }

    /// Removes all endpoints.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn flush(&self) -> Result<(), Error> {
        self.ask(self.request(CMD_FLUSH_ADDRS), || "remove all endpoints".into())
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
        .map_err(|reason| Error::Refused { operation: "give its limits".into(), reason })
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
        self.ask(request, || {
            format!(
                "set its limits to {} subflows and {} addresses",
                limits.subflows, limits.add_addr_accepted
            )
        })
    }

    /// Changes the flags of an endpoint: only [`Flags::BACKUP`] and [`Flags::FULLMESH`] can change, the others
    /// stay.
    ///
    /// # Errors
    /// `EINVAL` if the endpoint does not exist.
    pub fn set_flags(&self, id: u8, flags: Flags) -> Result<(), Error> {
        let request =
            self.request(CMD_SET_FLAGS).nested(ATTR_ADDR, |inner| write_flags(write_id(inner, id), flags));
        self.ask(request, || format!("change the flags of the endpoint with id {id} to '{flags}'"))
    }

    /// Announces a local address to the peer (ADD_ADDR). For connections managed from user space only; the
    /// identifier must not be 0.
    ///
    /// # Errors
    /// `ESRCH` or `EINVAL` if the connection does not exist or is not managed from user space.
    pub fn announce(&self, token: Token, local: &Local, port: u16) -> Result<(), Error> {
        let endpoint = Endpoint { port, flags: Flags::SIGNAL, ..local.as_endpoint() };
        let request = self.of(CMD_ANNOUNCE, token).nested(ATTR_ADDR, |inner| endpoint.write(inner));
        self.ask(request, || format!("announce {} for connection {token}", local.address))
    }

    /// Withdraws an announced address (REMOVE_ADDR) and ends its subflows.
    ///
    /// # Errors
    /// `EINVAL` if the address was not announced; otherwise as [`announce`](PathManager::announce).
    pub fn remove(&self, token: Token, id: u8) -> Result<(), Error> {
        let request = self.of(CMD_REMOVE, token).attribute(ATTR_LOC_ID, &[id]);
        self.ask(request, || format!("withdraw the address with id {id} of connection {token}"))
    }

    /// Makes a subflow from a local address to an address of the peer, whose identifier is `remote_id` (0: the
    /// address of the initial subflow, or unknown). [`Event::SubflowEstablished`] reports that it is established.
    ///
    /// # Errors
    /// As [`announce`](PathManager::announce); or that of connecting, such as `ENETUNREACH`.
    pub fn subflow_create(
        &self,
        token: Token,
        local: &Local,
        remote: SocketAddr,
        remote_id: u8,
    ) -> Result<(), Error> {
        let endpoint = local.as_endpoint();
        let request = self
            .of(CMD_SUBFLOW_CREATE, token)
            .nested(ATTR_ADDR, |inner| endpoint.write(inner))
            .nested(ATTR_ADDR_REMOTE, |inner| write_id(write_socket_address(inner, remote), remote_id));
        self.ask(request, || {
            format!("make a subflow of connection {token} from {} to {remote}", local.address)
        })
    }

    /// Ends a subflow.
    ///
    /// # Errors
    /// `ESRCH` if no subflow has these addresses; otherwise as [`announce`](PathManager::announce).
    pub fn subflow_destroy(&self, token: Token, local: SocketAddr, remote: SocketAddr) -> Result<(), Error> {
        let request = self
            .of(CMD_SUBFLOW_DESTROY, token)
            .nested(ATTR_ADDR, |inner| write_socket_address(inner, local))
            .nested(ATTR_ADDR_REMOTE, |inner| write_socket_address(inner, remote));
        self.ask(request, || format!("end the subflow of connection {token} from {local} to {remote}"))
    }

    /// Tells the peer that a subflow is a backup, or no longer one (MP_PRIO). For connections managed from user
    /// space.
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
            .of(CMD_SET_FLAGS, token)
            .nested(ATTR_ADDR, |inner| write_flags(write_socket_address(inner, local), flags))
            .nested(ATTR_ADDR_REMOTE, |inner| write_socket_address(inner, remote));
        self.ask(request, || {
            let priority = if backup { "a backup" } else { "an ordinary subflow" };
            format!("make the subflow of connection {token} from {local} to {remote} {priority}")
        })
    }

    fn request(&self, command: u8) -> Request {
        Request::generic(self.family, command, VERSION, NLM_F_ACK)
    }

    fn of(&self, command: u8, token: Token) -> Request {
        self.request(command).attribute(ATTR_TOKEN, &token.0.to_ne_bytes())
    }

    fn ask(&self, request: Request, operation: impl FnOnce() -> String) -> Result<(), Error> {
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
