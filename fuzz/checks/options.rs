//! The input is the options of a TCP header, of any length.

use plait_wire::checksum::PseudoHeader;
use plait_wire::tcp::{Options, Packet, Repr};

/// The options parse, and what parses can be emitted and is then the same.
pub(crate) fn check(input: &[u8]) {
    let pseudo = PseudoHeader::V4 { source: [192, 0, 2, 1].into(), destination: [192, 0, 2, 2].into() };
    for option in Options::new(input).flatten() {
        let repr = Repr { options: vec![option], ..Repr::default() };
        let mut bytes = Vec::new();
        // The input may hold an option that is longer than a header's room.
        if repr.emit(pseudo, &[], &mut bytes).is_ok() {
            let packet = Packet::parse(&bytes).expect("what was emitted is a whole header");
            assert_eq!(Repr::parse(packet), Ok(repr));
            assert!(packet.checksum_is_right(pseudo));
        }
    }
}
