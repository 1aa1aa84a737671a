//! DSS: the option that maps and acknowledges data.

use super::{DataSeq, SubflowSeq, subtype};
use crate::error::ParseError;
use crate::fields::Fields;

/// DSS: the data sequence signal (RFC 8684 3.3, figure 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dss {
    /// DATA_ACK: the next data sequence number the sender expects.
    pub data_ack: Option<SeqField>,
    /// The position in the connection of data of this subflow.
    pub mapping: Option<Mapping>,
    /// The mapping's last sequence number is the end of the sender's data, not a byte (RFC 8684 3.3.3).
    pub data_fin: bool,
}

/// A data sequence number as an option carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqField {
    /// Its low 32 bits.
    Low32(u32),
    /// All of it.
    Full(DataSeq),
}

impl SeqField {
    /// The full number; if the option carries only the lower half, the number nearest to `near` with this lower half.
    pub fn extend(self, near: DataSeq) -> DataSeq {
        match self {
            Self::Full(data_seq) => data_seq,
            Self::Low32(low) => {
                // The signed difference of the lower halves is the shortest distance from `near`.
                let distance = low.wrapping_sub(near.0 as u32) as i32;
                DataSeq(near.0.wrapping_add_signed(distance.into()))
            }
        }
    }

    fn parse(fields: &mut Fields<'_>, full: bool) -> Result<Self, ParseError> {
        Ok(if full { Self::Full(DataSeq(fields.u64()?)) } else { Self::Low32(fields.u32()?) })
    }

    fn emit(self, out: &mut Vec<u8>) {
        match self {
            Self::Low32(low) => out.extend_from_slice(&low.to_be_bytes()),
            Self::Full(data_seq) => out.extend_from_slice(&data_seq.0.to_be_bytes()),
        }
    }
}

/// A data sequence mapping (RFC 8684 3.3.1): `length` bytes of the subflow from `subflow_seq` on are the bytes of the
/// connection from `data_seq` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The position of the data in the connection.
    pub data_seq: SeqField,
    /// The position of the data in the subflow; 0 for a DATA_FIN without data.
    pub subflow_seq: SubflowSeq,
    /// The number of mapped bytes, with a DATA_FIN counted as one; 0 means all further bytes.
    pub length: u16,
    /// The checksum over mapping and data ([`crate::checksum::dss`]), if checksums were negotiated.
    pub checksum: Option<u16>,
}

impl Mapping {
    /// Whether this is the infinite mapping, with which a connection falls back to plain TCP (RFC 8684 3.7).
    pub fn is_infinite(&self) -> bool {
        self.length == 0
    }
}

const DATA_FIN: u8 = 0x10;
const DATA_SEQ_FULL: u8 = 0x08;
const MAPPING: u8 = 0x04;
const DATA_ACK_FULL: u8 = 0x02;
const DATA_ACK: u8 = 0x01;

impl Dss {
    #[inline]
    pub(super) fn parse(rest: &[u8]) -> Result<Self, ParseError> {
        let mut fields = Fields::new("DSS", rest);
        let flags = fields.u8()?;
        let has = |flag| flags & flag != 0;
        let data_ack =
            if has(DATA_ACK) { Some(SeqField::parse(&mut fields, has(DATA_ACK_FULL))?) } else { None };
        let mapping = if has(MAPPING) {
            Some(Mapping {
                data_seq: SeqField::parse(&mut fields, has(DATA_SEQ_FULL))?,
                subflow_seq: SubflowSeq(fields.u32()?),
                length: fields.u16()?,
                checksum: if fields.remaining().is_empty() { None } else { Some(fields.u16()?) },
            })
        } else {
            None
        };
        if !fields.remaining().is_empty() {
            return Err(ParseError::Length {
                what: "DSS",
                expected: "the length that its flags imply",
                got: rest.len() + 3,
            });
        }
        Ok(Self { data_ack, mapping, data_fin: has(DATA_FIN) })
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let mut flags = if self.data_fin { DATA_FIN } else { 0 };
        if let Some(data_ack) = self.data_ack {
            flags |= DATA_ACK | if matches!(data_ack, SeqField::Full(_)) { DATA_ACK_FULL } else { 0 };
        }
        if let Some(mapping) = self.mapping {
            flags |= MAPPING | if matches!(mapping.data_seq, SeqField::Full(_)) { DATA_SEQ_FULL } else { 0 };
        }
        out.extend_from_slice(&[subtype::DSS << 4, flags]);
        if let Some(data_ack) = self.data_ack {
            data_ack.emit(out);
        }
        if let Some(mapping) = self.mapping {
            mapping.data_seq.emit(out);
            out.extend_from_slice(&mapping.subflow_seq.0.to_be_bytes());
            out.extend_from_slice(&mapping.length.to_be_bytes());
            out.extend(mapping.checksum.iter().flat_map(|checksum| checksum.to_be_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_half_of_a_sequence_number_extends_to_the_nearest() {
        let near = DataSeq(0x5_0000_0010);
        assert_eq!(SeqField::Low32(0x0000_0020).extend(near), DataSeq(0x5_0000_0020));
        assert_eq!(SeqField::Low32(0xffff_fff0).extend(near), DataSeq(0x4_ffff_fff0));
        assert_eq!(SeqField::Low32(0x10).extend(DataSeq(0x4_ffff_ff00)), DataSeq(0x5_0000_0010));
        assert_eq!(SeqField::Low32(0x10).extend(DataSeq(u64::MAX)), DataSeq(0x10));
        assert_eq!(SeqField::Full(DataSeq(7)).extend(near), DataSeq(7));
    }
}
