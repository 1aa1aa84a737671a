use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use crate::link::Network;
use crate::{LinkType, ParseError, ipv4, ipv6, protocol, tcp};

/// A TCP segment found in a captured frame.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Who sent it.
    pub source: SocketAddr,
    /// Whom it is for.
    pub destination: SocketAddr,
    /// The header.
    pub tcp: tcp::Packet<'a>,
    /// How long the payload was on the wire; [`Segment::payload`] is shorter where the capture cut the packet. A
    /// packet captured before the network card split it counts as it was captured.
    pub payload_len: u32,
    /// Whether this is the first fragment of a packet, so that more payload was in others.
    pub fragmented: bool,
}

/// Why a captured frame gives no [`Segment`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Skip {
    /// Something other than IPv4 or IPv6.
    #[error("not IP")]
    NotIp,
    /// IP that carries something other than TCP.
    #[error("not TCP")]
    NotTcp,
    /// A fragment other than the first, which has no TCP header.
    #[error("a fragment without TCP header")]
    LaterFragment,
    /// A header that is cut short or wrong.
    #[error(transparent)]
    Malformed(#[from] ParseError),
}

impl<'a> Segment<'a> {
    /// Goes through the layers of a frame of which `frame` was captured and which had `wire_len` bytes.
    ///
    /// # Errors
    /// See [`Skip`].
    #[inline]
    pub fn parse(link_type: LinkType, frame: &'a [u8], wire_len: usize) -> Result<Self, Skip> {
        let network = link_type.network(frame)?;
        let (source, destination, payload, payload_len, fragmented): (IpAddr, IpAddr, _, _, _) = match network
        {
            Network::V4(bytes) => {
                let packet = ipv4::Packet::parse(bytes)?;
                check(packet.protocol(), packet.fragment_offset())?;
                let wire_len = wire_len.saturating_sub(frame.len() - bytes.len());
                (
                    packet.source().into(),
                    packet.destination().into(),
                    packet.payload(),
                    packet.payload_len(wire_len),
                    packet.more_fragments(),
                )
            }
            Network::V6(bytes) => {
                let packet = ipv6::Packet::parse(bytes)?;
                let fragment = packet.fragment();
                check(packet.protocol(), fragment.map_or(0, |fragment| fragment.offset))?;
                let wire_len = wire_len.saturating_sub(frame.len() - bytes.len());
                (
                    packet.source().into(),
                    packet.destination().into(),
                    packet.payload(),
                    packet.payload_len(wire_len),
                    fragment.is_some_and(|fragment| fragment.more),
                )
            }
        };
        let tcp = tcp::Packet::parse(payload)?;
        let length = payload_len.checked_sub(tcp.header_len()).ok_or(ParseError::Length {
            what: "TCP header",
            expected: "at most what the IP packet holds",
            got: tcp.header_len(),
        })?;
        Ok(Self {
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            tcp,
            payload_len: u32::try_from(length).unwrap_or(u32::MAX),
            fragmented,
        })
    }

    /// What was captured of the payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.tcp.payload()
    }
}

fn check(protocol: u8, fragment_offset: u16) -> Result<(), Skip> {
    if protocol != protocol::TCP {
        Err(Skip::NotTcp)
    } else if fragment_offset != 0 {
        Err(Skip::LaterFragment)
    } else {
        Ok(())
    }
}
