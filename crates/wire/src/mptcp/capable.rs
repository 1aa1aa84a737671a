//! MP_CAPABLE: the option that opens a connection.

use super::{Key, subtype, wrong_length};
use crate::error::ParseError;
use crate::fields::Fields;

/// A version of Multipath TCP, as in MP_CAPABLE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 6824.
    V0,
    /// RFC 8684.
    V1,
}

/// MP_CAPABLE (RFC 8684 3.1, figure 4; RFC 6824 3.1, figure 4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capable {
    /// The sender's version.
    pub version: Version,
    /// What the sender requests.
    pub flags: CapableFlags,
    /// The keys, which depend on the segment.
    pub keys: CapableKeys,
}

/// The flag octet of MP_CAPABLE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapableFlags(pub u8);

impl CapableFlags {
    /// "A": DSS checksums are required.
    pub const CHECKSUM: Self = Self(0x80);
    /// "B": an extension that version 1 does not define.
    pub const EXTENSIBILITY: Self = Self(0x40);
    /// "C": no further subflows to the initial address and port (version 1).
    pub const NO_MORE_SUBFLOWS: Self = Self(0x20);
    /// "H": keys are hashed by HMAC-SHA256 in version 1, HMAC-SHA1 in version 0.
    pub const HMAC: Self = Self(0x01);

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for CapableFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The keys in an MP_CAPABLE. The variant fixes the option's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapableKeys {
    /// None: the SYN of version 1 (length 4).
    None,
    /// The sender's: the SYN/ACK, and the SYN of version 0 (length 12).
    Sender(Key),
    /// Both: the third ACK and, in version 1, the first packet with data (length 20, 22 or 24).
    Both {
        /// The key of the packet's sender.
        sender: Key,
        /// The key of the packet's receiver.
        receiver: Key,
        /// The mapping of the data in this packet (version 1).
        data: Option<FirstData>,
    },
}

/// The mapping that MP_CAPABLE implies for the first data of a connection: data sequence number IDSN + 1, relative
/// subflow sequence number 1 (RFC 8684 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstData {
    /// The data-level length.
    pub length: u16,
    /// The DSS checksum, if checksums were negotiated.
    pub checksum: Option<u16>,
}

impl Capable {
    /// `None` for a version whose form is unknown.
    pub(super) fn parse(first: u8, rest: &[u8]) -> Result<Option<Self>, ParseError> {
        let version = match first & 0x0f {
            0 => Version::V0,
            1 => Version::V1,
            _ => return Ok(None),
        };
        let length = rest.len() + 3;
        match version {
            Version::V0 if !matches!(length, 12 | 20) => {
                return Err(wrong_length("MP_CAPABLE of version 0", "12 or 20", rest));
            }
            Version::V1 if !matches!(length, 4 | 12 | 20 | 22 | 24) => {
                return Err(wrong_length("MP_CAPABLE of version 1", "4, 12, 20, 22 or 24", rest));
            }
            _ => {}
        }
        let mut fields = Fields::new("MP_CAPABLE", rest);
        let flags = CapableFlags(fields.u8()?);
        let keys = match length {
            4 => CapableKeys::None,
            12 => CapableKeys::Sender(Key::new(fields.array()?)),
            _ => CapableKeys::Both {
                sender: Key::new(fields.array()?),
                receiver: Key::new(fields.array()?),
                data: match length {
                    20 => None,
                    22 => Some(FirstData { length: fields.u16()?, checksum: None }),
                    _ => Some(FirstData { length: fields.u16()?, checksum: Some(fields.u16()?) }),
                },
            },
        };
        Ok(Some(Self { version, flags, keys }))
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let version = match self.version {
            Version::V0 => 0,
            Version::V1 => 1,
        };
        out.extend_from_slice(&[subtype::CAPABLE << 4 | version, self.flags.0]);
        match &self.keys {
            CapableKeys::None => {}
            CapableKeys::Sender(sender) => out.extend_from_slice(sender.as_bytes()),
            CapableKeys::Both { sender, receiver, data } => {
                out.extend_from_slice(sender.as_bytes());
                out.extend_from_slice(receiver.as_bytes());
                if let Some(data) = data {
                    out.extend_from_slice(&data.length.to_be_bytes());
                    out.extend(data.checksum.iter().flat_map(|checksum| checksum.to_be_bytes()));
                }
            }
        }
    }
}
