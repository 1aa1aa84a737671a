//! The input is a capture file.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use plait_config::Role;
use plait_trace::{Capture, Connection, Connections, Direction, Interval, Path, ReadOptions, Sink, read};
use plait_wire::capture::CaptureReader;

/// The capture is read to its end or its damage, and what is said of its connections is consistent; also as a stream
/// with next to no room, and beside a copy of itself.
pub(crate) fn check(input: &[u8]) {
    let Some(capture) = capture(input) else { return };
    let options = ReadOptions { payload_limit: 1 << 20, ..ReadOptions::default() };
    let found = Connections::read(vec![capture], options).expect("memory does not fail");
    let path = found.path("path").expect("the path that was given");
    for connection in &found.connections {
        assert!(!connection.subflows.is_empty());
        for direction in Direction::BOTH {
            let stream = connection.stream(direction);
            let exposure = stream.exposure(path);
            assert!(exposure.bytes <= stream.length() && exposure.longest_run <= exposure.bytes);
            for run in stream.payload(path).present().runs() {
                assert!(stream.exposed(path).contains(run), "payload that did not cross");
                let len: usize = stream.payload(path).chunks(run.clone()).map(<[u8]>::len).sum();
                assert_eq!(len as u64, run.end - run.start);
            }
        }
        for failover in &connection.failovers {
            assert!(failover.subflow < connection.subflows.len());
            assert_ne!(failover.taken_over_by, Some(failover.subflow));
            assert!(failover.to.is_none_or(|to| failover.from <= to));
        }
    }
    for copies in [1, 2] {
        let captures = (0..copies).filter_map(|_| self::capture(input)).collect();
        let interval = Some(Duration::from_millis(1));
        let options = ReadOptions { payload_limit: 0, live_limit: 2, interval, stream_events: true };
        let mut sums = Sums::default();
        read(captures, options, &mut sums).expect("neither memory nor the sink fails");
        assert!(sums.0.is_empty(), "intervals without a connection");
    }
}

fn capture(input: &[u8]) -> Option<Capture<&[u8]>> {
    let path = Path { name: "path".into(), role: Role::Untrusted };
    Some(Capture { path, reader: CaptureReader::new(input).ok()? })
}

/// Packets and bytes of intervals whose connection did not come yet, by connection, subflow and direction.
#[derive(Default)]
struct Sums(BTreeMap<(u64, usize, usize), (u64, u64)>);

impl Sink for Sums {
    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        let key = (interval.connection, interval.subflow, interval.direction as usize);
        let (packets, bytes) = self.0.entry(key).or_default();
        *packets += interval.counts.packets;
        *bytes += interval.counts.bytes;
        Ok(())
    }

    fn connection(&mut self, connection: Connection) -> io::Result<()> {
        for (index, subflow) in connection.subflows.iter().enumerate() {
            for direction in Direction::BOTH {
                let sent = subflow.sent(direction);
                let series = self.0.remove(&(connection.id, index, direction as usize)).unwrap_or_default();
                assert_eq!(series, (sent.packets, sent.bytes), "a series adds up to its total");
                assert_eq!(sent.bytes, sent.new + sent.reinjected.bytes + sent.repeated + sent.unmapped);
            }
        }
        Ok(())
    }
}
