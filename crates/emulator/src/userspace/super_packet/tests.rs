use std::net::{Ipv4Addr, Ipv6Addr};

use plait_wire::checksum::PseudoHeader;
use proptest::prelude::*;

use super::*;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const CWR: u8 = 0x80;
const FIRST_SEQUENCE: u32 = 0xffff_fc00;
const FIRST_IDENTIFICATION: u16 = 0xfffe;
const PAIR_V4: PseudoHeader =
    PseudoHeader::V4 { source: Ipv4Addr::new(10, 1, 2, 3), destination: Ipv4Addr::new(10, 1, 2, 4) };
const PAIR_V6: PseudoHeader =
    PseudoHeader::V6 { source: Ipv6Addr::new(0xfd, 1, 0, 0, 0, 0, 0, 1), destination: Ipv6Addr::LOCALHOST };

/// A super-packet as an interface delivers it: the TCP checksum is that of the pseudo-header, not complemented.
fn super_packet(v6: bool, vlan: bool, options: usize, flags: u8, segment: u16, data: &[u8]) -> Vec<u8> {
    let mut ethernet = vec![2; 12];
    if vlan {
        ethernet.extend([0x81, 0x00, 0x00, 0x07]);
    }
    ethernet.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    let tcp_length = 20 + options + data.len();
    let ip = if v6 { ipv6(tcp_length as u16) } else { ipv4(tcp_length as u16, FIRST_IDENTIFICATION) };
    let pair = if v6 { PAIR_V6 } else { PAIR_V4 };
    let sum = !pair.checksum(tcp_length as u32).finish();
    let tcp = tcp(options, FIRST_SEQUENCE, flags, sum);
    let start = ethernet.len() + ip.len();
    let mut packet = vec![1, if v6 { 4 } else { 1 }];
    for value in [start as u16 + 94, segment, start as u16, 16] {
        packet.extend(value.to_ne_bytes());
    }
    [&packet[..], &ethernet, &ip, &tcp, data].concat()
}

fn ipv4(payload: u16, identification: u16) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((payload + 20).to_be_bytes());
    header.extend(identification.to_be_bytes());
    header.extend([0x40, 0, 64, 6, 0, 0, 10, 1, 2, 3, 10, 1, 2, 4]);
    let checksum = plait_wire::checksum::Checksum::new().with(&header).finish();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn ipv6(payload: u16) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend(payload.to_be_bytes());
    header.extend([6, 64]);
    header.extend(Ipv6Addr::new(0xfd, 1, 0, 0, 0, 0, 0, 1).octets());
    header.extend(Ipv6Addr::LOCALHOST.octets());
    header
}

fn tcp(options: usize, sequence: u32, flags: u8, checksum: u16) -> Vec<u8> {
    let mut header = vec![0x1f, 0x90, 0x9c, 0x40];
    header.extend(sequence.to_be_bytes());
    header.extend([0, 0, 0, 1, ((5 + options / 4) << 4) as u8, flags, 1, 0]);
    header.extend(checksum.to_be_bytes());
    header.extend([0, 0]);
    header.extend(vec![1; options]);
    header
}

fn part_of(packet: &[u8], frames: Range<u32>) -> Vec<u8> {
    let whole = SuperPacket::parse(packet).expect("a super-packet");
    let (headers, payload) = whole.part(packet, &frames);
    [headers.as_bytes(), &packet[payload]].concat()
}

#[test]
fn represents_one_frame_per_segment() {
    let packet = super_packet(false, false, 12, ACK, 1448, &[7; 4000]);
    let train = SuperPacket::parse(&packet).expect("a super-packet").train();
    let headers = 14 + 20 + 32;
    assert_eq!(train, Train { frames: 3, each: headers + 1448, last: headers + 4000 - 2 * 1448 });
    assert_eq!(train.bytes(&(0..3)), 3 * u64::from(headers) + 4000);
}

#[test]
fn a_part_of_several_frames_is_a_super_packet() {
    let packet = super_packet(true, false, 12, ACK | PSH, 1000, &[7; 3500]);
    let part = &part_of(&packet, 1..3);
    let parsed = SuperPacket::parse(part).expect("a super-packet");
    assert_eq!(parsed.train().frames, 2);
    assert_eq!(u16_ne(part, vnet::GSO_SIZE), Some(1000));
    assert_eq!(part.len(), parsed.payload + 2000);
}

#[test]
fn malformed_packets_count_as_one_frame() {
    let good = super_packet(false, false, 0, ACK, 1448, &[7; 4000]);
    assert!(SuperPacket::parse(&good).is_some());
    let without = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        SuperPacket::parse(&bad)
    };
    let ip = VNET_HEADER + 14;
    let changes = [
        ("no checksum to fill in", vnet::FLAGS, 0),
        ("not segmented", vnet::GSO_TYPE, 0),
        ("UDP", vnet::GSO_TYPE, 5),
        ("IPv6 in the virtio header", vnet::GSO_TYPE, 4),
        ("another checksum", vnet::CSUM_OFFSET, 6),
        ("another start", vnet::CSUM_START, 30),
        ("IPv6's EtherType", ip - 2, 0x86),
        ("an IP version of 5", ip, 0x55),
        ("an IP header of 60 bytes", ip, 0x4f),
        ("a fragment", ip + 7, 1),
        ("ICMP", ip + 9, 1),
        ("another length", ip + 3, 0),
        ("a TCP header of 16 bytes", ip + 20 + 12, 0x40),
    ];
    for (what, at, value) in changes {
        assert_eq!(without(at, value), None, "{what}");
    }
    let mut unsized_segments = good.clone();
    unsized_segments[vnet::GSO_SIZE..vnet::GSO_SIZE + 2].fill(0);
    assert_eq!(SuperPacket::parse(&unsized_segments), None);
    for length in 0..good.len() {
        assert_eq!(SuperPacket::parse(&good[..length]), None, "the first {length} bytes");
    }
}

#[test]
fn completes_partial_checksums() {
    let data = b"some data";
    let tcp_length = 20 + data.len();
    let partial = !PAIR_V4.checksum(tcp_length as u32).finish();
    let [ip, with_partial] = [ipv4(tcp_length as u16, 7), tcp(0, 1, ACK, partial)];
    let full = PAIR_V4.checksum(tcp_length as u32).with(&tcp(0, 1, ACK, 0)).with(data).finish();
    let frame = |tcp: &[u8]| [&[2; 12], &[8, 0][..], &ip, tcp, data].concat();
    let mut packet = [&[1, 0, 0, 0, 0, 0, 34, 0, 16, 0][..], &frame(&with_partial)].concat();
    fill_checksum(&mut packet);
    assert_eq!(packet, [&[0; VNET_HEADER][..], &frame(&tcp(0, 1, ACK, full))].concat());
    let filled_in = packet.clone();
    fill_checksum(&mut packet);
    assert_eq!(packet, filled_in);
}

#[test]
fn a_udp_checksum_is_never_0() {
    // A datagram whose one's complement sum is all ones.
    let mut packet = [&[1, 0, 0, 0, 0, 0, 0, 0, 6, 0][..], &[0, 0, 0, 0, 0, 0, 0xff, 0xff]].concat();
    fill_checksum(&mut packet);
    assert_eq!(packet[16..], [0xff, 0xff]);
}

#[test]
fn ignores_a_checksum_offset_outside_the_packet() {
    let packet = [&[1, 0, 0, 0, 0, 0, 200, 0, 16, 0][..], &[7; 100]].concat();
    for length in 0..packet.len() {
        let mut bytes = packet[..length].to_vec();
        fill_checksum(&mut bytes);
        assert_eq!(bytes, packet[..length]);
    }
}

proptest! {
    /// Compares with headers built from scratch for every frame, as specified in RFC 9293 and RFC 791.
    #[test]
    fn parts_equal_the_segmented_frames(
        v6: bool,
        vlan: bool,
        options in (0_usize..=10).prop_map(|words| words * 4),
        psh: bool,
        fin: bool,
        cwr: bool,
        segment in 1_u16..1500,
        data in prop::collection::vec(any::<u8>(), 1..6000),
    ) {
        let flag = |set, flag| if set { flag } else { 0 };
        let flags = ACK | flag(psh, PSH) | flag(fin, FIN) | flag(cwr, CWR);
        let packet = super_packet(v6, vlan, options, flags, segment, &data);
        let segments: Vec<&[u8]> = data.chunks(usize::from(segment)).collect();
        for (index, segment) in segments.iter().enumerate() {
            let part = part_of(&packet, index as u32..index as u32 + 1);
            let (first, last) = (index == 0, index + 1 == segments.len());
            let kept = if first { flags } else { flags & !CWR };
            let kept = if last { kept } else { kept & !(PSH | FIN) };
            let length = 20 + options + segment.len();
            let sequence = FIRST_SEQUENCE.wrapping_add(index as u32 * u32::from(u16_ne(&packet, vnet::GSO_SIZE).expect("a header")));
            let ip = if v6 {
                ipv6(length as u16)
            } else {
                ipv4(length as u16, FIRST_IDENTIFICATION.wrapping_add(index as u16))
            };
            let pair = if v6 { PAIR_V6 } else { PAIR_V4 };
            let mut expected = [&ip[..], &tcp(options, sequence, kept, 0), segment].concat();
            let full = pair.checksum(length as u32).with(&expected[ip.len()..]).finish();
            let at = ip.len() + 16;
            expected[at..at + 2].copy_from_slice(&full.to_be_bytes());
            let ethernet = if vlan { 18 } else { 14 };
            prop_assert_eq!(&part[VNET_HEADER + ethernet..], &expected);
            prop_assert_eq!(&part[..VNET_HEADER], &[0; VNET_HEADER]);
        }
        let frames = SuperPacket::parse(&packet).expect("a super-packet").train().frames;
        prop_assert_eq!(frames as usize, segments.len());
    }

    #[test]
    fn splitting_a_part_equals_splitting_the_whole(
        v6: bool,
        segment in 100_u16..500,
        data in prop::collection::vec(any::<u8>(), 3000..6000),
        start in 0_u32..3,
        end in 5_u32..=6,
    ) {
        let packet = super_packet(v6, false, 12, ACK | PSH | FIN | CWR, segment, &data);
        let part = &part_of(&packet, start..end);
        prop_assert_eq!(&part_of(part, 1..2), &part_of(&packet, start + 1..start + 2));
    }

    #[test]
    fn never_panics(mut packet in prop::collection::vec(any::<u8>(), 0..300), v6: bool) {
        // Otherwise hardly any packet would pass the first checks.
        if packet.len() > 64 {
            packet[..2].copy_from_slice(&[1, if v6 { 4 } else { 1 }]);
            packet[6..10].copy_from_slice(&[if v6 { 54 } else { 34 }, 0, 16, 0]);
            packet[22..25].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[0x08, 0, 0x45] });
        }
        if let Some(whole) = SuperPacket::parse(&packet) {
            let train = whole.train();
            for frame in 0..train.frames.min(100) {
                whole.part(&packet, &(frame..frame + 1));
            }
        }
    }
}
