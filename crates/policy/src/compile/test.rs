//! One question about a packet's record.

use std::mem::offset_of;

use crate::bindings::plait_packet;

/// Where a test finds the number it looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// In the packet's record.
    Record { offset: usize, bits: u32 },
    /// The id of the control group at this level above the packet's socket; 0 if there is none.
    Ancestor { level: u32 },
}

/// What a test compares its number with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// Some of these bits are set.
    AnyOf(u64),
    /// The bits of the mask are those of the value.
    Masked { mask: u64, value: u64 },
    /// It is the first number or one of so many that follow, the highest being followed by 0.
    Within { first: u64, span: u64 },
}

/// A question about a packet's record that has one answer, yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) field: Field,
    pub(super) compare: Compare,
}

macro_rules! fields {
    ($($name:ident = $field:ident: $bits:literal),+ $(,)?) => {
        $(pub(super) const $name: Field = Field::Record { offset: offset_of!(plait_packet, $field), bits: $bits };)+
    };
}

fields! {
    TOKEN = token: 32,
    INTERFACE = interface: 32,
    MARK = mark: 32,
    SEQUENCE = sequence: 32,
    DATA_SEQUENCE = data_sequence: 64,
    FLOW_BYTES = flow_bytes: 64,
    CONNECTION_BYTES = connection_bytes: 64,
    SOURCE_PORT = source_port: 16,
    DESTINATION_PORT = destination_port: 16,
}

/// No kind, and no selector of the user's own, has a bit above the 32nd; and fewer bits make shorter instructions.
pub(super) const KINDS: Field = low_half(offset_of!(plait_packet, kinds));
pub(super) const OWN_MATCHED: Field = low_half(offset_of!(plait_packet, own_matched));

/// Where an address stands in the record, in two halves of 64 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    offset: usize,
}

pub(super) const SOURCE: Address = Address { offset: offset_of!(plait_packet, source) };
pub(super) const DESTINATION: Address = Address { offset: offset_of!(plait_packet, destination) };

impl Address {
    pub(super) fn high(self) -> Field {
        Field::Record { offset: self.offset, bits: 64 }
    }

    pub(super) fn low(self) -> Field {
        Field::Record { offset: self.offset + 8, bits: 64 }
    }

    /// The IPv4 address.
    pub(super) fn v4(self) -> Field {
        low_half(self.offset + 8)
    }
}

/// The lower 32 bits of a number of 64.
const fn low_half(offset: usize) -> Field {
    Field::Record { offset: if cfg!(target_endian = "big") { offset + 4 } else { offset }, bits: 32 }
}

impl Field {
    pub(super) fn bits(self) -> u32 {
        match self {
            Self::Record { bits, .. } => bits,
            Self::Ancestor { .. } => 64,
        }
    }

    /// The largest number it can hold.
    pub(super) fn most(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

impl Test {
    /// The answer for a number.
    pub(super) fn holds(&self, number: u64) -> bool {
        match self.compare {
            Compare::AnyOf(mask) => number & mask != 0,
            Compare::Masked { mask, value } => number & mask == value,
            Compare::Within { first, span } => number.wrapping_sub(first) & self.field.most() <= span,
        }
    }

    /// What the answer to another test says about this one: its answer, or nothing.
    pub(super) fn known_by(&self, other: &Test, answer: bool) -> Option<bool> {
        use Compare::{AnyOf, Masked};
        if self.field != other.field {
            return None;
        }
        if self.compare == other.compare {
            return Some(answer);
        }
        match (other.compare, answer, self.compare) {
            (Masked { mask, value }, true, _) if mask == self.field.most() => Some(self.holds(value)),
            (Masked { mask: m, value: v }, true, Masked { mask, value }) if (v ^ value) & m & mask != 0 => {
                Some(false)
            }
            (AnyOf(empty), false, AnyOf(mask)) if mask & !empty == 0 => Some(false),
            (AnyOf(some), true, AnyOf(mask)) if some & !mask == 0 => Some(true),
            _ => None,
        }
    }
}
