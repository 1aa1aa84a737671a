//! Verification of DSS checksums.

use std::ops::Range;

use plait_wire::checksum::Checksum;
use plait_wire::mptcp::{DataSeq, SubflowSeq};

use crate::sender_stats::Checksums;

/// Verifies the DSS checksums of one side of a subflow (RFC 8684 3.3.1), for mappings whose data arrives in order and was
/// captured completely. Others are not counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChecksumVerifier {
    current: Option<CurrentMapping>,
}

#[derive(Clone, Copy, Debug)]
struct CurrentMapping {
    sum: Checksum,
    /// The last byte, if an odd number was summed.
    odd: Option<u8>,
    expected: u16,
    /// The offsets whose data is still missing.
    rest: OffsetRange,
}

/// `start..end`, but `Copy`.
#[derive(Clone, Copy, Debug)]
struct OffsetRange {
    start: i64,
    end: i64,
}

impl ChecksumVerifier {
    /// Begins a mapping with its checksum. `length` is that of the option, which includes a DATA_FIN.
    pub(crate) fn begin(
        &mut self,
        offsets: Range<i64>,
        data_seq: DataSeq,
        subflow_seq: SubflowSeq,
        length: u16,
        expected: u16,
    ) {
        let sum = Checksum::new()
            .with(&data_seq.0.to_be_bytes())
            .with(&subflow_seq.0.to_be_bytes())
            .with(&length.to_be_bytes());
        let rest = OffsetRange { start: offsets.start, end: offsets.end };
        self.current = Some(CurrentMapping { sum, odd: None, expected, rest });
    }

    /// Adds data at `offset`, of which `captured` was captured out of `length` bytes.
    pub(crate) fn data(&mut self, offset: i64, captured: &[u8], length: usize, checksums: &mut Checksums) {
        let Some(CurrentMapping { sum, odd, expected, rest }) = &mut self.current else { return };
        if offset != rest.start || captured.len() < length {
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
                true => checksums.valid += 1,
                false => checksums.invalid += 1,
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
        /// However the data is split into segments; one modified byte is detected.
        #[test]
        fn equals_checksum_of_whole_mapping(
            data in proptest::collection::vec(any::<u8>(), 1..200),
            cuts in proptest::collection::vec(1..50usize, 0..20),
            changed in any::<proptest::sample::Index>(),
        ) {
            let (data_seq, subflow_seq, length) = (DataSeq(0x1122_3344_5566_7788), SubflowSeq(1), data.len() as u16);
            let expected = checksum::dss(data_seq, subflow_seq, length, &data);
            let mut other = data.clone();
            other[changed.index(data.len())] ^= 1;
            for (data, valid) in [(&data, 1), (&other, 0)] {
                let (mut verifier, mut checksums) = (ChecksumVerifier::default(), Checksums::default());
                verifier.begin(1..1 + i64::from(length), data_seq, subflow_seq, length, expected);
                let (mut at, mut cuts) = (0, cuts.iter());
                while at < data.len() {
                    let end = cuts.next().map_or(data.len(), |cut| (at + cut).min(data.len()));
                    verifier.data(1 + at as i64, &data[at..end], end - at, &mut checksums);
                    at = end;
                }
                prop_assert_eq!((checksums.valid, checksums.invalid), (valid, 1 - valid));
            }
        }
    }

    #[test]
    fn ignores_incomplete_mappings() {
        let (mut verifier, mut checksums) = (ChecksumVerifier::default(), Checksums::default());
        for (offset, captured, length) in [(1, 10, 20), (5, 20, 20)] {
            verifier.begin(1..21, DataSeq(0), SubflowSeq(1), 20, 0);
            verifier.data(offset, &[0; 20][..captured], length, &mut checksums);
        }
        assert_eq!(checksums, Checksums::default());
    }
}
