//! Programs' SYNs, held by `bpf/redirect.bpf.c` until the gateway has connected to their destination. Then a SYN is sent on to
//! the gateway's listener, or rejected, so that the program's `connect()` succeeds or fails as without plait.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::redirect::{Destination, destination_of};
use super::syn::{Rejection, Syn};
use crate::bindings::plait_syn;

/// A program's SYN to a listener on loopback, without its data.
pub(super) struct HeldSyn {
    pub(super) syn: Syn,
    /// Where the program connects to.
    pub(super) destination: Destination,
}

impl HeldSyn {
    /// `None` if the event is malformed.
    pub(super) fn read(event: &plait_syn) -> Option<HeldSyn> {
        let headers = event.headers.get(..usize::try_from(event.length).ok()?)?.to_vec();
        Some(HeldSyn { syn: Syn::parse(headers).ok()?, destination: destination_of(&event.destination)? })
    }
}

/// Sends packets to and in the name of the gateway's listeners. Opening it takes CAP_NET_RAW.
pub(super) struct LoopbackSender {
    v4: Socket,
    /// `None` without IPv6.
    v6: Option<Socket>,
}

impl LoopbackSender {
    pub(super) fn open() -> io::Result<LoopbackSender> {
        let open = |domain| {
            // It sends packets with their IP headers.
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
            // This cannot be undone later without privileges.
            socket.bind_device(Some(b"lo"))?;
            Ok::<_, io::Error>(socket)
        };
        Ok(LoopbackSender { v4: open(Domain::IPV4)?, v6: open(Domain::IPV6).ok() })
    }

    /// Sends a SYN on to the listener, which accepts the connection.
    pub(super) fn release(&self, syn: &HeldSyn) -> io::Result<()> {
        self.send(&syn.syn.packet(), syn.syn.server.ip())
    }

    /// Rejects a SYN.
    pub(super) fn reject(&self, syn: &HeldSyn, rejection: Rejection) -> io::Result<()> {
        let packet = syn.syn.rejection(rejection).map_err(io::Error::other)?;
        self.send(&packet, syn.syn.client.ip())
    }

    fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let socket = match to {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        socket.send_to(packet, &SockAddr::from(SocketAddr::new(to, 0))).map(|_| ())
    }
}
