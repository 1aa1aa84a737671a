//! Programs' SYNs, held by `bpf/redirect.bpf.c` until the gateway has connected to their destination. Then a SYN is sent on to
//! the gateway's listener, or rejected, so that the program's `connect()` succeeds or fails as without plait.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use plait_wire::checksum::{Checksum, PseudoHeader};
use plait_wire::tcp::{Flags, Packet, Repr, Seq};
use plait_wire::{BuildError, ParseError, ipv4, ipv6, protocol};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::open::OpenError;
use super::redirect::{Destination, destination_of};
use crate::bindings::{plait_client, plait_syn};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The TCP checksum within the header.
const TCP_CHECKSUM: std::ops::Range<usize> = 16..18;

/// A program's SYN, without its data.
pub(super) struct HeldSyn {
    pub(super) client: SocketAddr,
    pub(super) destination: Destination,
    /// The headers of IP and TCP.
    headers: Vec<u8>,
    ip_header_len: usize,
    /// The address of the listener on loopback.
    listener: SocketAddr,
    seq: Seq,
}

impl HeldSyn {
    /// `None` if the event is malformed.
    pub(super) fn read(event: &plait_syn) -> Option<HeldSyn> {
        let headers = event.headers.get(..usize::try_from(event.length).ok()?)?.to_vec();
        let client = client_of(&event.client);
        let (ip_header_len, listener, seq) = parse(&headers, client.is_ipv4()).ok()?;
        Some(HeldSyn {
            client,
            destination: destination_of(&event.destination)?,
            headers,
            ip_header_len,
            listener,
            seq,
        })
    }

    /// The SYN as a packet.
    fn packet(&self) -> Vec<u8> {
        let mut packet = self.headers.clone();
        let tcp_len = packet.len() - self.ip_header_len;
        let (field, length) = match self.client {
            SocketAddr::V4(_) => (2..4, packet.len()),
            SocketAddr::V6(_) => (4..6, tcp_len),
        };
        // At most 100 bytes; the kernel computes the checksum of IPv4's header.
        packet[field].copy_from_slice(&(length as u16).to_be_bytes());
        let tcp = &mut packet[self.ip_header_len..];
        tcp[TCP_CHECKSUM].fill(0);
        if let Some(pseudo) = PseudoHeader::new(self.client.ip(), self.listener.ip()) {
            let checksum = pseudo.checksum(tcp_len as u32).with(tcp).finish();
            tcp[TCP_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        }
        packet
    }

    /// The listener's answer that makes connect() fail.
    fn rejection(&self, rejection: Rejection) -> Result<Vec<u8>, BuildError> {
        let payload = match (rejection, PseudoHeader::new(self.listener.ip(), self.client.ip())) {
            (Rejection::Reset, Some(pseudo)) => {
                let mut segment = Vec::new();
                let reset = Repr {
                    source_port: self.listener.port(),
                    destination_port: self.client.port(),
                    ack: self.seq.advance(1),
                    flags: Flags::RST | Flags::ACK,
                    ..Repr::default()
                };
                reset.emit(pseudo, &[], &mut segment)?;
                segment
            }
            _ => self.icmp(rejection),
        };
        let mut packet = Vec::new();
        match (self.listener.ip(), self.client.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let protocol = if rejection == Rejection::Reset { protocol::TCP } else { ICMP };
                ipv4::Repr::new(from, to, protocol).emit(payload.len(), &mut packet)?;
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let protocol = if rejection == Rejection::Reset { protocol::TCP } else { ICMPV6 };
                ipv6::Repr::new(from, to, protocol).emit(payload.len(), &mut packet)?;
            }
            // Both are from one packet.
            _ => {}
        }
        packet.extend(payload);
        Ok(packet)
    }

    /// "Destination unreachable" with the headers (RFC 792, RFC 4443, section 3.1).
    fn icmp(&self, rejection: Rejection) -> Vec<u8> {
        let is_network = rejection == Rejection::NetworkUnreachable;
        let (kind, code, pseudo) = match (self.listener.ip(), self.client.ip()) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let length = (8 + self.headers.len()) as u32;
                let pseudo = Checksum::new().with(&from.octets()).with(&to.octets());
                let pseudo = pseudo.with(&length.to_be_bytes()).with(&[0, 0, 0, ICMPV6]);
                (1, if is_network { 0 } else { 3 }, pseudo)
            }
            _ => (3, if is_network { 0 } else { 1 }, Checksum::new()),
        };
        let mut message = [&[kind, code, 0, 0, 0, 0, 0, 0][..], &self.headers].concat();
        let checksum = pseudo.with(&message).finish();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        message
    }
}

/// The length of the IP header, the listener's address, and the sequence number.
fn parse(headers: &[u8], is_ipv4: bool) -> Result<(usize, SocketAddr, Seq), ParseError> {
    let (length, listener): (usize, IpAddr) = if is_ipv4 {
        let ip = ipv4::Packet::parse(headers)?;
        (ip.header_len(), ip.destination().into())
    } else {
        (40, ipv6_destination(headers)?.into())
    };
    let tcp = Packet::parse(headers.get(length..).unwrap_or_default())?;
    Ok((length, SocketAddr::new(listener, tcp.destination_port()), tcp.seq()))
}

fn ipv6_destination(headers: &[u8]) -> Result<Ipv6Addr, ParseError> {
    let bytes: Option<[u8; 16]> = headers.get(24..40).and_then(|bytes| bytes.try_into().ok());
    let truncated = ParseError::Truncated { what: "IPv6 header", expected: 40, got: headers.len() };
    bytes.map(Ipv6Addr::from).ok_or(truncated)
}

pub(super) fn client_of(client: &plait_client) -> SocketAddr {
    let ip = match client.ipv6 {
        0 => IpAddr::V4(Ipv4Addr::from(client.address[0].to_ne_bytes())),
        _ => IpAddr::V6(Ipv6Addr::from(bytemuck::cast::<_, [u8; 16]>(client.address))),
    };
    SocketAddr::new(ip, client.port)
}

/// How connect() fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// `ECONNREFUSED`.
    Reset,
    /// `ENETUNREACH`.
    NetworkUnreachable,
    /// `EHOSTUNREACH`.
    HostUnreachable,
}

impl Rejection {
    /// As the destination's error; `None` if it does not answer, as the SYN is not answered then.
    pub(super) fn of(error: &OpenError) -> Option<Rejection> {
        let OpenError::Connect(error) = error else { return Some(Rejection::Reset) };
        match error.kind() {
            io::ErrorKind::TimedOut => None,
            io::ErrorKind::NetworkUnreachable => Some(Rejection::NetworkUnreachable),
            io::ErrorKind::HostUnreachable => Some(Rejection::HostUnreachable),
            _ => Some(Rejection::Reset),
        }
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
        self.send(&syn.packet(), syn.listener.ip())
    }

    /// Rejects a SYN.
    pub(super) fn reject(&self, syn: &HeldSyn, rejection: Rejection) -> io::Result<()> {
        let packet = syn.rejection(rejection).map_err(io::Error::other)?;
        self.send(&packet, syn.client.ip())
    }

    fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let socket = match to {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        socket.send_to(packet, &SockAddr::from(SocketAddr::new(to, 0))).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::plait_destination;

    const CLIENT: u16 = 40_000;
    const LISTENER: u16 = 5_000;

    /// The event of a SYN to a listener on loopback, whose length and checksum are those of a longer one, with data.
    fn event(is_ipv4: bool) -> plait_syn {
        let loopback: IpAddr = if is_ipv4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        let pseudo = PseudoHeader::new(loopback, loopback).expect("one family");
        let syn = Repr {
            source_port: CLIENT,
            destination_port: LISTENER,
            seq: Seq(0xffff_ffff),
            flags: Flags::SYN,
            ..Repr::default()
        };
        let mut segment = Vec::new();
        syn.emit(pseudo, b"early data", &mut segment).expect("it fits");
        let mut packet = Vec::new();
        match loopback {
            IpAddr::V4(ip) => ipv4::Repr::new(ip, ip, protocol::TCP).emit(segment.len(), &mut packet),
            IpAddr::V6(ip) => ipv6::Repr::new(ip, ip, protocol::TCP).emit(segment.len(), &mut packet),
        }
        .expect("it fits");
        packet.extend(&segment[..20]);
        let address = match loopback {
            IpAddr::V4(ip) => [u32::from_ne_bytes(ip.octets()), 0, 0, 0],
            IpAddr::V6(ip) => bytemuck::cast(ip.octets()),
        };
        let mut headers = [0; 100];
        headers[..packet.len()].copy_from_slice(&packet);
        plait_syn {
            client: plait_client { address, port: CLIENT, ipv6: u16::from(!is_ipv4) },
            destination: plait_destination {
                address: [u32::from_ne_bytes([192, 0, 2, 7]), 0, 0, 0],
                port: 443u16.to_be(),
                family: libc::AF_INET as u16,
                interface: 0,
                held: 0,
            },
            length: packet.len() as u32,
            headers,
        }
    }

    /// The protocol and the payload of a packet between loopback addresses.
    fn payload(packet: &[u8], is_ipv4: bool) -> (u8, Vec<u8>) {
        if is_ipv4 {
            let ip = ipv4::Packet::parse(packet).expect("IPv4");
            assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
            (ip.protocol(), ip.payload().to_vec())
        } else {
            assert_eq!(usize::from(u16::from_be_bytes([packet[4], packet[5]])), packet.len() - 40);
            (packet[6], packet[40..].to_vec())
        }
    }

    #[test]
    fn released_syn_is_the_programs_without_its_data() {
        for is_ipv4 in [true, false] {
            let event = event(is_ipv4);
            let syn = HeldSyn::read(&event).expect("a SYN");
            assert_eq!(syn.destination.address, "192.0.2.7:443".parse().expect("an address"));
            assert_eq!((syn.client.port(), syn.listener.port()), (CLIENT, LISTENER));
            let (kind, segment) = payload(&syn.packet(), is_ipv4);
            assert_eq!((kind, segment.len()), (protocol::TCP, 20));
            let tcp = Packet::parse(&segment).expect("a segment");
            let pseudo = PseudoHeader::new(syn.client.ip(), syn.listener.ip()).expect("one family");
            assert!(tcp.checksum_is_right(pseudo));
            assert_eq!((tcp.flags(), tcp.seq()), (Flags::SYN, Seq(0xffff_ffff)));
        }
    }

    #[test]
    fn rejections_are_resets_and_icmp_errors() {
        for is_ipv4 in [true, false] {
            let syn = HeldSyn::read(&event(is_ipv4)).expect("a SYN");
            let pseudo = PseudoHeader::new(syn.listener.ip(), syn.client.ip()).expect("one family");
            let (kind, segment) = payload(&syn.rejection(Rejection::Reset).expect("it fits"), is_ipv4);
            let reset = Packet::parse(&segment).expect("a segment");
            assert!(kind == protocol::TCP && reset.checksum_is_right(pseudo));
            assert_eq!((reset.flags(), reset.ack()), (Flags::RST | Flags::ACK, Seq(0)));
            assert_eq!((reset.source_port(), reset.destination_port()), (LISTENER, CLIENT));

            for (rejection, v4, v6) in [
                (Rejection::HostUnreachable, [3, 1], [1, 3]),
                (Rejection::NetworkUnreachable, [3, 0], [1, 0]),
            ] {
                let (kind, message) = payload(&syn.rejection(rejection).expect("it fits"), is_ipv4);
                assert_eq!((kind, &message[..2]), if is_ipv4 { (ICMP, &v4[..]) } else { (ICMPV6, &v6[..]) });
                assert_eq!(&message[8..], syn.headers);
            }
        }
    }

    #[test]
    fn malformed_events_are_ignored() {
        for length in [0, 20, 39, 101, u32::MAX] {
            assert!(HeldSyn::read(&plait_syn { length, ..event(true) }).is_none(), "{length}");
        }
        assert!(HeldSyn::read(&plait_syn { length: 59, ..event(false) }).is_none());
    }
}
