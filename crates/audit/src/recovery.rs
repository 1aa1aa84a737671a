//! What a listener has of one direction of a connection, in plaintext.

use std::ops::Range;

use plait_proto::stream::{Cipher, Direction, Keystream, RANDOM_LEN, Secret};
use plait_trace::{ByteRanges, Payload};

use crate::xor64::{Attempt, Plaintext};

/// How the plaintext comes about.
pub(crate) enum Recovery {
    /// Not at all.
    Nothing,
    /// As it was sent, but for what the application itself encrypted.
    AsSent {
        /// Where that is.
        encrypted: ByteRanges,
    },
    /// By attacks on runs, by position.
    Attacked(Vec<(Range<u64>, Attempt)>),
    /// By the key stream, since all that it is made of was captured.
    KeyStream(StreamSecrets),
}

/// What the mode `stream` rests on, as captured.
pub(crate) struct StreamSecrets {
    pub(crate) secret: Secret,
    pub(crate) cipher: Cipher,
    pub(crate) direction: Direction,
}

impl StreamSecrets {
    /// How many bytes of the stream come before what is encrypted.
    fn prefix(&self) -> u64 {
        match self.direction {
            Direction::Forth => RANDOM_LEN as u64,
            Direction::Back => 0,
        }
    }

    fn keystream(&self) -> Keystream {
        self.secret.keystream(self.cipher, self.direction)
    }
}

impl Recovery {
    /// How many bytes of the stream come before its content.
    pub(crate) fn prefix(&self) -> usize {
        match self {
            Self::KeyStream(secrets) => secrets.prefix() as usize,
            _ => 0,
        }
    }

    /// Goes through all captured bytes in pieces, with what was recovered of each byte.
    pub(crate) fn pieces(&self, payload: &Payload, mut each: impl FnMut(u64, &[u8], &[Option<u8>])) {
        let mut plain: Vec<Option<u8>> = Vec::new();
        let mut stream = Sought { position: 0, stream: None };
        for run in payload.present().runs() {
            let attempt = match self {
                Self::Attacked(runs) => {
                    runs.binary_search_by_key(&run.start, |(range, _)| range.start).ok().map(|at| &runs[at].1)
                }
                _ => None,
            };
            let mut attacked = attempt.map(|attempt| Plaintext::new(&attempt.keys));
            let mut position = run.start;
            for wire in payload.chunks(run.clone()) {
                plain.clear();
                let range = position..position + wire.len() as u64;
                match (self, &mut attacked) {
                    (Self::AsSent { encrypted }, _) => {
                        plain.extend(wire.iter().copied().map(Some));
                        for part in encrypted.within(range) {
                            plain[(part.start - position) as usize..(part.end - position) as usize]
                                .fill(None);
                        }
                    }
                    (Self::Attacked(_), Some(plaintext)) => plaintext.next(wire, &mut plain),
                    (Self::KeyStream(secrets), _) => stream.decrypt(secrets, position, wire, &mut plain),
                    _ => plain.resize(wire.len(), None),
                }
                each(position, wire, &plain);
                position += wire.len() as u64;
            }
        }
    }
}

/// How far a key stream is followed through what was not captured, in bytes: some seconds.
const FARTHEST: u64 = 4 << 30;

/// A key stream that is gone through once, in the order of positions.
struct Sought {
    position: u64,
    stream: Option<Keystream>,
}

impl Sought {
    fn decrypt(&mut self, secrets: &StreamSecrets, position: u64, wire: &[u8], plain: &mut Vec<Option<u8>>) {
        let stream = self.stream.get_or_insert_with(|| secrets.keystream());
        let clear = secrets.prefix().saturating_sub(position).min(wire.len() as u64);
        let (clear, encrypted) = wire.split_at(clear as usize);
        plain.extend(clear.iter().copied().map(Some));
        let start = (position + clear.len() as u64).saturating_sub(secrets.prefix());
        if start - self.position > FARTHEST {
            plain.resize(plain.len() + encrypted.len(), None);
            return;
        }
        let mut skipped = [0; 4096];
        while self.position < start {
            let length = (start - self.position).min(skipped.len() as u64);
            stream.apply(&mut skipped[..length as usize]);
            self.position += length;
        }
        let mut bytes = encrypted.to_vec();
        stream.apply(&mut bytes);
        self.position += bytes.len() as u64;
        plain.extend(bytes.into_iter().map(Some));
    }
}
