//! Ethernet II frames (IEEE 802.3) with any number of VLAN tags (802.1Q, and 802.1ad "QinQ").
//!
//! No input causes a panic. A frame with a length in place of the EtherType (802.2 LLC) parses; its
//! [`Frame::ether_type`] is then below 0x600, which is not the number of any protocol.

use crate::ParseError;
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

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// The EtherType of the tag.
    pub protocol: VlanProtocol,
    /// The tag control information: priority (3 bits), drop eligible (1 bit), VLAN id (12 bits).
    pub control: u16,
}

impl VlanTag {
    /// The VLAN id, 0 to 4095.
    pub fn id(self) -> u16 {
        self.control & 0x0fff
    }
}

/// The EtherTypes of VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanProtocol {
    /// 802.1Q, 0x8100.
    Customer,
    /// 802.1ad, 0x88a8.
    Service,
    /// 0x9100, in use before 802.1ad.
    OldService,
}

impl VlanProtocol {
    fn from_ether_type(value: u16) -> Option<Self> {
        match value {
            ether_type::VLAN => Some(Self::Customer),
            ether_type::SERVICE_VLAN => Some(Self::Service),
            ether_type::OLD_SERVICE_VLAN => Some(Self::OldService),
            _ => None,
        }
    }

    fn ether_type(self) -> u16 {
        match self {
            Self::Customer => ether_type::VLAN,
            Self::Service => ether_type::SERVICE_VLAN,
            Self::OldService => ether_type::OLD_SERVICE_VLAN,
        }
    }
}

/// A view of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    destination: MacAddr,
    source: MacAddr,
    tags: &'a [u8],
    ether_type: u16,
    payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A view of `bytes`.
    ///
    /// # Errors
    /// The frame ends before the EtherType that follows the last VLAN tag.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut fields = Fields::new("Ethernet header", bytes);
        let destination = MacAddr(fields.array()?);
        let source = MacAddr(fields.array()?);
        let tagged = fields.remaining();
        let mut tags_len = 0;
        let mut ether_type = fields.u16()?;
        while VlanProtocol::from_ether_type(ether_type).is_some() {
            let _control = fields.u16()?;
            ether_type = fields.u16()?;
            tags_len += 4;
        }
        Ok(Self { destination, source, tags: &tagged[..tags_len], ether_type, payload: fields.remaining() })
    }

    /// The destination.
    pub fn destination(&self) -> MacAddr {
        self.destination
    }

    /// The source.
    pub fn source(&self) -> MacAddr {
        self.source
    }

    /// The VLAN tags, outermost first.
    pub fn tags(&self) -> impl Iterator<Item = VlanTag> + 'a {
        let (tags, _) = self.tags.as_chunks::<4>();
        tags.iter().filter_map(|[a, b, c, d]| {
            let protocol = VlanProtocol::from_ether_type(u16::from_be_bytes([*a, *b]))?;
            Some(VlanTag { protocol, control: u16::from_be_bytes([*c, *d]) })
        })
    }

    /// The EtherType of the payload.
    pub fn ether_type(&self) -> u16 {
        self.ether_type
    }

    /// The payload, with any padding and frame check sequence that the capture contains.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The header of a frame to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The destination.
    pub destination: MacAddr,
    /// The source.
    pub source: MacAddr,
    /// The VLAN tags, outermost first.
    pub tags: Vec<VlanTag>,
    /// The EtherType of the payload; not that of a VLAN tag.
    pub ether_type: u16,
}

impl Repr {
    /// Reads the header.
    pub fn parse(frame: Frame<'_>) -> Self {
        Self {
            destination: frame.destination(),
            source: frame.source(),
            tags: frame.tags().collect(),
            ether_type: frame.ether_type(),
        }
    }

    /// Appends the header; the payload follows it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.destination.0);
        out.extend_from_slice(&self.source.0);
        for tag in &self.tags {
            out.extend_from_slice(&tag.protocol.ether_type().to_be_bytes());
            out.extend_from_slice(&tag.control.to_be_bytes());
        }
        out.extend_from_slice(&self.ether_type.to_be_bytes());
    }
}
