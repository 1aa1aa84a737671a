//! pcap files: what was written is read, however the input is fragmented and wherever it ends.

use std::io::{self, Read};

use crate::read_all;
use plait_wire::LinkType;
use plait_wire::capture::{
    ByteOrder, CaptureError, MAX_RECORD_LEN, PcapHeader, PcapReader, PcapWriter, Resolution, Timestamp,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

type Owned = (Timestamp, u32, Vec<u8>);

fn header() -> impl Strategy<Value = PcapHeader> {
    let link_type = select((0..300).filter_map(LinkType::from_number).collect::<Vec<_>>());
    let byte_order = select(vec![ByteOrder::Little, ByteOrder::Big]);
    let resolution = select(vec![Resolution::Microseconds, Resolution::Nanoseconds]);
    (byte_order, resolution, 0u32..400, link_type).prop_map(
        |(byte_order, resolution, snap_len, link_type)| PcapHeader {
            byte_order,
            resolution,
            snap_len,
            link_type,
        },
    )
}

fn frames() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
    vec((0..4_000_000_000_000_000_000u64, vec(any::<u8>(), 0..300)), 0..20)
}

fn write(header: PcapHeader, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), header).expect("memory");
    for (time, frame) in frames {
        writer.write(Timestamp(*time), frame).expect("memory");
    }
    writer.into_inner()
}

fn read(input: impl Read) -> (Vec<Owned>, Option<CaptureError>) {
    let mut reader = match PcapReader::new(input) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let read = read_all(|| {
        Ok(reader.next_record()?.map(|record| (record.time, record.wire_len, record.data.to_vec())))
    });
    assert!(matches!(reader.next_record(), Ok(None)), "nothing follows the end or an error");
    read
}

fn expected(header: PcapHeader, frames: &[(u64, Vec<u8>)]) -> Vec<Owned> {
    let unit = match header.resolution {
        Resolution::Microseconds => 1000,
        Resolution::Nanoseconds => 1,
    };
    frames
        .iter()
        .map(|(time, frame)| {
            let captured = frame.len().min(header.snap_len as usize);
            (Timestamp(time / unit * unit), frame.len() as u32, frame[..captured].to_vec())
        })
        .collect()
}

/// Returns a few bytes at a time, with interruptions in between.
struct Chopped<'a> {
    bytes: &'a [u8],
    step: usize,
    interrupt: bool,
}

impl Read for Chopped<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.interrupt = !self.interrupt;
        if self.interrupt {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let limit = self.step.min(buffer.len());
        self.bytes.read(&mut buffer[..limit])
    }
}

proptest! {
    #[test]
    fn written_then_read_is_the_same(header in header(), frames in frames(), step in 1usize..50) {
        let file = write(header, &frames);
        prop_assert_eq!(PcapReader::new(file.as_slice()).expect("a pcap file").header(), header);
        let (records, error) = read(Chopped { bytes: &file, step, interrupt: false });
        prop_assert!(error.is_none());
        prop_assert_eq!(records, expected(header, &frames));
    }

    #[test]
    fn keeps_records_before_a_truncation(
        header in header(),
        frames in frames(),
        cut in any::<prop::sample::Index>(),
    ) {
        let file = write(header, &frames);
        let cut = cut.index(file.len());
        let whole = expected(header, &frames);
        let ends: Vec<usize> = whole
            .iter()
            .scan(24, |end, (_, _, data)| {
                *end += 16 + data.len();
                Some(*end)
            })
            .collect();
        let complete = ends.iter().filter(|end| **end <= cut).count();
        let (records, error) = read(&file[..cut]);
        prop_assert_eq!(&records, &whole[..complete]);
        let at_boundary = cut == 24 || ends.contains(&cut);
        match error {
            None => prop_assert!(at_boundary),
            Some(CaptureError::Empty) => prop_assert_eq!(cut, 0),
            Some(CaptureError::Truncated { offset, .. }) => {
                prop_assert!(!at_boundary);
                let start = if cut < 24 { 0 } else { complete.checked_sub(1).map_or(24, |last| ends[last]) };
                prop_assert_eq!(offset, start as u64);
            }
            Some(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(header in header(), bytes in vec(any::<u8>(), 0..200)) {
        read(bytes.as_slice());
        let mut file = write(header, &[]);
        file.extend_from_slice(&bytes);
        read(file.as_slice());
    }

    #[test]
    fn peeking_does_not_consume(header in header(), frames in frames()) {
        let file = write(header, &frames);
        let mut reader = PcapReader::new(file.as_slice()).expect("a pcap file");
        for (time, ..) in expected(header, &frames) {
            prop_assert_eq!(reader.peek_time().expect("a whole file"), Some(time));
            let record = reader.next_record().expect("a whole file");
            prop_assert_eq!(record.map(|record| record.time), Some(time));
        }
        prop_assert_eq!(reader.peek_time().expect("a whole file"), None);
    }
}

#[test]
fn reads_a_record_longer_than_the_buffer() {
    let header = PcapHeader { snap_len: MAX_RECORD_LEN, ..PcapHeader::new(LinkType::Ethernet) };
    let frames = [(1, vec![7; 100]), (2, vec![8; MAX_RECORD_LEN as usize]), (3, vec![9; 100])];
    let (records, error) = read(write(header, &frames).as_slice());
    assert!(error.is_none());
    assert_eq!(records, expected(header, &frames));
}

#[test]
fn keeps_records_before_a_corrupt_length() {
    let header = PcapHeader::new(LinkType::Ethernet);
    let mut file = write(header, &[(1, vec![7; 10])]);
    file.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0]);
    let (records, error) = read(file.as_slice());
    assert_eq!(records.len(), 1);
    assert!(matches!(error, Some(CaptureError::RecordTooLong { offset: 50, got: 0x7fff_ffff })));
}

#[test]
fn other_formats_are_named() {
    let message = |bytes: &[u8]| match PcapReader::new(bytes) {
        Ok(_) => panic!("not a pcap file"),
        Err(error) => error.to_string(),
    };
    assert!(message(&[]).contains("empty"));
    assert!(message(&[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 0]).contains("pcapng"));
    assert!(message(&[0x1f, 0x8b, 8, 0]).contains("gzip"));
    assert!(message(b"GIF89a").contains("47494638"));
    let mut file = write(PcapHeader::new(LinkType::Ethernet), &[]);
    file[20] = 105;
    assert!(message(&file).contains("105"));
    file[4] = 3;
    assert!(message(&file).contains("version 2 expected, got 3"));
    assert!(message(&file[..9]).contains("truncated"));
}
