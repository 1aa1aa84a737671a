//! The input is a capture file.

use plait_trace::{Capture, Connections, Direction, Path, ReadOptions};
use plait_wire::Role;
use plait_wire::capture::CaptureReader;

/// The capture is read to its end or its damage, and what is said of its connections is consistent.
pub(crate) fn check(input: &[u8]) {
    let Ok(reader) = CaptureReader::new(input) else { return };
    let path = Path { name: "path".into(), role: Role::Untrusted };
    let options = ReadOptions { payload_limit: 1 << 20, ..ReadOptions::default() };
    let found = Connections::read(vec![Capture { path, reader }], options).expect("memory does not fail");
    let path = found.path("path").expect("the path that was given");
    for connection in &found.connections {
        assert!(!connection.subflows.is_empty());
        for direction in [Direction::ClientToServer, Direction::ServerToClient] {
            let stream = connection.stream(direction);
            let exposure = stream.exposure(path);
            assert!(exposure.bytes <= stream.length() && exposure.longest_run <= exposure.bytes);
            for run in stream.payload(path).present().runs() {
                assert!(stream.exposed(path).contains(run), "payload that did not cross");
                let len: usize = stream.payload(path).chunks(run.clone()).map(<[u8]>::len).sum();
                assert_eq!(len as u64, run.end - run.start);
            }
        }
    }
}
