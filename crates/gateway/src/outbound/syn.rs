//! SYNs that are held until a gateway has connected to their destination, as packets: sent on without their data, or rejected.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use plait_wire::checksum::{Checksum, PseudoHeader};
use plait_wire::tcp::{Flags, Packet, Repr, Seq};
use plait_wire::{BuildError, ParseError, ipv4, ipv6, protocol};

use super::open::OpenError;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The TCP checksum within the header.
const TCP_CHECKSUM: std::ops::Range<usize> = 16..18;

/// A SYN, without its data.
pub(super) struct Syn {
    pub(super) client: SocketAddr,
    /// Its destination.
    pub(super) server: SocketAddr,
    /// The headers of IP and TCP.
    headers: Vec<u8>,
    ip_header_len: usize,
    seq: Seq,
}

impl Syn {
    /// Parses the headers of IP and TCP.
    ///
    /// # Errors
    /// They are malformed.
    pub(super) fn parse(headers: Vec<u8>) -> Result<Syn, ParseError> {
        let is_ipv4 = headers.first().is_some_and(|first| first >> 4 == 4);
        let (ip_header_len, from, to): (usize, IpAddr, IpAddr) = if is_ipv4 {
            let ip = ipv4::Packet::parse(&headers)?;
            (ip.header_len(), ip.source().into(), ip.destination().into())
        } else {
            (ipv6::HEADER_LEN, ipv6_address(&headers, 8)?.into(), ipv6_address(&headers, 24)?.into())
        };
        let tcp = Packet::parse(headers.get(ip_header_len..).unwrap_or_default())?;
        let client = SocketAddr::new(from, tcp.source_port());
        let server = SocketAddr::new(to, tcp.destination_port());
        let seq = tcp.seq();
        Ok(Syn { client, server, headers, ip_header_len, seq })
    }

    /// The SYN as a packet.
    pub(super) fn packet(&self) -> Vec<u8> {
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
        if let Some(pseudo) = PseudoHeader::new(self.client.ip(), self.server.ip()) {
            let checksum = pseudo.checksum(tcp_len as u32).with(tcp).finish();
            tcp[TCP_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        }
        packet
    }

    /// The server's answer that makes connect() fail.
    pub(super) fn rejection(&self, rejection: Rejection) -> Result<Vec<u8>, BuildError> {
        let payload = match (rejection, PseudoHeader::new(self.server.ip(), self.client.ip())) {
            (Rejection::Reset, Some(pseudo)) => {
                let mut segment = Vec::new();
                let reset = Repr {
                    source_port: self.server.port(),
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
        match (self.server.ip(), self.client.ip()) {
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
        let (kind, code, pseudo) = match (self.server.ip(), self.client.ip()) {
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

fn ipv6_address(headers: &[u8], offset: usize) -> Result<Ipv6Addr, ParseError> {
    let bytes: Option<[u8; 16]> = headers.get(offset..offset + 16).and_then(|bytes| bytes.try_into().ok());
    let truncated =
        ParseError::Truncated { what: "IPv6 header", expected: ipv6::HEADER_LEN, got: headers.len() };
    bytes.map(Ipv6Addr::from).ok_or(truncated)
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
            // Firewalls that refuse say so, too.
            io::ErrorKind::HostUnreachable | io::ErrorKind::PermissionDenied => {
                Some(Rejection::HostUnreachable)
            }
            _ => Some(Rejection::Reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const CLIENT: u16 = 40_000;
    const LISTENER: u16 = 5_000;

    /// The headers of a SYN to a listener on loopback, whose length and checksum are those of a longer one, with data.
    fn headers(is_ipv4: bool) -> Vec<u8> {
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
        packet
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
            let syn = Syn::parse(headers(is_ipv4)).expect("a SYN");
            assert_eq!((syn.client.port(), syn.server.port()), (CLIENT, LISTENER));
            let (kind, segment) = payload(&syn.packet(), is_ipv4);
            assert_eq!((kind, segment.len()), (protocol::TCP, 20));
            let tcp = Packet::parse(&segment).expect("a segment");
            let pseudo = PseudoHeader::new(syn.client.ip(), syn.server.ip()).expect("one family");
            assert!(tcp.checksum_is_right(pseudo));
            assert_eq!((tcp.flags(), tcp.seq()), (Flags::SYN, Seq(0xffff_ffff)));
        }
    }

    #[test]
    fn rejections_are_resets_and_icmp_errors() {
        for is_ipv4 in [true, false] {
            let syn = Syn::parse(headers(is_ipv4)).expect("a SYN");
            let pseudo = PseudoHeader::new(syn.server.ip(), syn.client.ip()).expect("one family");
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
    fn truncated_headers_are_rejected() {
        for is_ipv4 in [true, false] {
            let whole = headers(is_ipv4);
            for length in 0..whole.len() {
                assert!(Syn::parse(whole[..length].to_vec()).is_err(), "{length}");
            }
        }
    }
}
