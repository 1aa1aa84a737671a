//! One entry for all formats: a capture reads the same whatever it is wrapped in, as far as it goes.

use std::fs;
use std::process::Command;

use plait_wire::LinkType;
use plait_wire::capture::{CaptureError, CaptureReader, Compression, PcapHeader, PcapWriter, Timestamp};

fn read(file: &[u8]) -> (Vec<(u64, Vec<u8>)>, Option<CaptureError>) {
    let mut records = Vec::new();
    let mut reader = match CaptureReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (records, Some(error)),
    };
    loop {
        match reader.next_record() {
            Ok(Some(record)) => records.push((record.time.0, record.data.to_vec())),
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(error)),
        }
    }
}

#[test]
fn compressed_by_gzip_and_zstd_a_capture_reads_the_same_as_far_as_it_goes() {
    let mut writer = PcapWriter::new(Vec::new(), PcapHeader::new(LinkType::Ethernet)).expect("memory");
    for index in 0..40u8 {
        writer.write(Timestamp(index.into()), &[index; 50]).expect("memory");
    }
    let plain = writer.into_inner();
    let (whole, error) = read(&plain);
    assert!(error.is_none() && whole.len() == 40);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("capture");
    fs::write(&path, &plain).expect("a writable folder");
    for (tool, compression) in [("gzip", Compression::Gzip), ("zstd", Compression::Zstd)] {
        let output = match Command::new(tool).arg("-c").arg(&path).output() {
            Ok(output) => output.stdout,
            Err(error) => {
                println!("SKIP compressed_by_{tool}: it cannot be run: {error}");
                continue;
            }
        };
        let reader = CaptureReader::new(output.as_slice()).expect("a compressed capture");
        assert_eq!(reader.compression(), Some(compression));
        let (records, error) = read(&output);
        assert!(error.is_none(), "{tool}: {error:?}");
        assert_eq!(records, whole);
        for cut in 0..output.len() {
            let (records, error) = read(&output[..cut]);
            assert_eq!(records, whole[..records.len()], "{tool} cut at {cut}");
            assert!(error.is_some(), "{tool} cut at {cut} is not whole");
        }
        for index in 0..output.len() {
            let mut damaged = output.clone();
            damaged[index] ^= 0x55;
            read(&damaged);
        }
    }
}

#[test]
fn what_is_no_capture_is_named() {
    let message = |bytes: &[u8]| read(bytes).1.expect("not a capture").to_string();
    assert!(message(b"").contains("empty"));
    assert!(message(b"GIF89a..").contains("GIF89a"));
    assert!(message(b"BZh91AY&").contains("bzip2"));
    assert!(message(&[0xa1, 0xb2]).contains("a1b2"));
}
