//! The seeds of the fuzz targets `options` and `segment`: they equal those generated here, and all inputs pass the
//! targets' checks.

#[path = "../../../../fuzz/checks/options.rs"]
mod options;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;
#[path = "../../../../fuzz/checks/segment.rs"]
mod segment;

use crate::forms::{frame, mptcp_options};
use plait_wire::LinkType;
use plait_wire::mptcp::MptcpOption;
use plait_wire::tcp::TcpOption;

fn subtype(option: &MptcpOption<'_>) -> &'static str {
    match option {
        MptcpOption::Capable(_) => "mp-capable",
        MptcpOption::Join(_) => "mp-join",
        MptcpOption::Dss(_) => "dss",
        MptcpOption::AddAddress(_) => "add-addr",
        MptcpOption::RemoveAddress(_) => "remove-addr",
        MptcpOption::Priority(_) => "mp-prio",
        MptcpOption::Fail(_) => "mp-fail",
        MptcpOption::FastClose(_) => "mp-fastclose",
        MptcpOption::Reset(_) => "mp-tcprst",
        MptcpOption::Unknown(_) => "unknown",
    }
}

/// An option as it is in a frame, without the padding after it.
fn option_bytes(option: TcpOption<'_>) -> Vec<u8> {
    let frame = frame(0, 6, vec![option]);
    // Ethernet, IPv6, destination options and the fixed TCP header.
    let bytes = &frame[14 + 40 + 8 + 20..];
    let len = if bytes[0] == 1 { 1 } else { bytes[1].into() };
    bytes[..len].to_vec()
}

#[test]
fn option_seeds() {
    let forms = mptcp_options();
    let mut start = 0;
    while let Some(first) = forms.get(start) {
        let name = subtype(first);
        let same = forms[start..].iter().take_while(|option| subtype(option) == name);
        let end = start + same.count();
        let bytes: Vec<u8> = forms[start..end]
            .iter()
            .flat_map(|option| option_bytes(TcpOption::Mptcp(option.clone())))
            .collect();
        seeds::seed("options", name, &bytes);
        start = end;
    }
    let others: Vec<u8> = crate::forms::options()
        .into_iter()
        .filter(|option| !matches!(option, TcpOption::Mptcp(_)))
        .flat_map(option_bytes)
        .collect();
    seeds::seed("options", "tcp", &others);
    seeds::replay("options", options::check);
}

#[test]
fn segment_seeds() {
    let dss = mptcp_options().into_iter().find(|option| matches!(option, MptcpOption::Dss(_)));
    let option = TcpOption::Mptcp(dss.expect("a DSS among the forms"));
    let ethernet_v4 = frame(5, 4, vec![option.clone()]);
    let ethernet_v6 = frame(5, 6, vec![option]);
    // After two VLAN tags, and after none.
    let (v4, v6) = (&ethernet_v4[22..], &ethernet_v6[14..]);
    let mut cooked = vec![0; 16];
    cooked[14..].copy_from_slice(&[0x08, 0x00]);
    let mut cooked2 = vec![0; 20];
    cooked2[..2].copy_from_slice(&[0x86, 0xdd]);
    for (name, link_type, header, packet) in [
        ("ethernet-v4-qinq", LinkType::Ethernet, &[][..], &ethernet_v4[..]),
        ("ethernet-v6", LinkType::Ethernet, &[], &ethernet_v6),
        ("raw-v4", LinkType::RawIp, &[], v4),
        ("null-v4", LinkType::Null, &[2, 0, 0, 0], v4),
        ("ppp-v6", LinkType::Ppp, &[0xff, 0x03, 0x00, 0x57], v6),
        ("sll-v4", LinkType::LinuxSll, &cooked, v4),
        ("sll2-v6", LinkType::LinuxSll2, &cooked2, v6),
    ] {
        let input = [&link_type.number().to_be_bytes()[..], header, packet].concat();
        seeds::seed("segment", name, &input);
    }
    seeds::replay("segment", segment::check);
}
