//! Several captures of one measurement, merged by time.

use plait_wire::LinkType;
use plait_wire::capture::{CaptureError, CaptureReader, MergedReader, PcapHeader, PcapWriter, Timestamp};
use proptest::collection::vec;
use proptest::prelude::*;

fn file(times: &[u64]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), PcapHeader::new(LinkType::Ethernet)).expect("memory");
    for time in times {
        writer.write(Timestamp(*time), &[0; 3]).expect("memory");
    }
    writer.into_inner()
}

type Sequence = Vec<(u64, usize)>;

fn merge(files: &[Vec<u8>]) -> (Sequence, Vec<(usize, CaptureError)>, Vec<u64>) {
    let readers = files.iter().map(|file| CaptureReader::new(file.as_slice()).expect("a capture"));
    let mut merged = MergedReader::new(readers.collect());
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    loop {
        match merged.next_record() {
            Ok(Some((source, record))) => records.push((record.time.0, source)),
            Ok(None) => break,
            Err(error) => errors.push(error),
        }
    }
    let steps_back = (0..files.len()).map(|source| merged.steps_back(source)).collect();
    (records, errors, steps_back)
}

proptest! {
    #[test]
    fn sorted_captures_merge_as_a_stable_sort(mut times in vec(vec(0u64..50, 0..20), 0..5)) {
        times.iter_mut().for_each(|times| times.sort_unstable());
        let files: Vec<_> = times.iter().map(|times| file(times)).collect();
        let mut expected: Sequence = (0..times.len())
            .flat_map(|source| times[source].iter().map(move |time| (*time, source)))
            .collect();
        expected.sort_by_key(|(time, _)| *time);
        let (records, errors, steps_back) = merge(&files);
        prop_assert_eq!(records, expected);
        prop_assert!(errors.is_empty() && steps_back.iter().all(|count| *count == 0));
    }
}

#[test]
fn a_clock_that_goes_back_keeps_the_order_of_its_capture_and_is_counted() {
    let (records, _, steps_back) = merge(&[file(&[5, 2, 9]), file(&[1, 6])]);
    assert_eq!(records, [(1, 1), (5, 0), (2, 0), (6, 1), (9, 0)]);
    assert_eq!(steps_back, [1, 0]);
}

#[test]
fn a_damaged_capture_ends_alone() {
    let mut cut = file(&[1, 3]);
    cut.pop();
    let (records, errors, _) = merge(&[cut, file(&[2, 4])]);
    assert_eq!(records, [(1, 0), (2, 1), (4, 1)]);
    assert!(matches!(errors[..], [(0, CaptureError::Truncated { .. })]));
}
