//! Real captures in the directory `PLAIT_CAPTURES`: connections, subflows and payload, compared with other tools.

use std::fs::File;
use std::path::PathBuf;

use plait_config::Role;
use plait_trace::{Capture, Connections, Direction, Path, Protocol, ReadOptions};
use plait_wire::capture::CaptureReader;
use plait_wire::mptcp::Version;

/// File, version, subflows of its only MPTCP connection, and the exposure of the client's data in bytes and runs,
/// computed from tshark's fields.
const CAPTURES: [(&str, Version, usize, u64, usize); 6] = [
    ("tcpdump-mptcp-v0.pcap", Version::V0, 2, 5121, 1),
    ("tcpdump-mptcp-v1.pcap", Version::V1, 1, 10268, 1),
    ("tcpdump-mptcp-aa-v1.pcap", Version::V1, 1, 48, 1),
    ("ptcpdump-mptcp.pcap", Version::V1, 1, 9, 1),
    ("pymptcpanalyzer-iperf-mptcp-0-0.pcap", Version::V0, 4, 2359320, 1),
    ("own-native-s128.pcap", Version::V1, 1, 10484648, 95),
];

#[test]
fn matches_counts_of_other_tools() {
    let Some(directory) = std::env::var_os("PLAIT_CAPTURES").map(PathBuf::from) else {
        println!("SKIP matches_counts_of_other_tools: PLAIT_CAPTURES is not set");
        return;
    };
    for (name, version, subflows, bytes, runs) in CAPTURES {
        let file = File::open(directory.join(name)).expect("the capture is in the directory");
        let reader = CaptureReader::new(file).expect("a pcap file");
        let path = Path { name: name.into(), role: Role::Untrusted };
        let found = Connections::read(vec![Capture { path, reader }], ReadOptions::default())
            .expect("a readable file");
        let (path, _) = found.paths().next().expect("one path");
        let connections: Vec<_> =
            found.connections.iter().filter(|found| found.protocol == Protocol::Mptcp(version)).collect();
        assert_eq!(connections.len(), 1, "{name}: {found:?}");
        assert_eq!(connections[0].subflows.len(), subflows, "{name}");
        assert!(!connections[0].partial && connections[0].fallback.is_none(), "{name}");
        assert_eq!((found.totals.unmapped, found.totals.damaged.len()), (0, 0), "{name}");
        let exposure = connections[0].stream(Direction::ClientToServer).exposure(path);
        assert_eq!((exposure.bytes, exposure.runs), (bytes, runs), "{name}");
    }
}
