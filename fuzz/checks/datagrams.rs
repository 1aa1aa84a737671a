//! The input is the content of a packet of datagrams.

use plait_proto::datagrams::Message;

/// What is decoded is encoded as a message that decodes to the same.
pub(crate) fn check(input: &[u8]) {
    if let Ok(message) = Message::decode(input) {
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        assert!(encoded.len() <= input.len(), "an IPv4-mapped address and a final dot are left out");
        assert_eq!(Message::decode(&encoded), Ok(message));
    }
}
