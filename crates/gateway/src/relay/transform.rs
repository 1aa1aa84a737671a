//! The transforms of a connection's two directions.

use plait_linux::mptcp::Key;
use plait_proto::close_reason::CloseReason;
use plait_proto::codec::stream::Keystream;
use plait_proto::codec::xor64::{Decoder, Encoder, Seed};
use ring::hmac;

use super::records::Records;

/// Transforms the bytes of one direction, in place: lengths never change.
pub(crate) enum Transform {
    Plain,
    Encode(Box<Encoder>),
    Decode(Box<Decoder>),
    Keystream(Box<Keystream>),
}

impl Transform {
    /// Transforms the next bytes of the stream in place.
    pub(crate) fn apply(&mut self, bytes: &mut [u8]) {
        match self {
            Transform::Plain => {}
            Transform::Encode(encoder) => encoder.encode_in_place(bytes),
            Transform::Decode(decoder) => decoder.decode_in_place(bytes),
            Transform::Keystream(keystream) => keystream.apply(bytes),
        }
    }
}

/// The transforms of both directions, as this end applies them.
pub(crate) enum Transforms {
    InPlace {
        /// From this end's application to the network.
        outgoing: Transform,
        /// From the network to this end's application.
        incoming: Transform,
    },
    /// Of mode `sealed`.
    Records(Box<Records>),
}

impl Transforms {
    pub(crate) fn plain() -> Transforms {
        Transforms::in_place(Transform::Plain, Transform::Plain)
    }

    pub(crate) fn in_place(outgoing: Transform, incoming: Transform) -> Transforms {
        Transforms::InPlace { outgoing, incoming }
    }

    /// The last bytes to the network, which tell the peer why the connection ends; `None` in modes without such.
    pub(crate) fn failure(&mut self, reason: CloseReason) -> Option<Vec<u8>> {
        match self {
            Transforms::InPlace { .. } => None,
            Transforms::Records(records) => Some(records.sealer.failure(reason)),
        }
    }

    /// Of mode `xor64`, at the end whose key is `local`.
    pub(crate) fn xor64(seeds: Seeds, local: &Key, remote: &Key) -> Transforms {
        let seed = match seeds {
            Seeds::Hmac => hmac_seed,
            Seeds::Key => key_seed,
        };
        Transforms::in_place(
            Transform::Encode(Box::new(Encoder::new(&seed(local, remote)))),
            Transform::Decode(Box::new(Decoder::new(&seed(remote, local)))),
        )
    }
}

/// What the seeds of `xor64` are derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seeds {
    Hmac,
    Key,
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

    impl Transforms {
        /// Transforms bytes that this end sends.
        pub(crate) fn send(&mut self, bytes: &mut [u8]) {
            let Transforms::InPlace { outgoing, .. } = self else { panic!("expected a transform in place") };
            outgoing.apply(bytes);
        }

        /// Transforms bytes that this end receives.
        pub(crate) fn receive(&mut self, bytes: &mut [u8]) {
            let Transforms::InPlace { incoming, .. } = self else { panic!("expected a transform in place") };
            incoming.apply(bytes);
        }
    }

    #[test]
    fn ends_decode_each_other_in_both_directions() {
        let (a, b) = (Key::new([1; 8]), Key::new([2; 8]));
        for seeds in [Seeds::Hmac, Seeds::Key] {
            let mut initiator = Transforms::xor64(seeds, &a, &b);
            let mut responder = Transforms::xor64(seeds, &b, &a);
            let mut bytes = *b"not every, not any";
            initiator.send(&mut bytes);
            assert_ne!(&bytes, b"not every, not any");
            responder.receive(&mut bytes);
            assert_eq!(&bytes, b"not every, not any");
            responder.send(&mut bytes);
            initiator.receive(&mut bytes);
            assert_eq!(&bytes, b"not every, not any");
        }
    }

    #[test]
    fn directions_have_different_seeds() {
        let (a, b) = (Key::new([1; 8]), Key::new([2; 8]));
        let mut ends = [(&a, &b), (&b, &a)].map(|(local, remote)| {
            let mut bytes = [0; 64];
            Transforms::xor64(Seeds::Hmac, local, remote).send(&mut bytes);
            bytes
        });
        ends.sort();
        assert_ne!(ends[0], ends[1]);
    }
}
