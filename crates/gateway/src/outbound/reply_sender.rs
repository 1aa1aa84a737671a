//! Sends packets to hosts behind an interface, or to programs of this host, in the name of their destinations: released SYNs, rejections,
//! datagrams.
//!
//! By raw sockets, which need no address of this host, and leave the ports of its services alone.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use plait_linux::packet_info::send_by;
use plait_wire::checksum::Checksum;
use plait_wire::{BuildError, ipv4, ipv6};
use socket2::{Domain, Protocol, Socket, Type};

use crate::bindings::PLAIT_MARK_RELEASED;
use crate::outbound::syn::{Rejection, Syn};

const UDP: u8 = 17;
const UDP_HEADER_LEN: usize = 8;
const IPV6_HEADER_LEN: usize = 40;

/// The fragment header of IPv6.
const FRAGMENT: u8 = 44;
const FRAGMENT_HEADER_LEN: usize = 8;

/// Payload of a fragment: every interface with IPv6 takes 1280 bytes.
const FRAGMENT_LEN: usize = 1280 - IPV6_HEADER_LEN - FRAGMENT_HEADER_LEN;

/// Opening it takes CAP_NET_RAW and CAP_NET_ADMIN.
pub(super) struct ReplySender {
    v4: Sockets,
    /// `None` without IPv6.
    v6: Option<Sockets>,
    /// Of a datagram that is sent in fragments.
    next_id: AtomicU32,
}

/// For packets with their IP headers.
struct Sockets {
    replies: Socket,
    /// Its packets have the mark of a released SYN.
    released: Socket,
}

impl Sockets {
    fn open(domain: Domain) -> io::Result<Sockets> {
        let open = || Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)));
        let released = open()?;
        released.set_mark(PLAIT_MARK_RELEASED)?;
        Ok(Sockets { replies: open()?, released })
    }
}

impl ReplySender {
    pub(super) fn open() -> io::Result<ReplySender> {
        let (v4, v6) = (Sockets::open(Domain::IPV4)?, Sockets::open(Domain::IPV6).ok());
        Ok(ReplySender { v4, v6, next_id: AtomicU32::new(1) })
    }

    fn sockets(&self, host: IpAddr) -> io::Result<&Sockets> {
        match host {
            IpAddr::V4(_) => Ok(&self.v4),
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Has a SYN received again by this interface. It is sent to the host that it is from, and turned round at the interface.
    pub(super) fn release(&self, syn: &Syn, if_index: u32) -> io::Result<()> {
        let host = syn.client.ip();
        send_by(&self.sockets(host)?.released, &syn.packet(), SocketAddr::new(host, 0), if_index)
    }

    /// Rejects a SYN.
    pub(super) fn reject(&self, syn: &Syn, rejection: Rejection, if_index: u32) -> io::Result<()> {
        let packet = syn.rejection(rejection).map_err(io::Error::other)?;
        let host = syn.client.ip();
        send_by(&self.sockets(host)?.replies, &packet, SocketAddr::new(host, 0), if_index)
    }

    /// Sends a datagram, in fragments if it is too long for the interface. With the index 0, routing decides by which.
    pub(super) fn send_datagram(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        if_index: u32,
    ) -> io::Result<()> {
        let segment = segment(from, to, payload).map_err(io::Error::other)?;
        let ends = (from.ip(), to.ip());
        let whole = packet(ends, &segment).map_err(io::Error::other)?;
        let socket = &self.sockets(to.ip())?.replies;
        let send = |packet: &[u8]| send_by(socket, packet, SocketAddr::new(to.ip(), 0), if_index);
        match send(&whole) {
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                fragments(ends, &segment, id)
                    .map_err(io::Error::other)?
                    .iter()
                    .try_for_each(|each| send(each))
            }
            sent => sent,
        }
    }
}

/// A UDP datagram (RFC 768), without the header of IP.
fn segment(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Result<Vec<u8>, BuildError> {
    let max = usize::from(u16::MAX) - UDP_HEADER_LEN;
    let too_long = |_| BuildError { what: "UDP payload", max, got: payload.len() };
    let length = u16::try_from(UDP_HEADER_LEN + payload.len()).map_err(too_long)?;
    let mut segment = Vec::with_capacity(length.into());
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(length.to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    let pseudo = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Checksum::new().with(&from.octets()).with(&to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => Checksum::new().with(&from.octets()).with(&to.octets()),
        // Both are from one packet.
        _ => Checksum::new(),
    };
    let checksum = pseudo.with(&[0, UDP]).with(&length.to_be_bytes()).with(&segment).finish();
    // Zero means that there is none.
    let checksum = if checksum == 0 { u16::MAX } else { checksum };
    segment[6..8].copy_from_slice(&checksum.to_be_bytes());
    Ok(segment)
}

/// A header of IP, and what it carries.
fn packet(ends: (IpAddr, IpAddr), segment: &[u8]) -> Result<Vec<u8>, BuildError> {
    let mut packet = Vec::with_capacity(IPV6_HEADER_LEN + segment.len());
    match ends {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4::Repr::new(from, to, UDP).emit(segment.len(), &mut packet)?
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ipv6::Repr::new(from, to, UDP).emit(segment.len(), &mut packet)?
        }
        _ => {}
    }
    packet.extend(segment);
    Ok(packet)
}

/// The same in fragments (RFC 791, section 3.2; RFC 8200, section 4.5).
fn fragments(ends: (IpAddr, IpAddr), segment: &[u8], id: u32) -> Result<Vec<Vec<u8>>, BuildError> {
    let count = segment.len().div_ceil(FRAGMENT_LEN);
    let each = segment.chunks(FRAGMENT_LEN).enumerate().map(|(number, part)| {
        // Units of 8 bytes: below 2^13.
        let offset = (number * FRAGMENT_LEN / 8) as u16;
        let has_more = number + 1 < count;
        let mut packet = Vec::new();
        match ends {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ipv4::Repr::new(from, to, UDP).emit(part.len(), &mut packet)?;
                // The kernel replaces an id of 0, and the checksum.
                let id = (id as u16).max(1);
                packet[4..6].copy_from_slice(&id.to_be_bytes());
                packet[6..8].copy_from_slice(&((u16::from(has_more) << 13) | offset).to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let length = FRAGMENT_HEADER_LEN + part.len();
                ipv6::Repr::new(from, to, FRAGMENT).emit(length, &mut packet)?;
                packet.extend([UDP, 0]);
                packet.extend(((offset << 3) | u16::from(has_more)).to_be_bytes());
                packet.extend(id.to_be_bytes());
            }
            _ => {}
        }
        packet.extend(part);
        Ok::<_, BuildError>(packet)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_have_valid_checksums() {
        for (from, to, ip_len) in
            [("192.0.2.1:53", "10.1.0.2:4000", 20), ("[2001:db8::1]:53", "[fd00::2]:4000", 40)]
        {
            let (from, to): (SocketAddr, SocketAddr) =
                (from.parse().expect("an address"), to.parse().expect("an address"));
            let datagram = segment(from, to, b"odd").expect("it fits");
            let packet = packet((from.ip(), to.ip()), &datagram).expect("it fits");
            let segment = &packet[ip_len..];
            assert_eq!(segment[..6], [0, 53, 15, 160, 0, 11]);
            let addresses = match (from.ip(), to.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => [from.octets(), to.octets()].concat(),
                (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
                _ => unreachable!("one family"),
            };
            let sum = Checksum::new().with(&addresses).with(&[0, UDP, 0, 11]).with(segment).finish();
            assert_eq!(sum, 0);
        }
    }

    #[test]
    fn fragments_are_the_datagram() {
        for (from, to, header) in
            [("192.0.2.1:9", "10.1.0.2:4000", 20), ("[2001:db8::1]:9", "[fd00::2]:4000", 48)]
        {
            let (from, to): (SocketAddr, SocketAddr) =
                (from.parse().expect("an address"), to.parse().expect("an address"));
            let datagram = segment(from, to, &[7; 3000]).expect("it fits");
            let fragments = fragments((from.ip(), to.ip()), &datagram, 5).expect("it fits");
            assert_eq!(fragments.len(), 3);
            assert_eq!(
                fragments.iter().flat_map(|each| each[header..].to_vec()).collect::<Vec<_>>(),
                datagram
            );
            let offsets = fragments.iter().map(|each| match from {
                SocketAddr::V4(_) => (each[6] & 0x20 != 0, u16::from_be_bytes([each[6] & 0x1f, each[7]]) * 8),
                SocketAddr::V6(_) => (each[43] & 1 != 0, u16::from_be_bytes([each[42], each[43] & 0xf8])),
            });
            assert_eq!(offsets.collect::<Vec<_>>(), [(true, 0), (true, 1232), (false, 2464)]);
        }
    }
}
