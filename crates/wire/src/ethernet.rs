//! Ethernet II frames (IEEE 802.3) with any number of VLAN tags (802.1Q, and 802.1ad "QinQ").
//!
//! No input causes a panic. A frame with a length in place of the EtherType (802.2 LLC) parses; its
//! [`Frame::ether_type`] is then below 0x600, which is not the number of any protocol.

use crate::error::ParseError;
use crate::fields::Fields;

/// EtherTypes (IANA "IEEE 802 Numbers").
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A customer VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// A service VLAN tag (802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// A service VLAN tag as some switches sent it before 802.1ad.
    pub const OLD_SERVICE_VLAN: u16 = 0x9100;
}

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

/// A view of a frame after its VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The EtherType of the payload.
    pub ether_type: u16,
    /// The payload, with any padding and frame check sequence that the capture contains.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A view of `bytes`.
    ///
    /// # Errors
    /// The frame ends before the EtherType that follows the last VLAN tag.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut fields = Fields::new("Ethernet header", bytes);
        let _addresses: [u8; 12] = fields.array()?;
        Self::after_tags(fields.u16()?, fields)
    }

    /// Skips VLAN tags, the first of which would have this EtherType and the rest of it next.
    #[inline]
    pub(crate) fn after_tags(mut ether_type: u16, mut fields: Fields<'a>) -> Result<Self, ParseError> {
        use ether_type::{OLD_SERVICE_VLAN, SERVICE_VLAN, VLAN};
        while matches!(ether_type, VLAN | SERVICE_VLAN | OLD_SERVICE_VLAN) {
            let _control = fields.u16()?;
            ether_type = fields.u16()?;
        }
        Ok(Self { ether_type, payload: fields.remaining() })
    }
}

/// The header of a frame to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The destination.
    pub destination: MacAddr,
    /// The source.
    pub source: MacAddr,
    /// The EtherType of the payload.
    pub ether_type: u16,
}

impl Repr {
    /// Appends the header; the payload follows it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.destination.0);
        out.extend_from_slice(&self.source.0);
        out.extend_from_slice(&self.ether_type.to_be_bytes());
    }
}
