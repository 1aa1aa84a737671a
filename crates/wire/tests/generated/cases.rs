//! Single cases that the property tests do not cover: link types, fragments, malformed options, DSS checksums.

use std::fs::{self, File};
use std::path::PathBuf;

use crate::forms::frame;
use plait_wire::capture::PcapReader;
use plait_wire::checksum;
use plait_wire::mptcp::{CapableKeys, DataSeq, MptcpOption, SubflowSeq};
use plait_wire::tcp::{Options, TcpOption};
use plait_wire::{LinkType, ParseError, Segment, Skip};

/// A packet of each IP version, without its Ethernet header.
fn packets() -> [Vec<u8>; 2] {
    // After two VLAN tags, and after none.
    [frame(6, 4, Vec::new())[22..].to_vec(), frame(6, 6, Vec::new())[14..].to_vec()]
}

fn parse(link_type: LinkType, header: &[u8], packet: &[u8]) -> Result<usize, Skip> {
    let frame = [header, packet].concat();
    Segment::parse(link_type, &frame, frame.len()).map(|segment| segment.payload().len())
}

#[test]
fn each_link_type_leads_to_the_packet() {
    let [v4, v6] = packets();
    let ethernet = |ether_type: [u8; 2]| [&[0; 12], &ether_type[..]].concat();
    let sll = |ether_type: [u8; 2]| [&[0; 14], &ether_type[..]].concat();
    let sll2 = |ether_type: [u8; 2]| [&ether_type[..], &[0; 18]].concat();
    let vlan = [0x81, 0x00];
    let tagged = [&sll(vlan)[..], &[0, 5, 0x86, 0xdd]].concat();
    for (link_type, header, packet) in [
        (LinkType::Ethernet, ethernet([0x08, 0x00]), &v4),
        (LinkType::Ethernet, ethernet([0x86, 0xdd]), &v6),
        (LinkType::RawIp, vec![], &v4),
        (LinkType::RawIp, vec![], &v6),
        (LinkType::Ipv4, vec![], &v4),
        (LinkType::Ipv6, vec![], &v6),
        (LinkType::LinuxSll, sll([0x08, 0x00]), &v4),
        (LinkType::LinuxSll, tagged, &v6),
        (LinkType::LinuxSll2, sll2([0x86, 0xdd]), &v6),
        // AF_INET is 2 everywhere; AF_INET6 is 10, 24, 28 or 30.
        (LinkType::Null, vec![2, 0, 0, 0], &v4),
        (LinkType::Null, vec![0, 0, 0, 2], &v4),
        (LinkType::Null, vec![10, 0, 0, 0], &v6),
        (LinkType::Null, vec![24, 0, 0, 0], &v6),
        (LinkType::Null, vec![28, 0, 0, 0], &v6),
        (LinkType::Loop, vec![0, 0, 0, 30], &v6),
        // With and without HDLC framing, with a protocol field of two octets and of one.
        (LinkType::Ppp, vec![0xff, 0x03, 0x00, 0x21], &v4),
        (LinkType::Ppp, vec![0x00, 0x57], &v6),
        (LinkType::Ppp, vec![0x21], &v4),
    ] {
        assert_eq!(parse(link_type, &header, packet), Ok(6), "{link_type:?} {header:x?}");
        let number = link_type.number();
        assert_eq!(LinkType::from_number(number), Some(link_type));
    }
    assert_eq!(parse(LinkType::Ethernet, &ethernet([0x08, 0x06]), &v4), Err(Skip::NotIp));
    assert_eq!(parse(LinkType::Null, &[99, 0, 0, 0], &v4), Err(Skip::NotIp));
    assert_eq!(LinkType::from_number(105), None);
}

#[test]
fn only_the_first_fragment_is_a_segment() {
    let [mut v4, v6] = packets();
    let fragmented = |link_type, packet: &[u8]| {
        Segment::parse(link_type, packet, packet.len()).map(|segment| segment.fragmented)
    };
    assert_eq!(fragmented(LinkType::Ipv4, &v4), Ok(false));
    // More fragments, offset 0; then offset 185.
    v4[6..8].copy_from_slice(&[0x20, 0]);
    assert_eq!(fragmented(LinkType::Ipv4, &v4), Ok(true));
    v4[6..8].copy_from_slice(&[0, 185]);
    assert_eq!(fragmented(LinkType::Ipv4, &v4), Err(Skip::LaterFragment));

    // A fragment header in front of the payload.
    let with_fragment = |field: u16| {
        let length = u16::from_be_bytes([v6[4], v6[5]]) + 8;
        let [high, low] = field.to_be_bytes();
        let fragment = [v6[6], 0, high, low, 1, 2, 3, 4];
        let mut packet = [&v6[..40], &fragment, &v6[40..]].concat();
        packet[4..6].copy_from_slice(&length.to_be_bytes());
        packet[6] = 44;
        packet
    };
    assert_eq!(fragmented(LinkType::Ipv6, &with_fragment(0)), Ok(false));
    assert_eq!(fragmented(LinkType::Ipv6, &with_fragment(1)), Ok(true));
    // The payload is from the middle of the packet, and must not be parsed as an extension header.
    let mut later = with_fragment(185 << 3);
    later[48..].fill(0xff);
    later[40] = 6;
    assert_eq!(fragmented(LinkType::Ipv6, &later), Err(Skip::LaterFragment));
    later[40] = 60;
    assert!(matches!(fragmented(LinkType::Ipv6, &later), Err(Skip::NotTcp { .. })));
}

#[test]
fn other_protocols_are_skipped_with_their_addresses() {
    let [mut v4, mut v6] = packets();
    let addresses = |packet: &[u8]| {
        let segment = Segment::parse(LinkType::RawIp, packet, packet.len()).expect("a segment");
        (segment.source.ip(), segment.destination.ip())
    };
    let expected = [addresses(&v4), addresses(&v6)];
    // ICMP, and ICMPv6.
    v4[9] = 1;
    v6[6] = 58;
    for (packet, (source, destination)) in [v4, v6].iter().zip(expected) {
        assert_ne!(source, destination);
        let skip = Segment::parse(LinkType::RawIp, packet, packet.len()).expect_err("not TCP");
        assert_eq!(skip, Skip::NotTcp { source, destination });
    }
}

#[test]
fn packets_without_a_length_extend_to_the_end_of_the_frame() {
    let [mut v4, mut v6] = packets();
    v4[2..4].fill(0);
    v6[4..6].fill(0);
    for packet in [&v4, &v6] {
        let segment = Segment::parse(LinkType::RawIp, packet, packet.len() + 100_000).expect("a segment");
        assert_eq!((segment.payload().len(), segment.payload_len), (6, 100_006));
    }
}

#[test]
fn errors_name_malformed_options_and_parsing_continues() {
    let no_operation = [1];
    for (option, expected) in [
        (&[2, 3, 5][..], "MSS option"),
        (&[3, 2], "window scale option"),
        (&[4, 3, 0], "SACK permitted option"),
        (&[5, 2], "SACK option"),
        (&[5, 6, 0, 0, 0, 0], "SACK option"),
        (&[8, 4, 0, 0], "timestamps option"),
        (&[30, 2], "MPTCP option"),
        (&[30, 4, 0x00, 0x81], "MP_CAPABLE of version 0"),
        (&[30, 5, 0x01, 0x01, 0], "MP_CAPABLE of version 1"),
        (&[30, 4, 0x10, 0], "MP_JOIN"),
        (&[30, 4, 0x20, 0x01], "DSS"),
        (&[30, 5, 0x20, 0x00, 0], "DSS"),
        (&[30, 4, 0x30, 1], "ADD_ADDR"),
        // An announcement without HMAC that is neither an echo nor version 0 for IPv4.
        (&[30, 8, 0x30, 1, 192, 0, 2, 1], "ADD_ADDR without HMAC, flags or IP version"),
        (&[30, 8, 0x36, 1, 192, 0, 2, 1], "ADD_ADDR without HMAC, flags or IP version"),
        (&[30, 16, 0x31, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0], "ADD_ADDR echo"),
        (&[30, 3, 0x40], "REMOVE_ADDR"),
        (&[30, 5, 0x50, 1, 2], "MP_PRIO"),
        (&[30, 4, 0x60, 0], "MP_FAIL"),
        (&[30, 4, 0x70, 0], "MP_FASTCLOSE"),
        (&[30, 3, 0x80], "MP_TCPRST"),
    ] {
        let bytes = [option, &no_operation].concat();
        let mut options = Options::new(&bytes);
        match options.next() {
            Some(Err(
                ParseError::Length { what, .. }
                | ParseError::Truncated { what, .. }
                | ParseError::Value { what, .. },
            )) => assert_eq!(what, expected, "{option:x?}"),
            other => panic!("{option:x?}: {other:?}"),
        }
        assert_eq!(options.next(), Some(Ok(TcpOption::NoOperation)));
        assert_eq!(options.next(), None);
    }
    for unusable in [&[30][..], &[30, 0, 1], &[30, 1, 1], &[30, 9, 1]] {
        let mut options = Options::new(unusable);
        assert!(matches!(options.next(), Some(Err(_))), "{unusable:x?}");
        assert_eq!(options.next(), None, "{unusable:x?}");
    }
    // A version that does not exist yet, and the experimental subtype.
    for unknown in [&[30, 4, 0x02, 0x81][..], &[30, 6, 0xf0, 1, 2, 3]] {
        let option = Options::new(unknown).next();
        assert!(matches!(option, Some(Ok(TcpOption::Mptcp(MptcpOption::Unknown(_))))), "{option:?}");
    }
}

#[test]
fn dss_checksum_adds_all_its_parts() {
    // As 16-bit words: 1, 2, 3, 4; 5, 6; 7, 0; 8. Their sum is 36.
    let checksum = checksum::dss(DataSeq(0x0001_0002_0003_0004), SubflowSeq(0x0005_0006), 7, &[0, 8]);
    assert_eq!(checksum, !36);
}

#[test]
fn dss_checksums_of_real_captures_are_right() {
    let Some(directory) = std::env::var_os("PLAIT_CAPTURES").map(PathBuf::from) else {
        println!("SKIP dss_checksums_of_real_captures_are_right: PLAIT_CAPTURES names no directory");
        return;
    };
    let mut checked = 0;
    for entry in fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("a readable directory").path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            checked += check_dss_checksums(PcapReader::new(File::open(&path).expect("a capture")));
        }
    }
    assert!(checked > 0, "a checksum in the captures");
    println!("{checked} checksums");
}

/// Checks the mappings whose data is in one segment, and returns their number. 32-bit sequence numbers are extended
/// from the start of one of the streams in the capture.
fn check_dss_checksums(reader: Result<PcapReader<File>, plait_wire::capture::CaptureError>) -> usize {
    let (mut reader, mut starts, mut checked) = (reader.expect("a pcap file"), Vec::new(), 0);
    while let Ok(Some(record)) = reader.next_record() {
        let Ok(segment) = record.segment() else { continue };
        for option in segment.tcp.options().flatten() {
            match option {
                TcpOption::Mptcp(MptcpOption::Capable(capable)) => {
                    if let CapableKeys::Sender(key) | CapableKeys::Both { sender: key, .. } = capable.keys {
                        starts.push(key.idsn(capable.version));
                    }
                }
                TcpOption::Mptcp(MptcpOption::Dss(dss)) => {
                    let Some(mapping) = dss.mapping else { continue };
                    let Some(checksum) = mapping.checksum else { continue };
                    if segment.payload().len() != usize::from(mapping.length) || starts.is_empty() {
                        continue;
                    }
                    let right = starts.iter().any(|start| {
                        let data_seq = mapping.data_seq.extend(*start);
                        let (subflow_seq, length) = (mapping.subflow_seq, mapping.length);
                        checksum::dss(data_seq, subflow_seq, length, segment.payload()) == checksum
                    });
                    assert!(right, "{record:x?}");
                    checked += 1;
                }
                _ => {}
            }
        }
    }
    checked
}
