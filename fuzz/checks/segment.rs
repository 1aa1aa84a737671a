//! The input is the number of a link type, in two bytes of network order, and a frame of that type.

use plait_wire::icmp::IcmpError;
use plait_wire::tcp::Repr;
use plait_wire::{LinkType, Segment};

/// The frame is taken apart without harm, and the parts lie within it.
pub(crate) fn check(input: &[u8]) {
    let Some((number, frame)) = input.split_first_chunk() else { return };
    let Some(link_type) = LinkType::from_number(u16::from_be_bytes(*number)) else { return };
    // As captured whole, and as the beginning of a longer frame.
    for wire_len in [frame.len(), frame.len() + 1000] {
        if let Ok(segment) = Segment::parse(link_type, frame, wire_len) {
            assert!(segment.payload().len() <= frame.len());
            assert!(segment.tcp.options().count() <= 40);
            let _ = Repr::parse(segment.tcp);
        }
    }
    if let Some(quoted) = IcmpError::parse(frame).and_then(|error| error.segment()) {
        assert!(quoted.tcp.len() <= frame.len());
    }
}
