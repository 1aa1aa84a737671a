//! The seeds of the fuzz target `capture`: they equal those generated here, and all inputs pass the target's check.

#[path = "../../../../fuzz/checks/capture.rs"]
mod capture;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use crate::captures::{CaptureBuilder, MILLISECOND, Packet, joining, opening};
use crate::generate::{Net, PLAIN_STYLE, Style};
use plait_wire::LinkType;
use plait_wire::capture::{ByteOrder, CaptureReader, PcapHeader, PcapWriter, Resolution};
use plait_wire::mptcp::Version;

/// A short connection over a path on which it starts or joins.
fn connection(style: Style, joined: bool) -> Vec<u8> {
    let mut net = Net::new(1, style);
    if joined {
        net.join(0)
    } else {
        net.open(0)
    }
    for offset in [0, 100, 250] {
        net.send(0, 1, offset, &[0x61; 100]);
    }
    net.data_ack(0, 0, 200);
    net.data_fin(0, 1, 350);
    net.files().swap_remove(0)
}

/// A subflow falls silent while the other one resends its data, and recovers.
fn failover() -> Vec<u8> {
    let mut builder = CaptureBuilder::default();
    builder.all_at(0, 0, opening(0));
    builder.all_at(0, MILLISECOND, joining(1));
    let packets = [
        (10, Packet::new(1, 0, 1, 1).carries(0, 100)),
        (11, Packet::new(1, 1, 1, 101).data_ack(100)),
        (20, Packet::new(1, 0, 101, 1).carries(100, 100)),
        (21, Packet::new(0, 0, 1, 1).carries(200, 100)),
        (22, Packet::new(0, 1, 1, 101).data_ack(100)),
        (220, Packet::new(1, 0, 101, 1).carries(100, 100)),
        (320, Packet::new(0, 0, 101, 1).carries(100, 100)),
        (321, Packet::new(0, 1, 1, 201).data_ack(300)),
        (2000, Packet::new(1, 0, 101, 1).carries(100, 100)),
        (2001, Packet::new(1, 1, 1, 201).data_ack(300)),
    ];
    packets.iter().for_each(|(time, packet)| builder.at(0, time * MILLISECOND, packet));
    builder.files().swap_remove(0)
}

/// The same capture with a Linux cooked header, in the other byte order and in microseconds.
fn recast(file: &[u8]) -> Vec<u8> {
    let mut reader = CaptureReader::new(file).expect("a pcap file");
    let header = PcapHeader {
        byte_order: ByteOrder::Big,
        resolution: Resolution::Microseconds,
        snap_len: 128,
        link_type: LinkType::LinuxSll,
    };
    let mut writer = PcapWriter::new(Vec::new(), header).expect("memory");
    while let Some(record) = reader.next_record().expect("a whole file") {
        let frame = [&[0; 14], &[0x08, 0x00][..], record.data].concat();
        writer.write(record.time, &frame).expect("memory");
    }
    writer.into_inner()
}

#[test]
fn capture_seeds() {
    let old = Style { version: Version::V0, full: false, ..PLAIN_STYLE };
    seeds::seed("capture", "v1", &connection(PLAIN_STYLE, false));
    seeds::seed("capture", "v1-joined", &connection(PLAIN_STYLE, true));
    seeds::seed("capture", "v0-half-numbers", &connection(old, false));
    seeds::seed("capture", "v1-sll-big-endian-snapped", &recast(&connection(PLAIN_STYLE, false)));
    seeds::seed("capture", "v1-failover", &failover());
    let mut plain = Net::new(1, PLAIN_STYLE);
    plain.handshake(0, [Vec::new(), Vec::new(), Vec::new()]);
    plain.segment(0, 0, 1, None, b"hello");
    seeds::seed("capture", "plain-tcp", &plain.files().swap_remove(0));

    seeds::replay("capture", capture::check);
}
