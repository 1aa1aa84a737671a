//! From a negotiated mode and MPTCP's keys to the two transforms of a connection's byte stream.

use plait_codec::xor64::{Decoder, Encoder, Seed};
use plait_host::mptcp::Key;
use ring::hmac;

use crate::bindings::{PLAIT_MODE_XOR64_HMAC, PLAIT_MODE_XOR64_KEY};

/// What is done to the bytes of one direction on their way through the gateway. Lengths never change.
pub(crate) enum Transform {
    Plain,
    Encode(Box<Encoder>),
    Decode(Box<Decoder>),
}

impl Transform {
    /// Transforms the next bytes of the stream in place.
    pub(crate) fn apply(&mut self, bytes: &mut [u8]) {
        match self {
            Transform::Plain => {}
            Transform::Encode(encoder) => encoder.encode_in_place(bytes),
            Transform::Decode(decoder) => decoder.decode_in_place(bytes),
        }
    }
}

/// The transforms of both directions, as this end applies them.
pub(crate) struct Transforms {
    pub(crate) outgoing: Transform,
    pub(crate) incoming: Transform,
}

impl Transforms {
    pub(crate) fn plain() -> Transforms {
        Transforms { outgoing: Transform::Plain, incoming: Transform::Plain }
    }

    /// The transforms of the negotiated mode bit, or `None` for a bit this version does not implement.
    pub(crate) fn negotiated(mode: u8, local: &Key, remote: &Key) -> Option<Transforms> {
        let seed = match u32::from(mode) {
            PLAIT_MODE_XOR64_HMAC => hmac_seed,
            PLAIT_MODE_XOR64_KEY => key_seed,
            _ => return None,
        };
        Some(Transforms {
            outgoing: Transform::Encode(Box::new(Encoder::new(&seed(local, remote)))),
            incoming: Transform::Decode(Box::new(Decoder::new(&seed(remote, local)))),
        })
    }
}

/// HMAC-SHA256 with key = sender's Key, message = receiver's Key.
fn hmac_seed(sender: &Key, receiver: &Key) -> Seed {
    let key = hmac::Key::new(hmac::HMAC_SHA256, sender.as_bytes());
    Seed::new(hmac::sign(&key, receiver.as_bytes()).as_ref()).expect("32 bytes are a valid seed")
}

/// The sender's Key itself.
fn key_seed(sender: &Key, _receiver: &Key) -> Seed {
    Seed::new(sender.as_bytes()).expect("8 bytes are a valid seed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ends_understand_each_other_in_both_directions() {
        let (a, b) = (Key::new([1; 8]), Key::new([2; 8]));
        for mode in [PLAIT_MODE_XOR64_HMAC, PLAIT_MODE_XOR64_KEY] {
            let mut initiator = Transforms::negotiated(mode as u8, &a, &b).unwrap();
            let mut responder = Transforms::negotiated(mode as u8, &b, &a).unwrap();
            let mut bytes = *b"not every, not any";
            initiator.outgoing.apply(&mut bytes);
            assert_ne!(&bytes, b"not every, not any");
            responder.incoming.apply(&mut bytes);
            assert_eq!(&bytes, b"not every, not any");
            responder.outgoing.apply(&mut bytes);
            initiator.incoming.apply(&mut bytes);
            assert_eq!(&bytes, b"not every, not any");
        }
    }

    #[test]
    fn directions_have_different_seeds() {
        let (a, b) = (Key::new([1; 8]), Key::new([2; 8]));
        let mut ends = [(&a, &b), (&b, &a)].map(|(local, remote)| {
            let mut bytes = [0; 64];
            let mut transforms = Transforms::negotiated(PLAIT_MODE_XOR64_HMAC as u8, local, remote).unwrap();
            transforms.outgoing.apply(&mut bytes);
            bytes
        });
        ends.sort();
        assert_ne!(ends[0], ends[1]);
    }

    #[test]
    fn an_unknown_mode_has_no_transforms() {
        let key = Key::new([0; 8]);
        assert!(Transforms::negotiated(0, &key, &key).is_none());
        assert!(Transforms::negotiated(0x80, &key, &key).is_none());
    }
}
