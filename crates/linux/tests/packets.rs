//! Packets on interfaces, in network namespaces on the running kernel.

mod topology;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use plait_linux::packets::{Packet, PacketTap, RawSender};
use plait_wire::checksum::PseudoHeader;
use plait_wire::tcp::{Flags, Repr, Seq};
use plait_wire::{LinkType, Segment, ipv4, ipv6, protocol};
use socket2::Domain;
use topology::{Topology, interface_index, listen};

/// A SYN, with its IP header.
fn syn(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let pseudo = PseudoHeader::new(source.ip(), destination.ip()).expect("one family");
    let header = Repr {
        source_port: source.port(),
        destination_port: destination.port(),
        seq: Seq(7),
        flags: Flags::SYN,
        window: 1000,
        ..Repr::default()
    };
    let mut segment = Vec::new();
    header.emit(pseudo, &[], &mut segment).expect("segment is short");
    let mut packet = Vec::new();
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            ipv4::Repr::new(from, to, protocol::TCP).emit(segment.len(), &mut packet)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            ipv6::Repr::new(from, to, protocol::TCP).emit(segment.len(), &mut packet)
        }
        _ => panic!("one family"),
    }
    .expect("packet is short");
    [packet, segment].concat()
}

/// Whether a packet is a segment between these addresses with all of these flags.
fn is(packet: &Packet, source: SocketAddr, destination: SocketAddr, flags: Flags) -> bool {
    Segment::parse(LinkType::RawIp, &packet.bytes, packet.bytes.len()).is_ok_and(|segment| {
        segment.source == source && segment.destination == destination && segment.tcp.flags().contains(flags)
    })
}

#[test]
fn tap_sees_sent_packets_and_their_answers_on_their_interface() {
    let Some(net) = Topology::new("tap_sees_sent_packets_and_their_answers_on_their_interface") else {
        return;
    };
    for (domain, from, to) in
        [(Domain::IPV4, "10.1.0.1", net.server_v4[0]), (Domain::IPV6, "fd00:1::1", net.server_v6[0])]
    {
        let (_listener, port) = listen(&net.server, domain);
        let source = SocketAddr::new(from.parse().expect("address is valid"), 1234);
        let destination = SocketAddr::new(to.parse().expect("address is valid"), port);
        net.client
            .run(|| {
                let a0 = interface_index("a0");
                let tap = PacketTap::open().expect("tap opens");
                let sender = RawSender::open(source.ip(), a0).expect("sender opens");
                sender.send(&syn(source, destination), destination.ip()).expect("packet is sent");
                let deadline = Instant::now() + Duration::from_secs(30);
                let next = |outgoing, flags| {
                    let (from, to) = if outgoing { (source, destination) } else { (destination, source) };
                    loop {
                        let packet = tap.next(deadline).expect("tap is readable").expect("packet arrives");
                        if is(&packet, from, to, flags) {
                            assert_eq!((packet.if_index, packet.outgoing), (a0, outgoing));
                            return;
                        }
                    }
                };
                next(true, Flags::SYN);
                next(false, Flags::SYN | Flags::ACK);
                // No socket of this host has sent the SYN.
                next(true, Flags::RST);
                // Each was seen once. Neighbors are discovered meanwhile.
                while let Some(packet) = tap.next(Instant::now()).expect("tap is readable") {
                    let again = [(source, destination), (destination, source)]
                        .into_iter()
                        .any(|(from, to)| is(&packet, from, to, Flags::default()));
                    assert!(!again, "{packet:?}");
                }
            })
            .expect("namespace can be entered");
    }
}
