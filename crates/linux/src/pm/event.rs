//! Events of the path manager.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::Error;
use crate::bytes::{array_at, ip_address, u8_at, unmapped};
use crate::mptcp::Token;
use crate::netlink::message::{Attributes, Message};
use crate::netlink::{Family, Listener, Socket};

/// What the path manager reports of a connection's paths.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The peer announced an address (ADD_ADDR).
    Announced {
        /// The connection.
        token: Token,
        /// The address identifier.
        remote_id: u8,
        /// The address, with port 0 if the announcement had none; IPv4 if it was IPv4-mapped.
        address: SocketAddr,
    },
    /// The peer withdrew an address (REMOVE_ADDR).
    Removed {
        /// The connection.
        token: Token,
        /// The address identifier.
        remote_id: u8,
    },
    /// A subflow was closed.
    SubflowClosed {
        /// The connection.
        token: Token,
        /// Index of the interface that it was bound to; 0 for none.
        if_index: u32,
        /// Whether the peer reset it, or rejected it.
        by_peer: bool,
    },
    /// The receive buffer overflowed: events at this point were lost.
    Lost,
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

    /// Returns the next event, if one is queued. Skips events of other types.
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
    /// Parses an event; `None` if it is of another type or incomplete.
    fn read(message: &Message) -> Option<Event> {
        let attributes = message.attributes(4);
        let token = Token(attributes.u32(TOKEN)?);
        let remote_id = attributes.u8(REMOTE_ID).unwrap_or(0);
        match u8_at(message.payload, 0)? {
            ANNOUNCED => Some(Event::Announced { token, remote_id, address: remote(attributes)? }),
            REMOVED => Some(Event::Removed { token, remote_id }),
            SUB_CLOSED => {
                let error = attributes.u8(ERROR).map(i32::from);
                let by_peer = matches!(error, Some(libc::ECONNRESET | libc::ECONNREFUSED | libc::EPIPE));
                let if_index = attributes.u32(IF_INDEX).unwrap_or(0);
                Some(Event::SubflowClosed { token, if_index, by_peer })
            }
            _ => None,
        }
    }
}

fn remote(attributes: Attributes) -> Option<SocketAddr> {
    let ip = ip_address(attributes.find(DADDR4).or_else(|| attributes.find(DADDR6))?)?;
    let port = attributes.find(DPORT).and_then(|bytes| array_at(bytes, 0)).map_or(0, u16::from_be_bytes);
    Some(unmapped(SocketAddr::new(ip, port)))
}

const EVENTS_GROUP: &str = "mptcp_pm_events";
const ANNOUNCED: u8 = 6;
const REMOVED: u8 = 7;
const SUB_CLOSED: u8 = 11;
const TOKEN: u16 = 1;
const REMOTE_ID: u16 = 4;
const DADDR4: u16 = 7;
const DADDR6: u16 = 8;
const DPORT: u16 = 10;
const ERROR: u16 = 12;
const IF_INDEX: u16 = 15;

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
