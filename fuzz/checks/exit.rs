//! The input is the content of a record to or from an exit.

use plait_proto::exit::{Destination, decode_outcome, encode_outcome};

/// What is decoded is encoded as a content that decodes to the same.
pub(crate) fn check(input: &[u8]) {
    if let Ok(destination) = Destination::decode(input) {
        let encoded = destination.encode();
        assert!(encoded.len() <= input.len(), "an IPv4-mapped address and a final dot are left out");
        assert_eq!(Destination::decode(&encoded), Ok(destination));
    }
    if let Ok(outcome) = decode_outcome(input) {
        assert_eq!(decode_outcome(&encode_outcome(outcome)), Ok(outcome));
    }
}
