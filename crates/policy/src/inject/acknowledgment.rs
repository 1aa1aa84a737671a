//! An acknowledgment that repeats the last state of a subflow, with an MPTCP option.

use std::net::IpAddr;

use plait_wire::checksum::PseudoHeader;
use plait_wire::mptcp::MptcpOption;
use plait_wire::tcp::{Flags, Repr, Seq, TcpOption};
use plait_wire::{BuildError, ipv4, ipv6, protocol};

use super::InjectError;
use crate::bindings::{PLAIT_FLOW_FIN_IN, PLAIT_FLOW_FIN_OUT, plait_flow, plait_flow_dir};
use crate::engine::FourTuple;
use crate::model::Hook;

/// Builds the packet, from the IP header on.
///
/// It has timestamps if the subflow uses them (RFC 7323, section 3.2), unless the option leaves no room for them, as
/// Linux does.
pub(super) fn build(
    tuple: FourTuple,
    flow: &plait_flow,
    hook: Hook,
    option: &MptcpOption<'_>,
) -> Result<Vec<u8>, InjectError> {
    if flow.flags & (PLAIT_FLOW_FIN_IN | PLAIT_FLOW_FIN_OUT) != 0 {
        return Err(InjectError::Ended(tuple));
    }
    let [received, sent] = &flow.dir;
    let (source, destination, local, other) = match hook {
        Hook::Egress => (tuple.local, tuple.remote, sent, received),
        Hook::Ingress => (tuple.remote, tuple.local, received, sent),
    };
    if !is_established(local, other) {
        return Err(InjectError::TooEarly(tuple));
    }
    let pseudo = PseudoHeader::new(source.ip(), destination.ip()).ok_or(InjectError::Unknown(tuple))?;
    let mut header = Repr {
        source_port: source.port(),
        destination_port: destination.port(),
        seq: next_sequence(local, other),
        ack: Seq(local.acknowledgment),
        flags: Flags::ACK,
        window: local.offered_window,
        urgent: 0,
        options: timestamps(local, other),
    };
    header.options.push(TcpOption::Mptcp(option.clone()));
    let mut segment = Vec::new();
    if header.emit(pseudo, &[], &mut segment).is_err() {
        header.options = vec![TcpOption::Mptcp(option.clone())];
        header.emit(pseudo, &[], &mut segment).map_err(InjectError::Option)?;
    }
    packet(source.ip(), destination.ip(), &segment).map_err(InjectError::Option)
}

/// Whether both sides have sent something after their SYNs: from then on an acknowledgment without a DATA_ACK is no
/// longer taken for the last packet of the handshake.
fn is_established(local: &plait_flow_dir, other: &plait_flow_dir) -> bool {
    let recorded = |half: &plait_flow_dir| half.last_nanoseconds != 0;
    local.packets > 1 && other.packets > 1 && recorded(local) && recorded(other)
}

/// The number after everything seen sent, or the one the other side expects if some packets took another path.
fn next_sequence(local: &plait_flow_dir, other: &plait_flow_dir) -> Seq {
    let (seen, awaited) = (Seq(local.next_sequence), Seq(other.acknowledgment));
    let is_later = awaited.since(seen) < 1 << 31;
    if is_later { awaited } else { seen }
}

/// Timestamps, aligned as recommended (RFC 7323, appendix A); empty if the subflow does not use them.
fn timestamps<'a>(local: &plait_flow_dir, other: &plait_flow_dir) -> Vec<TcpOption<'a>> {
    let [value, echo] = local.timestamps.map(u32::from_be);
    if (value, echo) == (0, 0) {
        return Vec::new();
    }
    let echo = match u32::from_be(other.timestamps[0]) {
        0 => echo,
        newest => newest,
    };
    vec![TcpOption::NoOperation, TcpOption::NoOperation, TcpOption::Timestamps { value, echo }]
}

fn packet(source: IpAddr, destination: IpAddr, segment: &[u8]) -> Result<Vec<u8>, BuildError> {
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4::Repr::new(source, destination, protocol::TCP).emit(segment.len(), &mut packet)?;
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            ipv6::Repr::new(source, destination, protocol::TCP).emit(segment.len(), &mut packet)?;
        }
        // The pseudo header exists only for two addresses of one family.
        _ => {}
    }
    packet.extend_from_slice(segment);
    Ok(packet)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use bytemuck::Zeroable;
    use plait_wire::mptcp::{AddAddress, AddAddressForm, AddressId, Priority};
    use plait_wire::{LinkType, Segment};
    use proptest::prelude::*;

    use super::*;

    fn half(next_sequence: u32, acknowledgment: u32, times: [u32; 2]) -> plait_flow_dir {
        plait_flow_dir {
            packets: 3,
            last_nanoseconds: 1,
            last_interface: 2,
            next_sequence,
            acknowledgment,
            offered_window: 501,
            timestamps: times.map(u32::to_be),
            ..Zeroable::zeroed()
        }
    }

    fn tuple(local: &str, remote: &str) -> FourTuple {
        FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    fn v4() -> FourTuple {
        tuple("192.0.2.1:4000", "198.51.100.2:80")
    }

    fn v6() -> FourTuple {
        tuple("[2001:db8::1]:4000", "[2001:db8:1::2]:80")
    }

    /// The peer has sent up to 900, of which 890 is acknowledged; this host has sent up to 5000.
    fn flow() -> plait_flow {
        plait_flow { dir: [half(900, 5000, [70, 60]), half(5000, 890, [61, 70])], ..Zeroable::zeroed() }
    }

    const PRIORITY: MptcpOption<'_> = MptcpOption::Priority(Priority { backup: true, address_id: None });

    fn announcement(address: &str, port: Option<u16>) -> MptcpOption<'static> {
        let form = AddAddressForm::Announce { hmac: [7; 8] };
        let address = address.parse().unwrap();
        MptcpOption::AddAddress(AddAddress { id: AddressId(9), address, port, form })
    }

    fn parse(packet: &[u8]) -> Segment<'_> {
        let segment = Segment::parse(LinkType::RawIp, packet, packet.len()).expect("a segment");
        assert_eq!(segment.payload_len, 0);
        segment
    }

    #[test]
    fn packets_repeat_the_last_state_of_their_sender() {
        for tuple in [v4(), v6()] {
            for (hook, source, destination, seq, ack, times) in [
                (Hook::Egress, tuple.local, tuple.remote, 5000, 890, (61, 70)),
                (Hook::Ingress, tuple.remote, tuple.local, 900, 5000, (70, 61)),
            ] {
                let packet = build(tuple, &flow(), hook, &PRIORITY).unwrap();
                let segment = parse(&packet);
                assert_eq!((segment.source, segment.destination), (source, destination));
                let tcp = segment.tcp;
                assert_eq!((tcp.seq(), tcp.ack(), tcp.window()), (Seq(seq), Seq(ack), 501));
                assert_eq!(tcp.flags(), Flags::ACK);
                assert!(tcp.checksum_is_right(PseudoHeader::new(source.ip(), destination.ip()).unwrap()));
                let options: Vec<_> = tcp.options().map(Result::unwrap).collect();
                let expected = [
                    TcpOption::NoOperation,
                    TcpOption::NoOperation,
                    TcpOption::Timestamps { value: times.0, echo: times.1 },
                    TcpOption::Mptcp(PRIORITY),
                ];
                assert_eq!(options, expected);
            }
        }
    }

    #[test]
    fn uses_the_expected_sequence_number_if_packets_took_another_path() {
        let mut flow = flow();
        flow.dir[0].acknowledgment = 5001;
        let packet = build(v4(), &flow, Hook::Egress, &PRIORITY).unwrap();
        assert_eq!(parse(&packet).tcp.seq(), Seq(5001), "some of it took another way");
        flow.dir[1] = half(3, 890, [0; 2]);
        flow.dir[0].acknowledgment = u32::MAX - 3;
        let packet = build(v4(), &flow, Hook::Egress, &PRIORITY).unwrap();
        assert_eq!(parse(&packet).tcp.seq(), Seq(3), "sequence numbers wrap");
    }

    #[test]
    fn timestamps_are_omitted_only_for_the_longest_announcement() {
        for (address, port, expected) in [
            ("192.0.2.9", None, 4),
            ("192.0.2.9", Some(81), 4),
            ("2001:db8::9", None, 4),
            ("2001:db8::9", Some(81), 1),
        ] {
            let option = announcement(address, port);
            let packet = build(v6(), &flow(), Hook::Egress, &option).unwrap();
            let options: Vec<_> = parse(&packet).tcp.options().map(Result::unwrap).collect();
            assert_eq!(options.len(), expected, "{option:?}");
            assert_eq!(options.last(), Some(&TcpOption::Mptcp(option)));
        }
    }

    #[test]
    fn rejects_subflows_that_are_unestablished_closed_or_inconsistent() {
        let early = plait_flow { dir: [half(1, 1, [0; 2]), plait_flow_dir::zeroed()], ..Zeroable::zeroed() };
        let ended = plait_flow { flags: PLAIT_FLOW_FIN_IN, ..flow() };
        for hook in [Hook::Ingress, Hook::Egress] {
            assert!(matches!(build(v4(), &early, hook, &PRIORITY), Err(InjectError::TooEarly(_))));
            assert!(matches!(build(v4(), &ended, hook, &PRIORITY), Err(InjectError::Ended(_))));
            let mixed = FourTuple { local: v4().local, remote: v6().remote };
            assert!(matches!(build(mixed, &flow(), hook, &PRIORITY), Err(InjectError::Unknown(_))));
        }
    }

    proptest! {
        #[test]
        fn any_record_yields_a_valid_packet_or_an_error(
            numbers: [u32; 6],
            times: [u32; 4],
            packets: [u8; 2],
            port: Option<u16>,
            v6_ends: bool,
            v6_address: bool,
        ) {
            let [a, b, c, d, flags, _] = numbers;
            let [e, f, g, h] = times;
            let mut flow = plait_flow { dir: [half(a, b, [e, f]), half(c, d, [g, h])], ..Zeroable::zeroed() };
            flow.flags = flags;
            flow.dir[0].packets = packets[0].into();
            flow.dir[1].packets = packets[1].into();
            let option = announcement(if v6_address { "2001:db8::9" } else { "192.0.2.9" }, port);
            let tuple = if v6_ends { v6() } else { v4() };
            for hook in [Hook::Ingress, Hook::Egress] {
                let Ok(packet) = build(tuple, &flow, hook, &option) else { continue };
                let segment = parse(&packet);
                let ip = |end: SocketAddr| end.ip();
                let pseudo = PseudoHeader::new(ip(segment.source), ip(segment.destination)).unwrap();
                prop_assert!(segment.tcp.checksum_is_right(pseudo));
                let has = segment.tcp.options().any(|found| found == Ok(TcpOption::Mptcp(option.clone())));
                prop_assert!(has);
            }
        }
    }
}
