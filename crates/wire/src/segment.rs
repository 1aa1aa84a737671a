//! TCP segments in captured frames, through all layers.

use std::net::{IpAddr, SocketAddr};

use crate::error::ParseError;
use crate::link::LinkType;
use crate::link::Network;
use crate::skip::Skip;
use crate::{ipv4, ipv6, protocol, tcp};

/// A TCP segment found in a captured frame.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The destination.
    pub destination: SocketAddr,
    /// The header.
    pub tcp: tcp::Packet<'a>,
    /// The length of the payload on the wire; [`Segment::payload`] is shorter if the capture truncated the packet. A
    /// packet captured before the network card split it counts as one.
    pub payload_len: u32,
    /// Whether this is the first fragment of a packet; other fragments then have more payload.
    pub fragmented: bool,
}

impl<'a> Segment<'a> {
    /// Parses the layers of a captured frame, which had `wire_len` bytes on the wire.
    ///
    /// # Errors
    /// See [`Skip`].
    #[inline]
    pub fn parse(link_type: LinkType, frame: &'a [u8], wire_len: usize) -> Result<Self, Skip> {
        let Ip { source, destination, protocol, fragment_offset, more_fragments, payload, payload_len } =
            Ip::parse(link_type.network(frame)?, frame.len(), wire_len)?;
        if protocol != protocol::TCP {
            return Err(Skip::NotTcp { source, destination });
        }
        if fragment_offset != 0 {
            return Err(Skip::LaterFragment);
        }
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
            fragmented: more_fragments,
        })
    }

    /// The captured part of the payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.tcp.payload()
    }
}

/// The fields common to both versions of IP.
struct Ip<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    fragment_offset: u16,
    more_fragments: bool,
    payload: &'a [u8],
    payload_len: usize,
}

impl<'a> Ip<'a> {
    /// Parses the headers of a packet in a frame of `wire_len` bytes, of which `captured_len` were captured.
    #[inline]
    fn parse(network: Network<'a>, captured_len: usize, wire_len: usize) -> Result<Self, ParseError> {
        macro_rules! ip {
            ($version:ident, $bytes:expr) => {{
                let packet = $version::Packet::parse($bytes)?;
                Self {
                    source: packet.source().into(),
                    destination: packet.destination().into(),
                    protocol: packet.protocol(),
                    fragment_offset: packet.fragment_offset(),
                    more_fragments: packet.more_fragments(),
                    payload: packet.payload(),
                    payload_len: packet.payload_len(wire_len.saturating_sub(captured_len - $bytes.len())),
                }
            }};
        }
        Ok(match network {
            Network::V4(bytes) => ip!(ipv4, bytes),
            Network::V6(bytes) => ip!(ipv6, bytes),
        })
    }
}
