//! Where datagrams were sent to (`IP_ORIGDSTADDR`, `IPV6_ORIGDSTADDR`), and by which interface (`IP_PKTINFO`, `IPV6_PKTINFO`).

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use socket2::{MsgHdr, MsgHdrMut, SockAddr, SockRef, Socket};

use crate::bytes::{array_at, socket_address, u32_at};
use crate::sockopt;

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length, in bytes.
    pub length: usize,
    /// The sender.
    pub from: SocketAddr,
    /// Where it was sent to, which need not be an address of this host, nor the port of the socket.
    pub to: SocketAddr,
    /// Index of the interface that it arrived by.
    pub if_index: u32,
}

/// Makes a datagram socket tell with each datagram where it was sent to.
///
/// # Errors
/// The kernel's reason.
pub fn enable(socket: impl AsFd, is_ipv4: bool) -> io::Result<()> {
    let (level, options) = match is_ipv4 {
        true => (libc::IPPROTO_IP, [libc::IP_PKTINFO, libc::IP_RECVORIGDSTADDR]),
        false => (libc::IPPROTO_IPV6, [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVORIGDSTADDR]),
    };
    let socket = socket.as_fd();
    options.iter().try_for_each(|option| sockopt::set(socket, level, *option, &1i32.to_ne_bytes()))
}

/// Receives a datagram by a socket for which this is [enabled](enable).
///
/// # Errors
/// The kernel's reason; a datagram without the information is invalid.
pub fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut from = SockAddr::from(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], 0)));
    let mut control = [MaybeUninit::new(0); 128];
    let (length, control_length) = {
        // SAFETY: what the kernel writes is initialized, and MaybeUninit<u8> has the layout of u8.
        let bytes = unsafe { &mut *(&raw mut *buffer as *mut [MaybeUninit<u8>]) };
        let mut buffers = [socket2::MaybeUninitSlice::new(bytes)];
        let mut header =
            MsgHdrMut::new().with_addr(&mut from).with_buffers(&mut buffers).with_control(&mut control);
        let length = SockRef::from(socket).recvmsg(&mut header, 0)?;
        (length, header.control_len())
    };
    let control: Vec<u8> = control[..control_length.min(control.len())]
        .iter()
        // SAFETY: all were initialized.
        .map(|byte| unsafe { byte.assume_init() })
        .collect();
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "expected the destination of a datagram");
    let from = from.as_socket().ok_or_else(missing)?;
    let (to, if_index) = destination(&control).ok_or_else(missing)?;
    Ok(Received { length, from, to, if_index })
}

/// Sends a packet by this interface.
///
/// # Errors
/// The kernel's reason.
pub fn send_by(socket: &Socket, packet: &[u8], to: SocketAddr, if_index: u32) -> io::Result<()> {
    let control = match to {
        SocketAddr::V4(_) => {
            // `struct in_pktinfo`
            let mut information = [0; 12];
            information[..4].copy_from_slice(&if_index.to_ne_bytes());
            control_message(libc::IPPROTO_IP, libc::IP_PKTINFO, &information)
        }
        SocketAddr::V6(_) => {
            // `struct in6_pktinfo`
            let mut information = [0; 20];
            information[16..].copy_from_slice(&if_index.to_ne_bytes());
            control_message(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &information)
        }
    };
    let address = SockAddr::from(to);
    let buffers = [io::IoSlice::new(packet)];
    let message = MsgHdr::new().with_addr(&address).with_buffers(&buffers).with_control(&control);
    socket.sendmsg(&message, libc::MSG_DONTWAIT).map(|_| ())
}

/// The destination and the interface of a datagram's control messages.
fn destination(mut control: &[u8]) -> Option<(SocketAddr, u32)> {
    let (mut to, mut if_index) = (None, None);
    loop {
        if let Some(both) = to.zip(if_index) {
            return Some(both);
        }
        let length = usize::from_ne_bytes(array_at(control, 0)?);
        let kind = (u32_at(control, WORD)? as i32, u32_at(control, WORD + 4)? as i32);
        let data = control.get(HEADER..length)?;
        match kind {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => if_index = Some(u32_at(data, 0)?),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => if_index = Some(u32_at(data, 16)?),
            (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR) | (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR) => {
                to = Some(socket_address(data)?)
            }
            _ => {}
        }
        // The last one need not be padded.
        let next = length.checked_next_multiple_of(WORD)?.max(HEADER);
        control = control.get(next..).unwrap_or_default();
    }
}

/// A control message (`cmsg(3)`).
fn control_message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut message = (HEADER + data.len()).to_ne_bytes().to_vec();
    message.extend(level.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(data);
    message.resize(message.len().next_multiple_of(WORD), 0);
    message
}

const WORD: usize = size_of::<usize>();
/// `struct cmsghdr`
const HEADER: usize = (WORD + 8).next_multiple_of(WORD);

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn datagrams_have_their_destination() {
        for to in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let any: IpAddr =
                if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let Ok(socket) = UdpSocket::bind((any, 0)) else { continue };
            enable(&socket, to.is_ipv4()).expect("an option of every kernel");
            let port = socket.local_addr().expect("it is bound").port();
            let sender = UdpSocket::bind((to, 0)).expect("loopback");
            sender.send_to(b"query", (to, port)).expect("it is sent");
            let mut buffer = [0; 16];
            let received = receive(&socket, &mut buffer).expect("a datagram");
            assert_eq!((&buffer[..received.length], received.to), (&b"query"[..], SocketAddr::new(to, port)));
            assert_eq!(Some(received.from), sender.local_addr().ok());
            assert_eq!(received.if_index, 1, "loopback");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_control_messages_do_not_panic(control: Vec<u8>) {
            let _ = destination(&control);
        }
    }
}
