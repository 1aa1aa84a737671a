//! `CaptureReader`: a capture reads the same in every format and compression, up to where it is truncated.

use std::fs;
use std::process::Command;

use crate::blocks::Blocks;
use crate::read_all;
use plait_wire::LinkType;
use plait_wire::capture::{
    ByteOrder, CaptureError, CaptureReader, Compression, Format, PcapHeader, PcapWriter, Timestamp,
};

fn read(file: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<CaptureError>) {
    match CaptureReader::new(file) {
        Ok(mut reader) => {
            read_all(|| Ok(reader.next_record()?.map(|record| (record.time.0, record.data.to_vec()))))
        }
        Err(error) => (Vec::new(), Some(error)),
    }
}

/// The same 40 records in both formats.
fn captures() -> [(Format, Vec<u8>); 2] {
    let mut pcap = PcapWriter::new(Vec::new(), PcapHeader::new(LinkType::Ethernet)).expect("memory");
    let mut pcapng = Blocks::new();
    pcapng.section(ByteOrder::Big);
    pcapng.interface(LinkType::Ethernet.number(), 0, &[(9, vec![9])]);
    for index in 0..40u8 {
        pcap.write(Timestamp(index.into()), &[index; 50]).expect("memory");
        pcapng.enhanced(0, index.into(), 50, &[index; 50]);
    }
    [(Format::Pcap, pcap.into_inner()), (Format::Pcapng, pcapng.bytes)]
}

/// The bytes compressed by the usual tool; `None` if it is missing.
fn compressed(compression: Compression, bytes: &[u8]) -> Option<Vec<u8>> {
    let tool = match compression {
        Compression::Gzip => "gzip",
        Compression::Zstd => "zstd",
        Compression::Xz => "xz",
    };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("capture");
    fs::write(&path, bytes).expect("a writable directory");
    match Command::new(tool).arg("-c").arg(&path).output() {
        Ok(output) => Some(output.stdout),
        Err(error) => {
            println!("SKIP captures compressed by {tool}: it cannot be run: {error}");
            None
        }
    }
}

const COMPRESSIONS: [Compression; 3] = [Compression::Gzip, Compression::Zstd, Compression::Xz];

#[test]
fn compressed_captures_read_the_same_up_to_truncation() {
    for (format, plain) in captures() {
        let (whole, error) = read(&plain);
        assert!(error.is_none() && whole.len() == 40, "{error:?}");
        for compression in COMPRESSIONS {
            let Some(file) = compressed(compression, &plain) else { continue };
            let reader = CaptureReader::new(file.as_slice()).expect("a compressed capture");
            assert_eq!((reader.format(), reader.compression()), (format, Some(compression)));
            let (records, error) = read(&file);
            assert!(error.is_none(), "{compression:?}: {error:?}");
            assert_eq!(records, whole);
            let mut kept = 0;
            for cut in 0..file.len() {
                let (records, error) = read(&file[..cut]);
                assert_eq!(records, whole[..records.len()], "{compression:?} cut at {cut}");
                assert!(records.len() >= kept, "more bytes, no fewer records");
                kept = records.len();
                match error {
                    Some(CaptureError::Truncated { .. }) => {}
                    Some(CaptureError::Empty) => assert_eq!(cut, 0),
                    // The signature of xz is the longest, 6 bytes.
                    Some(CaptureError::NotACapture { .. }) => assert!(cut < 6),
                    other => panic!("{compression:?} cut at {cut}: {other:?}"),
                }
            }
            for index in 0..file.len() {
                let mut damaged = file.clone();
                damaged[index] ^= 0x55;
                read(&damaged);
            }
        }
    }
}

#[test]
fn concatenated_compressed_pieces_read_as_one_capture() {
    for (_, plain) in captures() {
        let (whole, _) = read(&plain);
        for compression in COMPRESSIONS {
            let pieces: Option<Vec<_>> =
                plain.chunks(700).map(|piece| compressed(compression, piece)).collect();
            let Some(pieces) = pieces else { continue };
            assert!(pieces.len() > 2);
            let (records, error) = read(&pieces.concat());
            assert!(error.is_none(), "{compression:?}: {error:?}");
            assert_eq!(records, whole);
            // A cut between two pieces truncates the capture, but not the compressed data.
            let (records, error) = read(&pieces[..2].concat());
            assert!(matches!(error, Some(CaptureError::Truncated { .. })), "{compression:?}: {error:?}");
            assert_eq!(records, read(&plain[..1400]).0);
        }
    }
}

#[test]
fn errors_name_the_format_of_other_files() {
    let message = |bytes: &[u8]| read(bytes).1.expect("not a capture").to_string();
    assert!(message(b"").contains("empty"));
    assert!(message(b"GIF89a..").contains("GIF89a"));
    assert!(message(b"BZh91AY&").contains("bzip2"));
    assert!(message(&[0xa1, 0xb2]).contains("a1b2"));
}
