//! What packets carry.
//!
//! | type | message | content |
//! |---|---|---|
//! | 1 | PROBE | number 8, preference 4, paths 1 |
//! | 2 | PROBE_REPLY | number 8, zeros 5: as long as the PROBE |
//! | 3 | DATA | association 4, length of the destination less one 1, destination, payload |
//! | 4 | COPY | copy 8, then as DATA |
//! | 5 | REFUSED | association 4, reason 1, destination |
//! | 6 | CLOSE | association 4 |
//!
//! Numbers are big-endian. A destination is that of [`exit`](crate::exit), in the answer of a destination its own address, or `04`
//! for that of the exit's resolver.

use crate::exit::{ConnectFailure, Destination, decode_outcome, encode_outcome};

use super::packet::PathId;

const PROBE: u8 = 1;
const PROBE_REPLY: u8 = 2;
const DATA: u8 = 3;
const COPY: u8 = 4;
const REFUSED: u8 = 5;
const CLOSE: u8 = 6;

/// The paths of a [`Preference`] that is not one path.
const ALL_PATHS: u8 = 0xff;
/// The same, with a share less one in the lower bits.
const SPREAD: u8 = 0xe0;

/// The greatest share of [`PathChoice::Spread`].
pub const MAX_SHARE: u8 = 16;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Asks for a [`Message::ProbeReply`] on the same path, which takes as many bytes.
    Probe {
        /// Which one is answered.
        number: u64,
        /// The paths that the exit is to send data on. The initiator ignores that of the exit.
        preference: Preference,
    },
    /// Answers a probe.
    ProbeReply {
        /// Its number.
        number: u64,
    },
    /// A datagram to or from a destination.
    Data {
        /// The socket of the initiator's program, and of the exit, that it belongs to.
        association: u32,
        /// Its number, if each is sent on several paths, the same for all copies, or on one of several paths.
        copy: Option<u64>,
        /// The other end.
        destination: Destination,
        /// Its content.
        payload: &'a [u8],
    },
    /// Datagrams to a destination are not sent.
    Refused {
        /// That of the datagram.
        association: u32,
        /// Why.
        reason: ConnectFailure,
        /// That of the datagram.
        destination: Destination,
    },
    /// The program's socket is closed.
    Close {
        /// Which one.
        association: u32,
    },
}

/// Which paths the exit is to send data on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Counts the changes: a greater one is later.
    pub number: u32,
    /// The paths.
    pub paths: PathChoice,
}

/// One path, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChoice {
    /// This path.
    One(PathId),
    /// Each datagram on every path.
    All,
    /// Each datagram on one of all paths, in turn.
    Spread {
        /// The share of the path that the probe is sent on, from 1 to [`MAX_SHARE`].
        share: u8,
    },
}

/// A message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a message of a datagram session, got {length} other bytes of type {kind:?}")]
pub struct MessageError {
    kind: Option<u8>,
    length: usize,
}

impl Message<'_> {
    /// Bytes of a [`Message::Data`] besides its destination, of which there are at most 256, and its payload.
    pub const DATA_OVERHEAD: usize = 6;

    /// Replaces the content of `bytes` by the message.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        match self {
            Message::Probe { number, preference } => {
                bytes.push(PROBE);
                bytes.extend_from_slice(&number.to_be_bytes());
                bytes.extend_from_slice(&preference.number.to_be_bytes());
                bytes.push(match preference.paths {
                    PathChoice::One(path) => path.number(),
                    PathChoice::All => ALL_PATHS,
                    PathChoice::Spread { share } => SPREAD | (share.clamp(1, MAX_SHARE) - 1),
                });
            }
            Message::ProbeReply { number } => {
                bytes.push(PROBE_REPLY);
                bytes.extend_from_slice(&number.to_be_bytes());
                bytes.extend_from_slice(&[0; 5]);
            }
            Message::Data { association, copy, destination, payload } => {
                match copy {
                    None => bytes.push(DATA),
                    Some(copy) => {
                        bytes.push(COPY);
                        bytes.extend_from_slice(&copy.to_be_bytes());
                    }
                }
                let destination = destination.encode();
                bytes.extend_from_slice(&association.to_be_bytes());
                // 1 to 256 bytes.
                bytes.push((destination.len() - 1) as u8);
                bytes.extend_from_slice(&destination);
                bytes.extend_from_slice(payload);
            }
            Message::Refused { association, reason, destination } => {
                bytes.push(REFUSED);
                bytes.extend_from_slice(&association.to_be_bytes());
                bytes.extend_from_slice(&encode_outcome(Err(*reason)));
                bytes.extend_from_slice(&destination.encode());
            }
            Message::Close { association } => {
                bytes.push(CLOSE);
                bytes.extend_from_slice(&association.to_be_bytes());
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// It is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Message<'_>, MessageError> {
        decode(bytes).ok_or(MessageError { kind: bytes.first().copied(), length: bytes.len() })
    }
}

fn decode(bytes: &[u8]) -> Option<Message<'_>> {
    let (kind, content) = bytes.split_first()?;
    match *kind {
        PROBE => {
            let (number, rest) = u64_of(content)?;
            let (preference, paths) = u32_of(rest)?;
            let paths = match *paths {
                [ALL_PATHS] => PathChoice::All,
                [paths @ SPREAD..=0xef] => PathChoice::Spread { share: (paths & 0x0f) + 1 },
                [path] => PathChoice::One(PathId::new(path)?),
                _ => return None,
            };
            Some(Message::Probe { number, preference: Preference { number: preference, paths } })
        }
        PROBE_REPLY => {
            let (number, rest) = u64_of(content)?;
            (rest == [0; 5]).then_some(Message::ProbeReply { number })
        }
        DATA => data(None, content),
        COPY => {
            let (copy, rest) = u64_of(content)?;
            data(Some(copy), rest)
        }
        REFUSED => {
            let (association, rest) = u32_of(content)?;
            let (reason, destination) = rest.split_at_checked(1)?;
            let reason = decode_outcome(reason).ok()?.err()?;
            Some(Message::Refused { association, reason, destination: addressable(destination)? })
        }
        CLOSE => {
            let (association, rest) = u32_of(content)?;
            rest.is_empty().then_some(Message::Close { association })
        }
        _ => None,
    }
}

fn data(copy: Option<u64>, content: &[u8]) -> Option<Message<'_>> {
    let (association, rest) = u32_of(content)?;
    let (length, rest) = rest.split_first()?;
    let (destination, payload) = rest.split_at_checked(usize::from(*length) + 1)?;
    Some(Message::Data { association, copy, destination: addressable(destination)?, payload })
}

/// A destination that datagrams have.
fn addressable(content: &[u8]) -> Option<Destination> {
    Destination::decode(content).ok().filter(|destination| *destination != Destination::Datagrams)
}

fn u32_of(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u32::from_be_bytes(*number), rest))
}

fn u64_of(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u64::from_be_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exit::Host;

    fn destination() -> Destination {
        let address = "192.0.2.7".parse().expect("an address");
        Destination::Host(Host::Address(address), 53.try_into().expect("not 0"))
    }

    fn path(number: u8) -> PathId {
        PathId::new(number).expect("below 16")
    }

    fn encoded(message: &Message<'_>) -> Vec<u8> {
        let mut bytes = vec![0; 3];
        message.encode(&mut bytes);
        bytes
    }

    #[test]
    fn messages_have_the_documented_bytes() {
        let preference = |paths| Preference { number: 258, paths };
        for (message, bytes) in [
            (
                Message::Probe { number: 3, preference: preference(PathChoice::One(path(5))) },
                vec![1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 2, 5],
            ),
            (
                Message::Probe { number: 3, preference: preference(PathChoice::All) },
                vec![1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 2, 255],
            ),
            (
                Message::Probe { number: 3, preference: preference(PathChoice::Spread { share: 16 }) },
                vec![1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 2, 0xef],
            ),
            (Message::ProbeReply { number: 3 }, vec![2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0]),
            (
                Message::Data { association: 9, copy: None, destination: destination(), payload: b"hi" },
                vec![3, 0, 0, 0, 9, 6, 1, 0, 53, 192, 0, 2, 7, b'h', b'i'],
            ),
            (
                Message::Data {
                    association: 9,
                    copy: Some(1),
                    destination: Destination::Resolver,
                    payload: &[],
                },
                vec![4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 4],
            ),
            (
                Message::Refused {
                    association: 9,
                    reason: ConnectFailure::NotPermitted,
                    destination: destination(),
                },
                vec![5, 0, 0, 0, 9, 6, 1, 0, 53, 192, 0, 2, 7],
            ),
            (Message::Close { association: 9 }, vec![6, 0, 0, 0, 9]),
        ] {
            assert_eq!(encoded(&message), bytes);
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn other_bytes_are_rejected() {
        for wrong in [
            &[][..],
            &[0],
            &[7, 0, 0, 0, 1],
            &[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 2],
            &[1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 1, 2, 16],
            &[2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 1],
            &[3, 0, 0, 0, 9, 7, 1, 0, 53, 192, 0, 2, 7],
            // No destination of datagrams.
            &[3, 0, 0, 0, 9, 0, 5],
            &[5, 0, 0, 0, 9, 0, 1, 0, 53, 192, 0, 2, 7],
            &[6, 0, 0, 0, 9, 0],
        ] {
            assert!(Message::decode(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_alike(bytes: Vec<u8>) {
            if let Ok(message) = Message::decode(&bytes) {
                let again = encoded(&message);
                prop_assert_eq!(Message::decode(&again), Ok(message));
            }
        }

        #[test]
        fn data_round_trips(association: u32, copy: Option<u64>, name in "[a-z0-9]{1,253}", payload: Vec<u8>) {
            let destination = Destination::Host(
                Host::Name(name.parse().expect("a name")), 443.try_into().expect("not 0"));
            let message = Message::Data { association, copy, destination, payload: &payload };
            let bytes = encoded(&message);
            prop_assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }
}
