//! Reassembly into TCP streams: it agrees with the payload that the analysis keeps, and no capture makes it fail otherwise
//! than with an error.

use std::fs;
use std::path::PathBuf;

use plait_trace::{Direction, reassemble};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::captures::read;
use crate::generate::{Net, PLAIN_STYLE, Style};

/// The captures of a connection over two paths, of which each chunk of the stream crosses one.
fn files(chunks: &[(usize, usize)], snap_len: u32) -> Vec<Vec<u8>> {
    let mut net = Net::new(2, Style { snap_len, ..PLAIN_STYLE });
    net.open(0);
    net.join(1);
    let mut offset = 0;
    for (number, (path, length)) in chunks.iter().enumerate() {
        let data: Vec<u8> = (0..*length).map(|at| (number * 7 + at) as u8).collect();
        net.send(*path, 0, offset, &data);
        offset += *length as u64;
    }
    net.files()
}

fn written(files: &[Vec<u8>]) -> Option<(plait_trace::Reassembled, Vec<u8>)> {
    let directory = tempfile::tempdir().expect("a directory");
    let paths: Vec<PathBuf> =
        (0..files.len()).map(|index| directory.path().join(format!("{index}.pcap"))).collect();
    paths.iter().zip(files).for_each(|(path, file)| fs::write(path, file).expect("writable"));
    let (found, _, pcap) = reassemble(&paths, Vec::new(), &|_| Ok(())).ok()?;
    Some((found, pcap))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The stream in the file that is written equals the one in the captures, with the same bytes missing.
    #[test]
    fn streams_equal_those_of_the_captures(
        chunks in vec((0..2usize, 1..900usize), 1..40), snap_len in prop_oneof![100..400u32, Just(65_535u32)],
    ) {
        let files = files(&chunks, snap_len);
        let (found, pcap) = written(&files).expect("captures");
        let (before, after) = (read(&files), read(&[pcap]));
        let length = before.connections[0].stream(Direction::ClientToServer).length();
        prop_assert_eq!(after.connections.len(), 1);
        prop_assert_eq!(found.bytes + found.missing, length);
        let mut expected = vec![None; length as usize];
        for (path, _) in before.paths() {
            let payload = before.connections[0].stream(Direction::ClientToServer).payload(path);
            for (byte, found) in expected.iter_mut().zip(payload.bytes(0..length)) {
                *byte = byte.or(found);
            }
        }
        let path = after.path("path0").expect("the path that was given");
        let stream = after.connections[0].stream(Direction::ClientToServer);
        prop_assert_eq!(stream.payload(path).bytes(0..length), expected);
    }

    #[test]
    fn damaged_captures_give_streams_or_an_error(
        chunks in vec((0..2usize, 1..300usize), 1..10),
        damage in vec((24..4000usize, any::<u8>()), 0..40),
        cut in 24..5000usize,
    ) {
        let mut files = files(&chunks, 65_535);
        for (at, byte) in damage {
            if let Some(place) = files[0].get_mut(at) {
                *place = byte;
            }
        }
        files[0].truncate(cut);
        if let Some((found, pcap)) = written(&files) {
            let read = read(&[pcap]);
            prop_assert_eq!(read.connections.len() as u64, found.connections);
            prop_assert_eq!(read.totals.skipped.malformed, 0);
        }
    }
}
