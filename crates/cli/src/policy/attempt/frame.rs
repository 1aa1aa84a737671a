//! A captured packet as the kernel takes it for a test run, and back.
//!
//! A test run wants an Ethernet frame of less than a page. What a capture has in place of Ethernet is exchanged for it,
//! and payload beyond what any program reads is kept aside.

use std::borrow::Cow;

use plait_wire::capture::Record;
use plait_wire::{LinkType, ethernet};

/// A packet of a capture on its way through a test run.
pub(super) struct Carried<'a> {
    /// What the capture has before the IP packet, if that is not Ethernet.
    head: &'a [u8],
    frame: Cow<'a, [u8]>,
    /// What was left out at the end.
    tail: &'a [u8],
}

/// Addresses and type.
const ETHERNET: usize = 14;
/// More than headers can have, and less than a page.
const MOST: usize = 2048;

impl<'a> Carried<'a> {
    /// `None` if it has no form in which the kernel would take it.
    pub(super) fn new(record: &Record<'a>) -> Option<Carried<'a>> {
        let data = record.data;
        let (head, ether_type) = match record.link_type {
            LinkType::Ethernet => {
                let (kept, tail) = data.split_at(data.len().min(MOST));
                return (kept.len() > ETHERNET).then_some(Carried {
                    head: &[],
                    frame: Cow::Borrowed(kept),
                    tail,
                });
            }
            LinkType::RawIp | LinkType::Ipv4 | LinkType::Ipv6 => (0, by_version(*data.first()?)?),
            LinkType::LinuxSll => (16, number(data.get(14..16)?)),
            LinkType::LinuxSll2 => (20, number(data.get(..2)?)),
            _ => return None,
        };
        let (head, packet) = data.split_at_checked(head)?;
        let (kept, tail) = packet.split_at(packet.len().min(MOST));
        let mut frame = vec![0; ETHERNET - 2];
        frame.extend(ether_type.to_be_bytes());
        frame.extend(kept);
        Some(Carried { head, frame: Cow::Owned(frame), tail })
    }

    /// Whether the kernel takes it for a test run at TC as well: there, a header of IP must be whole.
    pub(super) fn has_whole_ip(&self) -> bool {
        let least = match number(&self.frame[ETHERNET - 2..ETHERNET]) {
            ethernet::ether_type::IPV4 => 20,
            ethernet::ether_type::IPV6 => 40,
            _ => 1,
        };
        self.frame.len() >= ETHERNET + least
    }

    /// The Ethernet frame.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The whole packet as the capture has it, with what became of the frame.
    pub(super) fn back(&self, frame: &[u8]) -> Vec<u8> {
        let packet = match self.frame {
            Cow::Borrowed(_) => frame,
            Cow::Owned(_) => frame.get(ETHERNET..).unwrap_or_default(),
        };
        [self.head, packet, self.tail].concat()
    }
}

fn by_version(first: u8) -> Option<u16> {
    match first >> 4 {
        4 => Some(ethernet::ether_type::IPV4),
        6 => Some(ethernet::ether_type::IPV6),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |number, byte| number << 8 | u16::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plait_wire::capture::Timestamp;

    fn record(link_type: LinkType, data: &[u8]) -> Record<'_> {
        Record { time: Timestamp(0), interface: 0, link_type, wire_len: data.len() as u32, data }
    }

    #[test]
    fn a_packet_comes_back_as_it_was_in_the_capture() {
        let ip: Vec<u8> = [0x45].into_iter().chain((0..5000u32).map(|n| n as u8)).collect();
        let sll = [&[0, 4, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x08, 0x00], &ip[..]].concat();
        let sll2 = [&[0x08, 0x00], &[7; 18][..], &ip[..]].concat();
        let ethernet = [&[9; 12][..], &[0x08, 0x00], &ip[..]].concat();
        for (link_type, data) in [
            (LinkType::Ethernet, &ethernet),
            (LinkType::RawIp, &ip),
            (LinkType::Ipv4, &ip),
            (LinkType::LinuxSll, &sll),
            (LinkType::LinuxSll2, &sll2),
        ] {
            let record = record(link_type, data);
            let carried = Carried::new(&record).expect("a form for the kernel");
            let frame = carried.frame();
            assert!(frame.len() <= MOST + ETHERNET && frame[12..15] == [0x08, 0x00, 0x45], "{link_type:?}");
            assert_eq!(carried.back(frame), *data, "{link_type:?}");
            let longer = [&frame[..ETHERNET + 1], b"more", &frame[ETHERNET + 1..]].concat();
            assert_eq!(carried.back(&longer).len(), data.len() + 4, "{link_type:?}");
        }
    }

    #[test]
    fn at_tc_a_header_of_ip_is_to_be_whole() {
        for (ether_type, least) in [([0x08, 0x00], 20), ([0x86, 0xdd], 40), ([0x81, 0x00], 1)] {
            let frame = |length: usize| [&[0; 12][..], &ether_type, &vec![0; length]].concat();
            for (length, whole) in
                [(least, true), (least - 1, false)].into_iter().filter(|(length, _)| *length > 0)
            {
                let frame = frame(length);
                let carried = Carried::new(&record(LinkType::Ethernet, &frame));
                assert_eq!(
                    carried.is_some_and(|carried| carried.has_whole_ip()),
                    whole,
                    "{ether_type:?} {length}"
                );
            }
        }
    }

    #[test]
    fn what_the_kernel_would_not_take_is_told_apart() {
        for (link_type, data) in [
            (LinkType::Ethernet, &[0; 14][..]),
            (LinkType::RawIp, &[]),
            (LinkType::RawIp, &[0x10]),
            (LinkType::LinuxSll, &[0; 15]),
            (LinkType::LinuxSll2, &[0; 19]),
            (LinkType::Ppp, &[0; 60]),
        ] {
            assert!(Carried::new(&record(link_type, data)).is_none(), "{link_type:?} {data:?}");
        }
    }
}
