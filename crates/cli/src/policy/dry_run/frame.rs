//! Converts captured packets to frames for test runs, and back.
//!
//! A test run needs an Ethernet frame of less than a page. Other link-layer headers are replaced by Ethernet, and
//! payload beyond what any program reads is set aside.

use std::borrow::Cow;

use plait_wire::capture::Record;
use plait_wire::{LinkType, ethernet};

/// A captured packet during a test run.
pub(super) struct CapturedFrame<'a> {
    /// The original link-layer header, if it is not Ethernet.
    head: &'a [u8],
    frame: Cow<'a, [u8]>,
    /// The payload that was set aside.
    tail: &'a [u8],
}

/// The length of an Ethernet header.
const ETHERNET: usize = 14;
/// More than the longest headers, and less than a page.
const MAX_FRAME: usize = 2048;

impl<'a> CapturedFrame<'a> {
    /// `None` if the kernel cannot run the packet.
    pub(super) fn new(record: &Record<'a>) -> Option<CapturedFrame<'a>> {
        let data = record.data;
        let (head, ether_type) = match record.link_type {
            LinkType::Ethernet => {
                let (kept, tail) = data.split_at(data.len().min(MAX_FRAME));
                return (kept.len() > ETHERNET).then_some(CapturedFrame {
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
        let (kept, tail) = packet.split_at(packet.len().min(MAX_FRAME));
        let mut frame = vec![0; ETHERNET - 2];
        frame.extend(ether_type.to_be_bytes());
        frame.extend(kept);
        Some(CapturedFrame { head, frame: Cow::Owned(frame), tail })
    }

    /// Whether a test run at TC is possible as well, which requires a complete IP header.
    pub(super) fn has_whole_ip(&self) -> bool {
        let min = match number(&self.frame[ETHERNET - 2..ETHERNET]) {
            ethernet::ether_type::IPV4 => 20,
            ethernet::ether_type::IPV6 => 40,
            _ => 1,
        };
        self.frame.len() >= ETHERNET + min
    }

    /// The Ethernet frame.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The packet in the format of the capture, with the frame after the run.
    pub(super) fn restore(&self, frame: &[u8]) -> Vec<u8> {
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
    fn restore_returns_the_captured_packet() {
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
            let captured = CapturedFrame::new(&record).expect("a frame");
            let frame = captured.frame();
            assert!(
                frame.len() <= MAX_FRAME + ETHERNET && frame[12..15] == [0x08, 0x00, 0x45],
                "{link_type:?}"
            );
            assert_eq!(captured.restore(frame), *data, "{link_type:?}");
            let longer = [&frame[..ETHERNET + 1], b"more", &frame[ETHERNET + 1..]].concat();
            assert_eq!(captured.restore(&longer).len(), data.len() + 4, "{link_type:?}");
        }
    }

    #[test]
    fn tc_requires_a_complete_ip_header() {
        for (ether_type, min) in [([0x08, 0x00], 20), ([0x86, 0xdd], 40), ([0x81, 0x00], 1)] {
            let frame = |length: usize| [&[0; 12][..], &ether_type, &vec![0; length]].concat();
            for (length, whole) in
                [(min, true), (min - 1, false)].into_iter().filter(|(length, _)| *length > 0)
            {
                let frame = frame(length);
                let captured = CapturedFrame::new(&record(LinkType::Ethernet, &frame));
                assert_eq!(
                    captured.is_some_and(|captured| captured.has_whole_ip()),
                    whole,
                    "{ether_type:?} {length}"
                );
            }
        }
    }

    #[test]
    fn rejects_packets_that_the_kernel_cannot_run() {
        for (link_type, data) in [
            (LinkType::Ethernet, &[0; 14][..]),
            (LinkType::RawIp, &[]),
            (LinkType::RawIp, &[0x10]),
            (LinkType::LinuxSll, &[0; 15]),
            (LinkType::LinuxSll2, &[0; 19]),
            (LinkType::Ppp, &[0; 60]),
        ] {
            assert!(CapturedFrame::new(&record(link_type, data)).is_none(), "{link_type:?} {data:?}");
        }
    }
}
