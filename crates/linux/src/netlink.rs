//! Netlink sockets (`netlink(7)`): requests to the kernel, and multicast messages from it.
//!
//! The MPTCP path manager uses generic netlink; links, addresses and routes use the routing family. Messages are built
//! and parsed here, as no library supports the path manager's commands and events. A socket belongs to the network
//! namespace of the thread that opened it.

pub(crate) mod message;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, netlink::SocketAddrNetlink, sockopt::Timeout};

use crate::bytes::without_nul;
use crate::sockopt;
use message::{Message, Messages, NLM_F_ACK, NLM_F_DUMP, Outcome, Request};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused the request.
    #[error("{errno}{}", .explanation.as_ref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused {
        /// The error number.
        errno: io::Error,
        /// The kernel's explanation, if it gave one.
        explanation: Option<String>,
    },
    /// The netlink socket failed.
    #[error("the netlink socket failed: {0}")]
    Socket(io::Error),
    /// The reply of the kernel is not the expected one.
    #[error("expected {expected} from the kernel, got another reply")]
    Unexpected {
        /// The expected reply.
        expected: &'static str,
    },
}

impl Error {
    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Refused { errno, .. } | Error::Socket(errno) => errno.raw_os_error(),
            Error::Unexpected { .. } => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Socket(error)
    }
}

/// A socket for requests and replies, one request at a time.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket of the routing family.
    pub(crate) fn route() -> io::Result<Socket> {
        // NETLINK_ROUTE is protocol 0.
        Socket::open(None)
    }

    /// Opens a generic netlink socket.
    pub(crate) fn generic() -> io::Result<Socket> {
        Socket::open(Some(rustix::net::netlink::GENERIC))
    }

    /// Opens a socket of the socket diagnostics family.
    pub(crate) fn diag() -> io::Result<Socket> {
        Socket::open(Some(rustix::net::netlink::SOCK_DIAG))
    }

    fn open(protocol: Option<rustix::net::Protocol>) -> io::Result<Socket> {
        let fd = rustix::net::socket_with(
            rustix::net::AddressFamily::NETLINK,
            rustix::net::SocketType::RAW,
            rustix::net::SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        // Both only improve error messages, so kernels without them are supported too.
        let _ = sockopt::set(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, &1u32.to_ne_bytes());
        let _ = sockopt::set(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, &1u32.to_ne_bytes());
        rustix::net::sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(REPLY_TIMEOUT))?;
        Ok(Socket { fd, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends a request, which must have `NLM_F_ACK` set, and waits for its outcome. Calls `each` with every message of
    /// the reply.
    pub(crate) fn request(&mut self, request: Request, mut each: impl FnMut(&Message)) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let kernel = SocketAddrNetlink::new(0, 0);
        let bytes = request.finish(self.sequence);
        rustix::net::sendto(&self.fd, &bytes, SendFlags::empty(), &kernel).map_err(io::Error::from)?;
        let mut interrupted = false;
        loop {
            let length = receive(self.fd.as_fd(), &mut self.buffer)?;
            for message in Messages(&self.buffer[..length]) {
                // A late reply to an abandoned request.
                if message.sequence != self.sequence {
                    continue;
                }
                interrupted |= message.interrupted();
                match message.outcome() {
                    None => each(&message),
                    Some(Outcome::Done) if interrupted => {
                        return Err(io::Error::from_raw_os_error(libc::EINTR).into());
                    }
                    Some(Outcome::Done) => return Ok(()),
                    Some(Outcome::Failed(errno, explanation)) => {
                        let errno = io::Error::from_raw_os_error(errno);
                        return Err(Error::Refused { errno, explanation });
                    }
                }
            }
        }
    }

    /// Sends a dump request and collects the results of `each` for the messages of the reply. Retries if the data
    /// changed during the dump.
    pub(crate) fn dump<T>(
        &mut self,
        request: impl Fn(u16) -> Request,
        each: impl Fn(&Message) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let mut attempts = 0;
        loop {
            let mut list = Vec::new();
            match self.request(request(NLM_F_ACK | NLM_F_DUMP), |message| list.extend(each(message))) {
                Err(error) if error.errno() == Some(libc::EINTR) && attempts < 8 => attempts += 1,
                Err(error) => return Err(error),
                Ok(()) => return Ok(list),
            }
        }
    }
}

/// A non-blocking socket that receives multicast messages of the kernel.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Listener {
    /// Joins a generic netlink group.
    pub(crate) fn generic(group: u32) -> io::Result<Listener> {
        Listener::join(Socket::generic()?, &[group])
    }

    /// Joins groups of the routing family.
    pub(crate) fn route(groups: &[u32]) -> io::Result<Listener> {
        Listener::join(Socket::route()?, groups)
    }

    /// Joins socket diagnostics groups.
    pub(crate) fn diag(groups: &[u32]) -> io::Result<Listener> {
        Listener::join(Socket::diag()?, groups)
    }

    fn join(socket: Socket, groups: &[u32]) -> io::Result<Listener> {
        let Socket { fd, buffer, .. } = socket;
        rustix::io::ioctl_fionbio(&fd, true)?;
        // Large enough for bursts; root may exceed the limit of SO_RCVBUF.
        if sockopt::set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &EVENTS_BUFFER.to_ne_bytes()).is_err() {
            sockopt::set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &EVENTS_BUFFER.to_ne_bytes())?;
        }
        for group in groups {
            sockopt::set(&fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group.to_ne_bytes())?;
        }
        Ok(Listener { fd, buffer })
    }

    /// Returns the messages of the next datagram, if one is queued. `ENOBUFS` means that messages were lost.
    pub(crate) fn try_next(&mut self) -> io::Result<Option<Messages<'_>>> {
        match receive(self.fd.as_fd(), &mut self.buffer) {
            Ok(length) => Ok(Some(Messages(&self.buffer[..length]))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A generic netlink family and its multicast groups.
#[derive(Debug)]
pub(crate) struct Family {
    /// The message type of the family.
    pub(crate) id: u16,
    groups: Vec<(String, u32)>,
}

impl Family {
    /// Looks up a family by name; `None` if the kernel does not have it.
    pub(crate) fn find(socket: &mut Socket, name: &str) -> Result<Option<Family>, Error> {
        let value = [name.as_bytes(), &[0]].concat();
        let request = Request::generic(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 1, NLM_F_ACK)
            .attribute(CTRL_ATTR_FAMILY_NAME, &value);
        let mut family = None;
        let outcome = socket.request(request, |message| {
            let attributes = message.attributes(4);
            let groups = attributes.nested(CTRL_ATTR_MCAST_GROUPS).filter_map(|(_, group)| {
                let group = message::Attributes(group);
                let name = group.find(CTRL_ATTR_MCAST_GRP_NAME)?;
                let name = String::from_utf8_lossy(without_nul(name)).into_owned();
                Some((name, group.u32(CTRL_ATTR_MCAST_GRP_ID)?))
            });
            family = attributes.u16(CTRL_ATTR_FAMILY_ID).map(|id| Family { id, groups: groups.collect() });
        });
        match outcome {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(family),
        }
    }

    /// The id of a multicast group.
    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(found, _)| found == name).map(|(_, id)| *id)
    }
}

/// Receives a datagram. A truncated one is an error: the buffer fits all that the kernel sends.
fn receive(fd: BorrowedFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (_, length) = rustix::io::retry_on_intr(|| rustix::net::recv(fd, &mut *buffer, RecvFlags::TRUNC))?;
    if length > buffer.len() {
        let text = format!("expected a netlink datagram of at most {} bytes, got {length}", buffer.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(length)
}

const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Twice the maximum size of a dump's datagrams.
const BUFFER: usize = 64 << 10;
const EVENTS_BUFFER: i32 = 4 << 20;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;
