//! A single test of the packet record.

use std::mem::offset_of;

use crate::bindings::plait_packet;

/// The operand of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// A field of the packet record.
    Record { offset: usize, bits: u32 },
    /// The ID of the control group at this level above the socket; 0 if there is none.
    Ancestor { level: u32 },
}

/// The comparison of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// At least one of these bits is set.
    AnyOf(u64),
    /// The bits under the mask equal the value.
    Masked { mask: u64, value: u64 },
    /// It is in a range of `span` + 1 numbers from `first` on, wrapping around.
    Within { first: u64, span: u64 },
}

/// A test with a boolean result.
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

/// Only the lower 32 bits are used, and 32-bit operands make shorter instructions.
pub(super) const KINDS: Field = low_half(offset_of!(plait_packet, kinds));
pub(super) const OWN_MATCHED: Field = low_half(offset_of!(plait_packet, custom_matched));

/// The offset of an address in the record: two 64-bit halves.
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

/// The lower half of a 64-bit field.
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

    /// The maximum value.
    pub(super) fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

impl Test {
    /// The result for a number.
    pub(super) fn holds(&self, number: u64) -> bool {
        match self.compare {
            Compare::AnyOf(mask) => number & mask != 0,
            Compare::Masked { mask, value } => number & mask == value,
            Compare::Within { first, span } => number.wrapping_sub(first) & self.field.max() <= span,
        }
    }

    /// The result, if the result of another test implies it.
    pub(super) fn implied_by(&self, other: &Test, answer: bool) -> Option<bool> {
        use Compare::{AnyOf, Masked};
        if self.field != other.field {
            return None;
        }
        if self.compare == other.compare {
            return Some(answer);
        }
        match (other.compare, answer, self.compare) {
            (Masked { mask, value }, true, _) if mask == self.field.max() => Some(self.holds(value)),
            (Masked { mask: m, value: v }, true, Masked { mask, value }) if (v ^ value) & m & mask != 0 => {
                Some(false)
            }
            (AnyOf(empty), false, AnyOf(mask)) if mask & !empty == 0 => Some(false),
            (AnyOf(some), true, AnyOf(mask)) if some & !mask == 0 => Some(true),
            _ => None,
        }
    }
}
