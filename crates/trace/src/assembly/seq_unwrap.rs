//! Extension of 32-bit sequence numbers to 64 bits.

/// Extends 32-bit sequence numbers to 64 bits: each is taken to lie within 2^31 of the one before. Positions before the
/// first one are negative.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeqUnwrapper {
    latest: i64,
}

impl SeqUnwrapper {
    /// The position of `number`, which becomes the reference for the next.
    pub(crate) fn advance(&mut self, number: u32) -> i64 {
        self.latest = self.near(number);
        self.latest
    }

    /// The position of `number`.
    pub(crate) fn near(&self, number: u32) -> i64 {
        // The signed difference of the low halves is the shortest distance.
        let distance = number.wrapping_sub(self.latest as u32) as i32;
        self.latest + i64::from(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn follows_any_sequence_of_short_steps(steps in proptest::collection::vec(any::<i32>(), 0..50)) {
            let (mut unwrap, mut position) = (SeqUnwrapper::default(), 0i64);
            for step in steps {
                position += i64::from(step);
                prop_assert_eq!(unwrap.advance(position as u32), position);
            }
        }
    }
}
