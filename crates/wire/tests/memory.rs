//! Reading takes bounded memory, whatever a small compressed file decompresses to or claims to need. A separate test
//! program, because it measures the memory of the whole process.

use std::fs;

use flate2::{Compress, Compression, FlushCompress};
use plait_wire::capture::{CaptureError, CaptureReader, MAX_RECORD_LEN};

/// The largest zstd window, 32 MiB, and room for all other buffers.
const LIMIT: u64 = 48 << 20;

/// The largest block of a zstd frame.
const BLOCK_LEN: u32 = 128 << 10;

/// A zstd frame whose window is 2^`window_log` bytes, of these blocks.
fn zstd_frame(window_log: u8, blocks: &[Vec<u8>]) -> Vec<u8> {
    [&[0x28, 0xb5, 0x2f, 0xfd, 0x00, (window_log - 10) << 3][..], &blocks.concat()].concat()
}

/// The headers of an xz stream and of a block whose dictionary has 4 GiB.
#[rustfmt::skip]
const XZ_OF_4_GIB: [u8; 24] = [
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x00, 0xff, 0x12, 0xd9, 0x41,
    0x02, 0x00, 0x21, 0x01, 0x28, 0x00, 0x00, 0x00, 0xe6, 0xa0, 0x11, 0xb3,
];

fn stored(bytes: &[u8]) -> Vec<u8> {
    [&block_header(0, bytes.len() as u32), bytes].concat()
}

/// This number of zeros.
fn zeros(len: u32) -> Vec<u8> {
    [&block_header(1, len)[..], &[0]].concat()
}

/// The header of a block that is not the last.
fn block_header(kind: u32, len: u32) -> [u8; 3] {
    let [a, b, c, _] = (len << 3 | kind << 1).to_le_bytes();
    [a, b, c]
}

/// A pcap header, and the header of a record of maximum length.
fn pcap_parts() -> (Vec<u8>, Vec<u8>) {
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, MAX_RECORD_LEN, 1];
    let record: [u32; 4] = [0, 0, MAX_RECORD_LEN, MAX_RECORD_LEN];
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    (bytes(&header), bytes(&record))
}

/// Reads to the end or to damage, and returns the number of bytes in all records.
fn read(file: &[u8]) -> (u64, Option<CaptureError>) {
    let mut reader = match CaptureReader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (0, Some(error)),
    };
    let mut bytes = 0;
    loop {
        match reader.next_record() {
            Ok(Some(record)) => bytes += record.data.len() as u64,
            Ok(None) => return (bytes, None),
            Err(error) => return (bytes, Some(error)),
        }
    }
}

/// Peak memory of the process, in bytes; `None` if the system does not report it.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[test]
fn decompression_bombs_take_bounded_memory() {
    let Some(before) = peak() else {
        println!("SKIP decompression_bombs_take_bounded_memory: no VmHWM in /proc/self/status");
        return;
    };
    let (header, record) = pcap_parts();
    let records = 512;
    let total = records * u64::from(MAX_RECORD_LEN);

    let mut blocks = vec![stored(&header)];
    for _ in 0..records {
        blocks.push(stored(&record));
        blocks.extend((0..MAX_RECORD_LEN / BLOCK_LEN).map(|_| zeros(BLOCK_LEN)));
    }
    let bomb = zstd_frame(25, &blocks);
    assert!(bomb.len() < 32 << 10);
    let (bytes, error) = read(&bomb);
    assert_eq!(bytes, total);
    // The frame has no last block.
    assert!(matches!(error, Some(CaptureError::Truncated { .. })), "{error:?}");

    // After a full flush, the compressed form of one record is independent of what precedes it, and can be repeated.
    let mut deflate = Compress::new(Compression::best(), false);
    let mut bomb = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut whole_record = record;
    whole_record.resize(whole_record.len() + MAX_RECORD_LEN as usize, 0);
    for (part, times) in [(&header, 1), (&whole_record, records)] {
        let mut packed = Vec::with_capacity(64 << 10);
        deflate.compress_vec(part, &mut packed, FlushCompress::Full).expect("room for it");
        (0..times).for_each(|_| bomb.extend_from_slice(&packed));
    }
    assert!(bomb.len() < 1 << 20);
    let (bytes, error) = read(&bomb);
    assert_eq!(bytes, total);
    assert!(matches!(error, Some(CaptureError::Truncated { .. })), "{error:?}");

    // A block of 4 GB that a pcapng reader skips.
    let section: [u32; 9] = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 0x0bad, u32::MAX - 3];
    let section: Vec<u8> = section.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut blocks = vec![stored(&section)];
    blocks.extend((0..4096).map(|_| zeros(BLOCK_LEN)));
    let (bytes, error) = read(&zstd_frame(25, &blocks));
    assert_eq!(bytes, 0);
    assert!(matches!(error, Some(CaptureError::Truncated { .. })), "{error:?}");

    // What needs more memory than allowed: frames by their window, and by their size in one segment (1 TB); an xz block.
    let too_wide = zstd_frame(26, &[stored(&header)]);
    let one_segment =
        [&[0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 0, 1, 0, 0][..], &stored(&header)].concat();
    for file in [too_wide, one_segment, XZ_OF_4_GIB.to_vec()] {
        let error = read(&file).1.expect("too much").to_string();
        assert!(error.contains("memory"), "{error}");
    }

    let after = peak().expect("as before");
    println!("peak memory: {before} bytes before, {after} after");
    assert!(after - before < LIMIT, "{before} bytes before, {after} after");
}
