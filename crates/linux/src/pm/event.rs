//! Events of the path manager.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use super::Error;
use crate::bytes::{array_at, ip_address, u8_at, unmapped};
use crate::mptcp::Token;
use crate::netlink::message::{Attributes, Message};
use crate::netlink::{Family, Listener, Socket};

/// An event of a connection, a subflow or a listener.
///
/// Attributes missing from an event (from no known kernel) are 0 or the unspecified address. IPv4-mapped addresses are
/// converted to IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A connection was created: MP_CAPABLE was exchanged.
    Created(Connection),
    /// A connection is established: additional subflows can be created.
    Established(Connection),
    /// A connection was closed.
    Closed {
        /// The connection.
        token: Token,
    },
    /// The peer announced an address (ADD_ADDR).
    Announced {
        /// The connection.
        token: Token,
        /// The address identifier.
        remote_id: u8,
        /// The address, with port 0 if the announcement had none.
        address: SocketAddr,
    },
    /// The peer withdrew an address (REMOVE_ADDR).
    Removed {
        /// The connection.
        token: Token,
        /// The address identifier.
        remote_id: u8,
    },
    /// An additional subflow is established.
    SubflowEstablished(Subflow),
    /// A subflow was closed.
    SubflowClosed(Subflow),
    /// The backup flag of a subflow changed (MP_PRIO).
    SubflowPriority(Subflow),
    /// A listening socket for subflows to an announced address was created (kernel 6.2).
    ListenerCreated(SocketAddr),
    /// Such a listening socket was closed (kernel 6.2).
    ListenerClosed(SocketAddr),
    /// The receive buffer overflowed: events at this point were lost.
    Lost,
}

/// The connection described by an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The local token.
    pub token: Token,
    /// Local address of the initial subflow.
    pub local: SocketAddr,
    /// Peer's address of the initial subflow.
    pub remote: SocketAddr,
    /// Whether the peer initiated the connection.
    pub server_side: bool,
    /// Whether the peer rejects additional subflows to the address of the initial one (the C flag of MP_CAPABLE).
    pub deny_join_id0: bool,
}

/// The subflow described by an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subflow {
    /// The connection.
    pub token: Token,
    /// Local address.
    pub local: SocketAddr,
    /// Peer's address.
    pub remote: SocketAddr,
    /// Identifier of the local address.
    pub local_id: u8,
    /// Identifier of the peer's address.
    pub remote_id: u8,
    /// Whether it is a backup.
    pub backup: bool,
    /// Index of the interface it is bound to; 0: none.
    pub if_index: u32,
    /// The error number, if it failed.
    pub error: Option<u8>,
    /// The reason code, if the peer reset it (MP_TCPRST; RFC 8684, section 3.6).
    pub reset_reason: Option<u32>,
}

/// A subscription to the events of a network namespace.
///
/// Never blocks: wait until [`AsFd::as_fd`] is readable, then call [`try_next`](Events::try_next) until it returns
/// `None`.
#[derive(Debug)]
pub struct Events {
    listener: Listener,
    waiting: VecDeque<Event>,
}

impl Events {
    /// Subscribes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::Missing`] without MPTCP, [`Error::Refused`] without `CAP_NET_ADMIN`.
    pub fn open() -> Result<Events, Error> {
        let refused = |reason: crate::netlink::Error| Error::Refused {
            operation: "subscribe to its events".into(),
            reason,
        };
        let mut socket = Socket::generic().map_err(|error| refused(error.into()))?;
        let family = Family::find(&mut socket, super::FAMILY).map_err(refused)?.ok_or(Error::Missing)?;
        let group = family.group(EVENTS_GROUP).ok_or(Error::Missing)?;
        let listener = Listener::generic(group).map_err(|error| refused(error.into()))?;
        Ok(Events { listener, waiting: VecDeque::new() })
    }

    /// Returns the next event, if one is queued. Skips events of unknown types.
    ///
    /// # Errors
    /// The socket failed permanently.
    pub fn try_next(&mut self) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            match self.listener.try_next() {
                Ok(Some(messages)) => {
                    self.waiting.extend(messages.filter_map(|message| Event::read(&message)))
                }
                Ok(None) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Some(Event::Lost)),
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Event {
    /// Parses an event; `None` if its type is unknown or its token is missing.
    fn read(message: &Message) -> Option<Event> {
        let attributes = message.attributes(4);
        let token = attributes.u32(TOKEN).map(Token);
        let remote_id = attributes.u8(REMOTE_ID).unwrap_or(0);
        Some(match u8_at(message.payload, 0)? {
            1 => Event::Created(Connection::read(attributes)?),
            2 => Event::Established(Connection::read(attributes)?),
            3 => Event::Closed { token: token? },
            6 => Event::Announced { token: token?, remote_id, address: remote(attributes) },
            7 => Event::Removed { token: token?, remote_id },
            10 => Event::SubflowEstablished(Subflow::read(attributes)?),
            11 => Event::SubflowClosed(Subflow::read(attributes)?),
            13 => Event::SubflowPriority(Subflow::read(attributes)?),
            15 => Event::ListenerCreated(local(attributes)),
            16 => Event::ListenerClosed(local(attributes)),
            _ => return None,
        })
    }
}

impl Connection {
    fn read(attributes: Attributes) -> Option<Connection> {
        let flags = attributes.u16(FLAGS).unwrap_or(0);
        Some(Connection {
            token: Token(attributes.u32(TOKEN)?),
            local: local(attributes),
            remote: remote(attributes),
            // An attribute on older kernels, a flag on newer ones.
            server_side: attributes.u8(SERVER_SIDE) == Some(1) || flags & 2 != 0,
            deny_join_id0: flags & 1 != 0,
        })
    }
}

impl Subflow {
    fn read(attributes: Attributes) -> Option<Subflow> {
        Some(Subflow {
            token: Token(attributes.u32(TOKEN)?),
            local: local(attributes),
            remote: remote(attributes),
            local_id: attributes.u8(LOCAL_ID).unwrap_or(0),
            remote_id: attributes.u8(REMOTE_ID).unwrap_or(0),
            backup: attributes.u8(BACKUP).is_some_and(|value| value != 0),
            if_index: attributes.u32(IF_INDEX).unwrap_or(0),
            error: attributes.u8(ERROR),
            reset_reason: attributes.u32(RESET_REASON),
        })
    }
}

fn local(attributes: Attributes) -> SocketAddr {
    address(attributes, [SADDR4, SADDR6], SPORT)
}

fn remote(attributes: Attributes) -> SocketAddr {
    address(attributes, [DADDR4, DADDR6], DPORT)
}

fn address(attributes: Attributes, kinds: [u16; 2], port: u16) -> SocketAddr {
    let ip = kinds.into_iter().find_map(|kind| ip_address(attributes.find(kind)?));
    let port = attributes.find(port).and_then(|bytes| array_at(bytes, 0)).map_or(0, u16::from_be_bytes);
    unmapped(SocketAddr::new(ip.unwrap_or(IpAddr::from([0; 4])), port))
}

const EVENTS_GROUP: &str = "mptcp_pm_events";
const TOKEN: u16 = 1;
const LOCAL_ID: u16 = 3;
const REMOTE_ID: u16 = 4;
const SADDR4: u16 = 5;
const SADDR6: u16 = 6;
const DADDR4: u16 = 7;
const DADDR6: u16 = 8;
const SPORT: u16 = 9;
const DPORT: u16 = 10;
const BACKUP: u16 = 11;
const ERROR: u16 = 12;
const FLAGS: u16 = 13;
const IF_INDEX: u16 = 15;
const RESET_REASON: u16 = 16;
const SERVER_SIDE: u16 = 18;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_messages_do_not_panic(command: u8, bytes: Vec<u8>) {
            let payload = [&[command, 1, 0, 0][..], &bytes].concat();
            let _ = Event::read(&Message { kind: 30, flags: 0, sequence: 0, payload: &payload });
        }
    }
}
