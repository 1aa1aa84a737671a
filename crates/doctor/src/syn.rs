//! SYNs that probe a path, and what answers them. No I/O.
//!
//! A SYN is answered by whatever listens at the destination, takes no privileges there, and opens no connection: this host's
//! kernel resets the answer, as no socket sent the SYN. With a low TTL, a router answers by ICMP, and quotes the SYN as it
//! arrived there (as in tracebox, IMC 2013).

use std::net::{IpAddr, SocketAddr};

use plait_wire::checksum::PseudoHeader;
use plait_wire::icmp::{IcmpError, IcmpErrorKind};
use plait_wire::mptcp::{
    AddressId, Capable, CapableFlags, CapableKeys, Join, MptcpOption, Nonce, Token, Version,
};
use plait_wire::tcp::{Flags, Packet, Repr, Seq, TcpOption};
use plait_wire::{LinkType, Segment, ipv4, ipv6, protocol};

/// The MPTCP option of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynKind {
    /// None: plain TCP.
    Tcp,
    /// MP_CAPABLE, which asks for a new connection.
    Capable,
    /// MP_JOIN with the token of no connection. Linux answers it by a reset with MP_TCPRST.
    Join,
}

/// A SYN to send.
#[derive(Clone, Debug)]
pub(crate) struct Syn {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) kind: SynKind,
    pub(crate) hop_limit: u8,
    /// Length of the packet, with IP header; padded with payload, which Linux accepts and ignores on a SYN. `None`: no payload.
    pub(crate) length: Option<usize>,
}

/// What answered a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A SYN/ACK.
    Accepted {
        /// Whether it has an MPTCP option.
        mptcp: bool,
    },
    /// A reset.
    Reset {
        /// Whether it has the option MP_TCPRST, so that an MPTCP implementation sent it.
        mptcp: bool,
    },
    /// An ICMP error of a host on the way.
    Icmp {
        /// The host.
        from: IpAddr,
        /// What it reports.
        kind: IcmpErrorKind,
        /// Whether the quoted SYN has its MPTCP option; `None` if too little is quoted to tell, or it never had one.
        mptcp: Option<bool>,
    },
}

impl Syn {
    /// The SYN as a packet, with its IP header.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut packet = Vec::new();
        let header_len = if self.source.is_ipv4() { ipv4::MIN_HEADER_LEN } else { ipv6::HEADER_LEN };
        let mut segment = self.segment(&[]);
        let payload = self.length.unwrap_or(0).saturating_sub(header_len + segment.len());
        if payload > 0 {
            segment = self.segment(&vec![0; payload]);
        }
        let emitted = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ipv4::Repr::new(from, to, protocol::TCP)
                .with_ttl(self.hop_limit)
                .emit(segment.len(), &mut packet),
            (IpAddr::V6(from), IpAddr::V6(to)) => ipv6::Repr::new(from, to, protocol::TCP)
                .with_hop_limit(self.hop_limit)
                .emit(segment.len(), &mut packet),
            _ => unreachable!("both addresses of a SYN are of one family"),
        };
        emitted.expect("a SYN is shorter than 64 KiB");
        packet.extend(segment);
        packet
    }

    fn segment(&self, payload: &[u8]) -> Vec<u8> {
        let pseudo = PseudoHeader::new(self.source.ip(), self.destination.ip())
            .expect("both addresses of a SYN are of one family");
        let mptcp = match self.kind {
            SynKind::Tcp => None,
            SynKind::Capable => Some(MptcpOption::Capable(Capable {
                version: Version::V1,
                flags: CapableFlags::HMAC,
                keys: CapableKeys::None,
            })),
            SynKind::Join => Some(MptcpOption::Join(Join::Syn {
                backup: false,
                address_id: AddressId(1),
                token: Token(u32::from(self.source.port()) << 16 | 0x5a5a),
                nonce: Nonce(0x5a5a_5a5a),
            })),
        };
        // As in Linux's SYNs, without timestamps.
        let mut options =
            vec![TcpOption::MaxSegmentSize(1460), TcpOption::SackPermitted, TcpOption::WindowScale(7)];
        options.extend(mptcp.map(TcpOption::Mptcp));
        let header = Repr {
            source_port: self.source.port(),
            destination_port: self.destination.port(),
            seq: Seq(0x1000_0000),
            flags: Flags::SYN,
            window: 64240,
            options,
            ..Repr::default()
        };
        let mut segment = Vec::new();
        header.emit(pseudo, payload, &mut segment).expect("the options fit");
        segment
    }

    /// Whether a packet that leaves this host is this SYN.
    pub(crate) fn is(&self, packet: &[u8]) -> bool {
        segment(packet).is_some_and(|segment| {
            (segment.source, segment.destination) == (self.source, self.destination) && is_syn(&segment.tcp)
        })
    }

    /// What a packet that arrives at this host says about this SYN; `None` if it says nothing.
    pub(crate) fn answer(&self, packet: &[u8]) -> Option<Answer> {
        let Some(segment) = segment(packet) else { return self.icmp_answer(packet) };
        if (segment.source, segment.destination) != (self.destination, self.source) {
            return None;
        }
        let flags = segment.tcp.flags();
        let mptcp = has_mptcp(&segment.tcp);
        if flags.contains(Flags::RST) {
            Some(Answer::Reset { mptcp })
        } else {
            flags.contains(Flags::SYN | Flags::ACK).then_some(Answer::Accepted { mptcp })
        }
    }

    fn icmp_answer(&self, packet: &[u8]) -> Option<Answer> {
        let error = IcmpError::parse(packet)?;
        let quoted = error.segment()?;
        // A translating router may quote the SYN with its own source address.
        if quoted.destination != self.destination || quoted.source.port() != self.source.port() {
            return None;
        }
        let whole = Packet::parse(quoted.tcp).ok().filter(|tcp| !tcp.has_truncated_options());
        let mptcp = whole.filter(|_| self.kind != SynKind::Tcp).map(|tcp| has_mptcp(&tcp));
        Some(Answer::Icmp { from: error.source, kind: error.kind, mptcp })
    }
}

/// The TCP segment of a packet.
pub(crate) fn segment(packet: &[u8]) -> Option<Segment<'_>> {
    Segment::parse(LinkType::RawIp, packet, packet.len()).ok()
}

/// Whether a segment opens a connection; the kernel also resets the answers to SYNs that no socket sent.
pub(crate) fn is_syn(tcp: &Packet) -> bool {
    tcp.flags().contains(Flags::SYN) && !tcp.flags().contains(Flags::ACK)
}

/// The MPTCP options of a segment.
pub(crate) fn mptcp_options<'a>(tcp: &Packet<'a>) -> impl Iterator<Item = MptcpOption<'a>> {
    tcp.options().filter_map(|option| match option {
        Ok(TcpOption::Mptcp(option)) => Some(option),
        _ => None,
    })
}

fn has_mptcp(tcp: &Packet) -> bool {
    mptcp_options(tcp).next().is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn syn(source: &str, destination: &str, kind: SynKind) -> Syn {
        Syn {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            kind,
            hop_limit: 3,
            length: None,
        }
    }

    fn v4(kind: SynKind) -> Syn {
        syn("192.0.2.1:1000", "198.51.100.1:443", kind)
    }

    /// An ICMP message of 203.0.113.1 that quotes `quoted`.
    fn icmp(kind: u8, code: u8, mtu: u16, quoted: &[u8]) -> Vec<u8> {
        let message = [&[kind, code, 0, 0, 0, 0][..], &mtu.to_be_bytes(), quoted].concat();
        let mut packet = Vec::new();
        ipv4::Repr::new([203, 0, 113, 1].into(), [192, 0, 2, 1].into(), 1)
            .emit(message.len(), &mut packet)
            .unwrap();
        [packet, message].concat()
    }

    #[test]
    fn recognizes_itself_and_pads_to_the_length() {
        for (source, destination) in
            [("192.0.2.1:1000", "198.51.100.1:443"), ("[2001:db8::1]:1000", "[2001:db8::2]:443")]
        {
            for kind in [SynKind::Tcp, SynKind::Capable, SynKind::Join] {
                let syn = Syn { length: Some(1280), ..syn(source, destination, kind) };
                let packet = syn.packet();
                assert_eq!(packet.len(), 1280);
                assert!(syn.is(&packet));
                assert_eq!(has_mptcp(&segment(&packet).unwrap().tcp), kind != SynKind::Tcp);
                assert_eq!(syn.answer(&packet), None, "a SYN is not an answer");
            }
        }
    }

    #[test]
    fn quote_shows_whether_the_option_arrived() {
        let from = "203.0.113.1".parse().unwrap();
        let (sent, stripped) = (v4(SynKind::Capable), v4(SynKind::Tcp).packet());
        let told = |mptcp| Some(Answer::Icmp { from, kind: IcmpErrorKind::TimeExceeded, mptcp });
        assert_eq!(sent.answer(&icmp(11, 0, 0, &sent.packet())), told(Some(true)));
        assert_eq!(sent.answer(&icmp(11, 0, 0, &stripped)), told(Some(false)));
        assert_eq!(sent.answer(&icmp(11, 0, 0, &sent.packet()[..28])), told(None), "RFC 792 quotes 8 bytes");
    }

    #[test]
    fn other_packets_are_no_answers() {
        let sent = v4(SynKind::Capable);
        let other = syn("192.0.2.1:1001", "198.51.100.1:443", SynKind::Capable);
        assert_eq!(sent.answer(&icmp(11, 0, 0, &other.packet())), None);
        assert_eq!(sent.answer(&icmp(8, 0, 0, &sent.packet())), None, "an echo request");
    }

    #[test]
    fn reads_the_mtu() {
        let sent = v4(SynKind::Tcp);
        let Some(Answer::Icmp { kind, .. }) = sent.answer(&icmp(3, 4, 1280, &sent.packet())) else {
            panic!("expected an answer")
        };
        assert_eq!(kind, IcmpErrorKind::TooBig(1280));
    }

    proptest! {
        #[test]
        fn arbitrary_packets_do_not_panic(packet: Vec<u8>, quoted: Vec<u8>, kind: u8, code: u8) {
            let sent = v4(SynKind::Join);
            let _ = (sent.is(&packet), sent.answer(&packet));
            let _ = sent.answer(&icmp(kind, code, 0, &quoted));
        }
    }
}
