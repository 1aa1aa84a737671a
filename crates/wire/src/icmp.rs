//! ICMP errors about a packet (RFC 792, RFC 4443), which quote its beginning.

use std::net::{IpAddr, SocketAddr};

use crate::{ipv4, ipv6, protocol};

/// An error about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError<'a> {
    /// The host or router that reports it.
    pub source: IpAddr,
    /// What it reports.
    pub kind: IcmpErrorKind,
    /// The packet, from its IP header on, as it arrived there; usually cut.
    pub quoted: &'a [u8],
}

/// What an ICMP error reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpErrorKind {
    /// The hop limit was exceeded, or fragments were missing.
    TimeExceeded,
    /// The packet is longer than the next link's MTU, bytes; 0 if the router does not tell.
    TooBig(u32),
    /// The destination is unreachable, or the packet prohibited.
    Unreachable,
}

/// A TCP segment that an error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedSegment<'a> {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
    /// The quoted bytes from the TCP header on, at least the ports.
    pub tcp: &'a [u8],
}

impl<'a> IcmpError<'a> {
    /// Parses a packet that starts with an IP header; `None` if it is no such error.
    pub fn parse(packet: &'a [u8]) -> Option<Self> {
        let Ip { source, protocol, payload, .. } = Ip::parse(packet)?;
        let (header, quoted) = payload.split_first_chunk::<8>()?;
        let [number, code, _, _, mtu @ ..] = *header;
        let mtu = u32::from_be_bytes(mtu);
        let kind = match (protocol, number, code) {
            (ICMP, 11, _) | (ICMPV6, 3, _) => IcmpErrorKind::TimeExceeded,
            // RFC 1191, section 4: the lower half is the MTU.
            (ICMP, 3, 4) => IcmpErrorKind::TooBig(mtu & 0xffff),
            (ICMPV6, 2, _) => IcmpErrorKind::TooBig(mtu),
            (ICMP, 3, _) | (ICMPV6, 1, _) => IcmpErrorKind::Unreachable,
            _ => return None,
        };
        Some(Self { source, kind, quoted })
    }

    /// The quoted TCP segment; `None` if another protocol's packet is quoted, or less than the ports.
    pub fn segment(&self) -> Option<QuotedSegment<'a>> {
        let Ip { source, destination, protocol, payload } = Ip::parse(self.quoted)?;
        let [a, b, c, d] = *payload.first_chunk()?;
        let (from, to) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let (source, destination) = (SocketAddr::new(source, from), SocketAddr::new(destination, to));
        (protocol == protocol::TCP).then_some(QuotedSegment { source, destination, tcp: payload })
    }
}

/// The header fields of an IP packet that may be cut.
struct Ip<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    payload: &'a [u8],
}

impl<'a> Ip<'a> {
    fn parse(packet: &'a [u8]) -> Option<Self> {
        macro_rules! ip {
            ($version:ident) => {{
                let packet = $version::Packet::parse(packet).ok()?;
                Self {
                    source: packet.source().into(),
                    destination: packet.destination().into(),
                    protocol: packet.protocol(),
                    payload: packet.payload(),
                }
            }};
        }
        Some(if packet.first()? >> 4 == 4 { ip!(ipv4) } else { ip!(ipv6) })
    }
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A packet of 203.0.113.1 or 2001:db8::1 with an ICMP message that quotes `quoted`.
    fn message(v4: bool, number: u8, code: u8, mtu: u32, quoted: &[u8]) -> Vec<u8> {
        let message = [&[number, code, 0, 0][..], &mtu.to_be_bytes(), quoted].concat();
        let mut packet = Vec::new();
        if v4 {
            let header = ipv4::Repr::new([203, 0, 113, 1].into(), [192, 0, 2, 1].into(), ICMP);
            header.emit(message.len(), &mut packet).unwrap();
        } else {
            let (from, to) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
            ipv6::Repr::new(from, to, ICMPV6).emit(message.len(), &mut packet).unwrap();
        }
        [packet, message].concat()
    }

    /// An IPv4 packet of a longer segment, cut after the ports.
    fn quoted() -> Vec<u8> {
        let mut packet = Vec::new();
        let header = ipv4::Repr::new([192, 0, 2, 1].into(), [198, 51, 100, 1].into(), protocol::TCP);
        header.emit(1000, &mut packet).unwrap();
        [packet, vec![0x03, 0xe8, 0x01, 0xbb]].concat()
    }

    #[test]
    fn parses_errors_of_both_families() {
        for (v4, number, code, kind) in [
            (true, 11, 0, IcmpErrorKind::TimeExceeded),
            (true, 3, 4, IcmpErrorKind::TooBig(1280)),
            (true, 3, 13, IcmpErrorKind::Unreachable),
            (false, 3, 0, IcmpErrorKind::TimeExceeded),
            (false, 2, 0, IcmpErrorKind::TooBig(1280)),
            (false, 1, 4, IcmpErrorKind::Unreachable),
        ] {
            let packet = message(v4, number, code, 1280, &quoted());
            let source = if v4 { "203.0.113.1" } else { "2001:db8::1" }.parse().unwrap();
            let quoted = quoted();
            assert_eq!(IcmpError::parse(&packet), Some(IcmpError { source, kind, quoted: &quoted }));
        }
        assert_eq!(IcmpError::parse(&message(true, 8, 0, 0, &quoted())), None, "an echo request");
    }

    #[test]
    fn finds_the_ports_of_a_cut_segment() {
        let packet = message(true, 11, 0, 0, &quoted());
        let found = IcmpError::parse(&packet).unwrap().segment().unwrap();
        assert_eq!(found.source, "192.0.2.1:1000".parse().unwrap());
        assert_eq!(found.destination, "198.51.100.1:443".parse().unwrap());
        assert_eq!(found.tcp.len(), 4);
        let packet = message(true, 11, 0, 0, &quoted()[..23]);
        assert_eq!(IcmpError::parse(&packet).unwrap().segment(), None);
    }

    proptest! {
        #[test]
        fn arbitrary_packets_do_not_panic(v4: bool, number: u8, code: u8, packet: Vec<u8>, quoted: Vec<u8>) {
            for packet in [packet, message(v4, number, code, 0, &quoted)] {
                let _ = IcmpError::parse(&packet).map(|error| error.segment());
            }
        }
    }
}
