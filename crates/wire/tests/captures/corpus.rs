//! The seeds of the fuzz target `reader`: they equal those generated here, and all inputs pass the target's check.

#[path = "../../../../fuzz/checks/reader.rs"]
mod reader;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use crate::blocks::Blocks;
use flate2::Crc;
use plait_wire::LinkType;
use plait_wire::capture::{ByteOrder, PcapHeader, PcapWriter, Resolution, Timestamp};

fn pcap(header: PcapHeader) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), header).expect("memory");
    for index in 1..4u8 {
        writer.write(Timestamp(index.into()), &[index; 6]).expect("memory");
    }
    writer.into_inner()
}

/// Two sections of different byte orders with all blocks that matter.
fn pcapng() -> Vec<u8> {
    let mut file = Blocks::new();
    file.section(ByteOrder::Little);
    file.interface(1, 64, &[]);
    file.interface(101, 0, &[(9, vec![9]), (14, file.long(-10))]);
    file.enhanced(1, 20_000_000_000, 9, &[1; 7]);
    file.section(ByteOrder::Big);
    file.interface(276, 4, &[(9, vec![0x80 | 10])]);
    file.block(5, &[0; 12]);
    file.obsolete(0, 1 << 40, 3, &[2; 3]);
    file.simple(9, &[3; 4]);
    file.bytes
}

/// Uncompressed gzip members, one for each part, so that changes in them change the capture.
fn gzip(parts: &[&[u8]]) -> Vec<u8> {
    let member = |part: &[u8]| {
        let mut crc = Crc::new();
        crc.update(part);
        let len = part.len() as u16;
        [
            &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1][..],
            &len.to_le_bytes(),
            &(!len).to_le_bytes(),
            part,
            &crc.sum().to_le_bytes(),
            &u32::from(len).to_le_bytes(),
        ]
        .concat()
    };
    parts.iter().flat_map(|part| member(part)).collect()
}

/// Zstd frames, one for each part, stored in one block each and followed by a block of one byte 64 times; between them
/// are skippable frames.
fn zstd(parts: &[&[u8]]) -> Vec<u8> {
    let frame = |part: &[u8]| {
        let stored = (part.len() as u32) << 3;
        let repeated = 64u32 << 3 | 1 << 1 | 1;
        [
            &[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 7, 7, 0x28, 0xb5, 0x2f, 0xfd, 0, 0x58][..],
            &stored.to_le_bytes()[..3],
            part,
            &repeated.to_le_bytes()[..3],
            &[0],
        ]
        .concat()
    };
    parts.iter().flat_map(|part| frame(part)).collect()
}

#[test]
fn reader_seeds() {
    let little = pcap(PcapHeader::new(LinkType::RawIp));
    let (byte_order, resolution) = (ByteOrder::Big, Resolution::Microseconds);
    let big = pcap(PcapHeader { byte_order, resolution, snap_len: 4, link_type: LinkType::Ethernet });
    let pcapng = pcapng();
    for (name, bytes) in [
        ("pcap", &little),
        ("pcap-big-endian-snapped", &big),
        ("pcapng", &pcapng),
        ("pcap-gzip", &gzip(&[&little])),
        ("pcapng-gzip-members", &gzip(&[&pcapng[..50], &pcapng[50..]])),
        ("pcap-zstd-frames", &zstd(&[&little, &[]])),
        ("pcapng-zstd", &zstd(&[&pcapng])),
    ] {
        seeds::seed("reader", name, bytes);
    }
    seeds::replay("reader", reader::check);
}
