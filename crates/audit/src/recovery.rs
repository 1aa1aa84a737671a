//! The plaintext that an eavesdropper has of one direction of a connection.

use std::ops::Range;

use plait_proto::codec::stream::{Direction, Keystream, RANDOM_LEN, StreamCipher, StreamSecret};
use plait_trace::{ByteRanges, Payload};

use crate::xor64::{AttackResult, Decoder};

/// How the plaintext is recovered.
pub(crate) enum Recovery {
    /// It is not.
    Nothing,
    /// The payload is plaintext, except what the application itself encrypted.
    AsSent {
        /// The positions of that.
        encrypted: ByteRanges,
    },
    /// By attacks on runs, in order of position.
    Attacked(Vec<(Range<u64>, AttackResult)>),
    /// With the key stream: all its secrets were captured.
    KeyStream(StreamSecrets),
}

/// The captured secrets of mode `stream`.
pub(crate) struct StreamSecrets {
    pub(crate) secret: StreamSecret,
    pub(crate) cipher: StreamCipher,
    pub(crate) direction: Direction,
}

impl StreamSecrets {
    /// How many bytes precede the encrypted part of the stream.
    fn prefix(&self) -> u64 {
        match self.direction {
            Direction::ToResponder => RANDOM_LEN as u64,
            Direction::ToInitiator => 0,
        }
    }

    fn keystream(&self) -> Keystream {
        self.secret.keystream(self.cipher, self.direction)
    }
}

impl Recovery {
    /// How many bytes precede the content of the stream.
    pub(crate) fn prefix(&self) -> usize {
        match self {
            Self::KeyStream(secrets) => secrets.prefix() as usize,
            _ => 0,
        }
    }

    /// Calls `visit` for all captured bytes, chunk by chunk, with position, wire bytes and recovered bytes.
    pub(crate) fn for_each_chunk(&self, payload: &Payload, mut visit: impl FnMut(u64, &[u8], &[Option<u8>])) {
        let mut plain: Vec<Option<u8>> = Vec::new();
        let mut keystream = SeekableKeystream { position: 0, keystream: None };
        for run in payload.present().runs() {
            let result = match self {
                Self::Attacked(runs) => {
                    runs.binary_search_by_key(&run.start, |(range, _)| range.start).ok().map(|at| &runs[at].1)
                }
                _ => None,
            };
            let mut decoder = result.map(|result| Decoder::new(&result.keys));
            let mut position = run.start;
            for wire in payload.chunks(run.clone()) {
                plain.clear();
                let range = position..position + wire.len() as u64;
                match (self, &mut decoder) {
                    (Self::AsSent { encrypted }, _) => {
                        plain.extend(wire.iter().copied().map(Some));
                        for part in encrypted.within(range) {
                            plain[(part.start - position) as usize..(part.end - position) as usize]
                                .fill(None);
                        }
                    }
                    (Self::Attacked(_), Some(decoder)) => decoder.decode(wire, &mut plain),
                    (Self::KeyStream(secrets), _) => keystream.decrypt(secrets, position, wire, &mut plain),
                    _ => plain.resize(wire.len(), None),
                }
                visit(position, wire, &plain);
                position += wire.len() as u64;
            }
        }
    }
}

/// How many key stream bytes are skipped at most for data that was not captured: a few seconds of computation.
const MAX_SKIPPED: u64 = 4 << 30;

/// A key stream that can skip forward.
struct SeekableKeystream {
    position: u64,
    keystream: Option<Keystream>,
}

impl SeekableKeystream {
    fn decrypt(&mut self, secrets: &StreamSecrets, position: u64, wire: &[u8], plain: &mut Vec<Option<u8>>) {
        let keystream = self.keystream.get_or_insert_with(|| secrets.keystream());
        let clear = secrets.prefix().saturating_sub(position).min(wire.len() as u64);
        let (clear, encrypted) = wire.split_at(clear as usize);
        plain.extend(clear.iter().copied().map(Some));
        let start = (position + clear.len() as u64).saturating_sub(secrets.prefix());
        if start - self.position > MAX_SKIPPED {
            plain.resize(plain.len() + encrypted.len(), None);
            return;
        }
        let mut skipped = [0; 4096];
        while self.position < start {
            let length = (start - self.position).min(skipped.len() as u64);
            keystream.apply(&mut skipped[..length as usize]);
            self.position += length;
        }
        let mut bytes = encrypted.to_vec();
        keystream.apply(&mut bytes);
        self.position += bytes.len() as u64;
        plain.extend(bytes.into_iter().map(Some));
    }
}
