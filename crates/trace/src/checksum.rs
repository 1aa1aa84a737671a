use std::ops::Range;

use plait_wire::checksum::Checksum;
use plait_wire::mptcp::{DataSeq, SubflowSeq};

use crate::Checksums;

/// Verifies the DSS checksums of one side of a subflow (RFC 8684 3.3.1): over mappings whose data comes in order and
/// was captured as a whole. What is interrupted is not judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Verifier {
    current: Option<Current>,
}

#[derive(Clone, Copy, Debug)]
struct Current {
    sum: Checksum,
    /// The last byte, where an odd number of them was summed up.
    odd: Option<u8>,
    expected: u16,
    /// The places whose data is missing yet.
    rest: Places,
}

/// From the first place to behind the last.
#[derive(Clone, Copy, Debug)]
struct Places {
    start: i64,
    end: i64,
}

impl Verifier {
    /// A mapping of the data at these places of the subflow, which has this checksum. `length` is what the option
    /// says, with a DATA_FIN counted as one.
    pub(crate) fn begin(
        &mut self,
        places: Range<i64>,
        data_seq: DataSeq,
        subflow_seq: SubflowSeq,
        length: u16,
        expected: u16,
    ) {
        let sum = Checksum::new()
            .with(&data_seq.0.to_be_bytes())
            .with(&subflow_seq.0.to_be_bytes())
            .with(&length.to_be_bytes());
        let rest = Places { start: places.start, end: places.end };
        self.current = Some(Current { sum, odd: None, expected, rest });
    }

    /// Data from `place` on, of which `captured` is there and which had `length` bytes on the wire.
    pub(crate) fn data(&mut self, place: i64, captured: &[u8], length: usize, checksums: &mut Checksums) {
        let Some(Current { sum, odd, expected, rest }) = &mut self.current else { return };
        if place != rest.start || captured.len() < length {
            self.current = None;
            return;
        }
        let taken = captured.len().min((rest.end - rest.start) as usize);
        let mut bytes = &captured[..taken];
        if let (Some(first), [second, others @ ..]) = (*odd, bytes) {
            *sum = sum.with(&[first, *second]);
            *odd = None;
            bytes = others;
        }
        let (even, last) = bytes.split_at(bytes.len() & !1);
        *sum = sum.with(even);
        *odd = last.first().copied().or(*odd);
        rest.start += taken as i64;
        if rest.start == rest.end {
            let sum = if let Some(last) = *odd { sum.with(&[last]) } else { *sum };
            match sum.finish() == *expected {
                true => checksums.right += 1,
                false => checksums.wrong += 1,
            }
            self.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plait_wire::checksum;
    use proptest::prelude::*;

    proptest! {
        /// However the data is cut into segments; one changed byte is noticed.
        #[test]
        fn same_as_over_the_whole(
            data in proptest::collection::vec(any::<u8>(), 1..200),
            cuts in proptest::collection::vec(1..50usize, 0..20),
            changed in any::<proptest::sample::Index>(),
        ) {
            let (data_seq, subflow_seq, length) = (DataSeq(0x1122_3344_5566_7788), SubflowSeq(1), data.len() as u16);
            let expected = checksum::dss(data_seq, subflow_seq, length, &data);
            let mut other = data.clone();
            other[changed.index(data.len())] ^= 1;
            for (data, right) in [(&data, 1), (&other, 0)] {
                let (mut verifier, mut checksums) = (Verifier::default(), Checksums::default());
                verifier.begin(1..1 + i64::from(length), data_seq, subflow_seq, length, expected);
                let (mut at, mut cuts) = (0, cuts.iter());
                while at < data.len() {
                    let end = cuts.next().map_or(data.len(), |cut| (at + cut).min(data.len()));
                    verifier.data(1 + at as i64, &data[at..end], end - at, &mut checksums);
                    at = end;
                }
                prop_assert_eq!((checksums.right, checksums.wrong), (right, 1 - right));
            }
        }
    }

    #[test]
    fn what_is_not_there_as_a_whole_is_not_judged() {
        let (mut verifier, mut checksums) = (Verifier::default(), Checksums::default());
        for (place, captured, length) in [(1, 10, 20), (5, 20, 20)] {
            verifier.begin(1..21, DataSeq(0), SubflowSeq(1), 20, 0);
            verifier.data(place, &[0; 20][..captured], length, &mut checksums);
        }
        assert_eq!(checksums, Checksums::default());
    }
}
