//! Time stamps of pcapng interfaces.

use super::{ByteOrder, Timestamp};
use crate::error::ParseError;

/// The unit and offset of a pcapng interface's time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    unit: Unit,
    /// Added to every time stamp, in seconds.
    offset: i64,
}

/// The unit of time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// This number of nanoseconds.
    Nanoseconds(u64),
    /// A nanosecond divided by this.
    NanosecondOver(u128),
    /// 2^-n s.
    Binary(u32),
}

impl Clock {
    /// Parses the options of an interface description (section 4.2 of the draft); only if_tsresol and if_tsoffset
    /// matter.
    pub(super) fn parse(options: &[u8], byte_order: ByteOrder) -> Result<Self, ParseError> {
        const END: u16 = 0;
        const RESOLUTION: u16 = 9;
        const OFFSET: u16 = 14;
        let mut clock = Self { unit: Unit::Nanoseconds(1000), offset: 0 };
        let mut rest = options;
        while let Some((&[c0, c1, l0, l1], after)) = rest.split_first_chunk() {
            let len = usize::from(byte_order.u16([l0, l1]));
            let Some(value) = after.get(..len) else {
                let what = "option of an interface description";
                return Err(ParseError::Truncated { what, expected: len, got: after.len() });
            };
            match (byte_order.u16([c0, c1]), value) {
                (END, _) => break,
                (RESOLUTION, &[resolution]) => clock.unit = Unit::parse(resolution),
                (RESOLUTION, _) => {
                    let what = "time resolution of an interface";
                    return Err(ParseError::Length { what, expected: "1", got: len });
                }
                (OFFSET, &[a, b, c, d, e, f, g, h]) => {
                    let bytes = [a, b, c, d, e, f, g, h];
                    clock.offset = match byte_order {
                        ByteOrder::Little => i64::from_le_bytes(bytes),
                        ByteOrder::Big => i64::from_be_bytes(bytes),
                    };
                }
                (OFFSET, _) => {
                    let what = "time offset of an interface";
                    return Err(ParseError::Length { what, expected: "8", got: len });
                }
                _ => {}
            }
            rest = after.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(clock)
    }

    /// The time of this number of units, or the nearest that a [`Timestamp`] can represent.
    #[inline]
    pub(super) fn timestamp(self, ticks: u64) -> Timestamp {
        const SECOND: u64 = 1_000_000_000;
        if let Self { unit: Unit::Nanoseconds(unit), offset: 0 } = self {
            return Timestamp(ticks.saturating_mul(unit));
        }
        let nanoseconds = match self.unit {
            Unit::Nanoseconds(unit) => u128::from(ticks) * u128::from(unit),
            Unit::NanosecondOver(part) => u128::from(ticks) / part,
            Unit::Binary(exponent) => (u128::from(ticks) * u128::from(SECOND)) >> exponent,
        };
        // Below 2^94, like the summand.
        let nanoseconds = nanoseconds as i128 + i128::from(self.offset) * i128::from(SECOND);
        Timestamp(nanoseconds.clamp(0, u64::MAX.into()) as u64)
    }
}

impl Unit {
    /// Parses if_tsresol: the upper bit selects whether the rest is a negative power of 2 or of 10.
    fn parse(resolution: u8) -> Self {
        let exponent = u32::from(resolution & 0x7f);
        if resolution & 0x80 != 0 {
            Self::Binary(exponent)
        } else if exponent <= 9 {
            Self::Nanoseconds(10u64.pow(9 - exponent))
        } else {
            // A divisor above all time stamps yields 0, as the true one would.
            Self::NanosecondOver(10u128.checked_pow(exponent - 9).unwrap_or(u128::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(resolution: u8, offset: i64, ticks: u64) -> u64 {
        Clock { unit: Unit::parse(resolution), offset }.timestamp(ticks).0
    }

    #[test]
    fn resolutions_are_powers_of_ten_or_two() {
        assert_eq!(time(0, 0, 7), 7_000_000_000);
        assert_eq!(time(3, 0, 7), 7_000_000);
        assert_eq!(time(9, 0, 7), 7);
        assert_eq!(time(12, 0, 7_999), 7);
        assert_eq!(time(127, 0, u64::MAX), 0);
        assert_eq!(time(0x80, 0, 7), 7_000_000_000);
        assert_eq!(time(0x80 | 10, 0, 1536), 1_500_000_000);
        assert_eq!(time(0xff, 0, u64::MAX), 0);
    }

    #[test]
    fn offset_moves_the_clock_within_its_limits() {
        assert_eq!(time(6, -1, 1_500_000), 500_000_000);
        assert_eq!(time(6, 3, 1_500_000), 4_500_000_000);
        assert_eq!(time(6, -2, 1_500_000), 0);
        assert_eq!(time(6, i64::MIN, 1_500_000), 0);
        assert_eq!(time(0, i64::MAX, u64::MAX), u64::MAX);
        assert_eq!(time(0, 0, u64::MAX), u64::MAX);
    }
}
