//! pcapng files: the output of Wireshark's editcap reads like its input, a pcap file, wherever it ends; a file built by
//! hand from the draft covers what editcap does not write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::blocks::Blocks;
use crate::read_all;
use plait_wire::LinkType;
use plait_wire::capture::{
    ByteOrder, CaptureError, PcapHeader, PcapReader, PcapWriter, PcapngReader, Record, Resolution, Timestamp,
};

pub(crate) type Owned = (Timestamp, u32, LinkType, u32, Vec<u8>);

fn owned(record: Record<'_>) -> Owned {
    (record.time, record.interface, record.link_type, record.wire_len, record.data.to_vec())
}

pub(crate) fn read(file: &[u8]) -> (Vec<Owned>, Option<CaptureError>) {
    match PcapngReader::new(file) {
        Ok(mut reader) => read_all(|| Ok(reader.next_record()?.map(owned))),
        Err(error) => (Vec::new(), Some(error)),
    }
}

fn read_pcap(file: &[u8]) -> Vec<Owned> {
    let mut reader = PcapReader::new(file).expect("a pcap file");
    read_all(|| Ok(reader.next_record()?.map(owned))).0
}

/// The records of a pcap file after its conversion to pcapng by editcap; `None` if editcap is missing.
fn converted(test: &str, path: &Path) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out.pcapng");
    match Command::new("editcap").args(["-F", "pcapng"]).arg(path).arg(&output).output() {
        // editcap also fails on a truncated file, after it has written the records before the end.
        Ok(_) => Some(fs::read(output).expect("editcap wrote a file")),
        Err(error) => {
            println!("SKIP {test}: editcap cannot be run: {error}");
            None
        }
    }
}

#[test]
fn editcap_output_reads_the_same_up_to_truncation() {
    let test = "editcap_output_reads_the_same_up_to_truncation";
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("in.pcap");
    for resolution in [Resolution::Microseconds, Resolution::Nanoseconds] {
        let header = PcapHeader { resolution, snap_len: 60, ..PcapHeader::new(LinkType::RawIp) };
        let mut writer = PcapWriter::new(Vec::new(), header).expect("memory");
        for index in 0..9u64 {
            let frame = vec![index as u8; 10 * index as usize + 3];
            writer.write(Timestamp(1_700_000_000_123_456_789 + index), &frame).expect("memory");
        }
        let pcap = writer.into_inner();
        fs::write(&path, &pcap).expect("a writable directory");
        let Some(file) = converted(test, &path) else { return };
        let (whole, error) = read(&file);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(whole, read_pcap(&pcap));
        let mut cut_records = 0;
        for cut in 0..file.len() {
            let (records, error) = read(&file[..cut]);
            assert_eq!(records, whole[..records.len()], "cut at {cut}");
            assert!(records.len() >= cut_records, "more bytes, no fewer records");
            cut_records = records.len();
            match error {
                None | Some(CaptureError::Truncated { .. }) => {}
                Some(CaptureError::Empty) => assert_eq!(cut, 0),
                Some(CaptureError::NotACapture { .. }) => assert!(cut < 4),
                Some(error) => panic!("cut at {cut}: {error}"),
            }
        }
    }
}

#[test]
fn real_captures_read_as_their_conversions_do() {
    let test = "real_captures_read_as_their_conversions_do";
    let Some(directory) = std::env::var_os("PLAIT_CAPTURES").map(PathBuf::from) else {
        println!("SKIP {test}: PLAIT_CAPTURES names no directory");
        return;
    };
    for entry in fs::read_dir(&directory).expect("a readable directory") {
        let path = entry.expect("a readable directory").path();
        let file = fs::read(&path).expect("a readable file");
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("pcap") => {
                let Some(converted) = converted(test, &path) else { return };
                let (records, error) = read(&converted);
                assert!(error.is_none(), "{}: {error:?}", path.display());
                assert_eq!(records, read_pcap(&file), "{}", path.display());
            }
            Some("pcapng") => {
                let (records, error) = read(&file);
                assert!(error.is_none() && !records.is_empty(), "{}: {error:?}", path.display());
            }
            _ => {}
        }
    }
}

#[test]
fn simple_obsolete_and_unknown_blocks_and_interfaces_of_a_big_endian_file() {
    let mut file = Blocks::new();
    file.section(ByteOrder::Big);
    // Raw IP, snap length 4; time stamps in units of 2^-1 s with an offset of 10 s.
    file.interface(101, 4, &[(9, vec![0x81]), (14, vec![0, 0, 0, 0, 0, 0, 0, 10])]);
    file.interface(147, 0, &[]);
    file.block(0x0bad, &[7; 300_000]);
    file.obsolete(0, 3, 9, &[1, 2]);
    file.simple(6, &[3, 4, 5, 6]);
    file.enhanced(1, 5_000_000, 1, &[7]);
    file.enhanced(2, 0, 0, &[]);
    let (records, error) = read(&file.bytes);
    let late = Timestamp(11_500_000_000);
    assert_eq!(
        records,
        [
            (late, 0, LinkType::RawIp, 9, vec![1, 2]),
            (late, 0, LinkType::RawIp, 6, vec![3, 4, 5, 6]),
            (Timestamp(5_000_000_000), 1, LinkType::Other(147), 1, vec![7]),
        ]
    );
    assert!(error.expect("no interface 2").to_string().contains("interface number"));
}
