//! Link-layer types of captures, and the IP packets in their frames.

use crate::error::ParseError;
use crate::ethernet::{Frame, ether_type};
use crate::fields::Fields;
use crate::skip::Skip;

/// The type of a capture's link-layer headers, by its number in the registry of link-layer header types
/// (<https://www.tcpdump.org/linktypes.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkType {
    /// 0: a protocol family in the capturing machine's byte order (BSD loopback, some tunnels).
    Null,
    /// 1: Ethernet.
    Ethernet,
    /// 9: PPP, with or without HDLC framing.
    Ppp,
    /// 101 (12 or 14 in some files): IPv4 or IPv6 without a link-layer header.
    RawIp,
    /// 108: a protocol family in network order (OpenBSD loopback).
    Loop,
    /// 113: Linux "cooked" header, as on the device "any".
    LinuxSll,
    /// 228: IPv4 without a link-layer header.
    Ipv4,
    /// 229: IPv6 without a link-layer header.
    Ipv6,
    /// 276: Linux "cooked" header version 2.
    LinuxSll2,
    /// Any other, by its number; its frames cannot be parsed.
    Other(u16),
}

/// An IP packet after a link-layer header.
pub(crate) enum Network<'a> {
    V4(&'a [u8]),
    V6(&'a [u8]),
}

impl LinkType {
    /// The type with this number in capture files; `None` if it is not supported.
    pub fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Null,
            1 => Self::Ethernet,
            9 => Self::Ppp,
            12 | 14 | 101 => Self::RawIp,
            108 => Self::Loop,
            113 => Self::LinuxSll,
            228 => Self::Ipv4,
            229 => Self::Ipv6,
            276 => Self::LinuxSll2,
            _ => return None,
        })
    }

    /// Its registered number.
    pub fn number(self) -> u16 {
        match self {
            Self::Null => 0,
            Self::Ethernet => 1,
            Self::Ppp => 9,
            Self::RawIp => 101,
            Self::Loop => 108,
            Self::LinuxSll => 113,
            Self::Ipv4 => 228,
            Self::Ipv6 => 229,
            Self::LinuxSll2 => 276,
            Self::Other(number) => number,
        }
    }

    /// The IP packet in a captured frame, or why there is none.
    #[inline]
    pub(crate) fn network(self, frame: &[u8]) -> Result<Network<'_>, Skip> {
        match self {
            Self::Ethernet => by_ether_type(Frame::parse(frame)?),
            Self::RawIp => by_version(frame),
            Self::Ipv4 => Ok(Network::V4(frame)),
            Self::Ipv6 => Ok(Network::V6(frame)),
            Self::Null | Self::Loop => loopback(frame),
            Self::LinuxSll => {
                let mut fields = Fields::new("Linux cooked header", frame);
                // Packet type, device type, address length, address.
                let _: [u8; 14] = fields.array()?;
                by_ether_type(Frame::after_tags(fields.u16()?, fields)?)
            }
            Self::LinuxSll2 => {
                let mut fields = Fields::new("Linux cooked header", frame);
                let protocol = fields.u16()?;
                // Reserved, interface, device type, packet type, address length, address.
                let _: [u8; 18] = fields.array()?;
                by_ether_type(Frame::after_tags(protocol, fields)?)
            }
            Self::Ppp => ppp(frame),
            Self::Other(number) => Err(ParseError::Value {
                what: "link type",
                expected: "one of 0, 1, 9, 12, 14, 101, 108, 113, 228, 229, 276",
                got: number.into(),
            }
            .into()),
        }
    }
}

fn by_ether_type(frame: Frame<'_>) -> Result<Network<'_>, Skip> {
    match frame.ether_type {
        ether_type::IPV4 => Ok(Network::V4(frame.payload)),
        ether_type::IPV6 => Ok(Network::V6(frame.payload)),
        _ => Err(Skip::NotIp),
    }
}

/// Selects IPv4 or IPv6 by the version field of the IP header.
fn by_version(packet: &[u8]) -> Result<Network<'_>, Skip> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => Ok(Network::V4(packet)),
        Some(6) => Ok(Network::V6(packet)),
        Some(_) => Err(Skip::NotIp),
        None => Err(ParseError::Truncated { what: "IP header", expected: 1, got: 0 }.into()),
    }
}

/// A protocol family of 4 bytes. Its values are below 256 on every system, which reveals the byte order.
fn loopback(frame: &[u8]) -> Result<Network<'_>, Skip> {
    let mut fields = Fields::new("loopback header", frame);
    let family: [u8; 4] = fields.array()?;
    let family = match u32::from_be_bytes(family) {
        family @ 0..=0xff => family,
        _ => u32::from_le_bytes(family),
    };
    match family {
        2 => Ok(Network::V4(fields.remaining())),
        // Linux; NetBSD and OpenBSD; FreeBSD; macOS.
        10 | 24 | 28 | 30 => Ok(Network::V6(fields.remaining())),
        _ => Err(Skip::NotIp),
    }
}

/// PPP (RFC 1661) with the address and control octets of HDLC framing (RFC 1662) or without, and with its protocol
/// field of two octets or compressed to one.
fn ppp(frame: &[u8]) -> Result<Network<'_>, Skip> {
    let frame = frame.strip_prefix(&[0xff, 0x03]).unwrap_or(frame);
    let mut fields = Fields::new("PPP header", frame);
    let first = fields.u8()?;
    // The last octet of a protocol number is odd, the first even.
    let protocol = if first & 1 == 1 { first.into() } else { u16::from_be_bytes([first, fields.u8()?]) };
    match protocol {
        0x0021 => Ok(Network::V4(fields.remaining())),
        0x0057 => Ok(Network::V6(fields.remaining())),
        _ => Err(Skip::NotIp),
    }
}
