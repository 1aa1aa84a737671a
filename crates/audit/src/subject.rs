//! A connection before anything is tried: its mode, what of its secrets was captured where, and what its payload looks
//! like.

use plait_proto::stream::{Cipher, Direction as Way, RANDOM_LEN, Secret};
use plait_trace::{ByteRanges, Connection, Direction, PathId, Payload, Stream};
use plait_wire::mptcp::Key;
use ring::hmac;

use crate::content::Content;
use crate::handshake::{Agreed, Headers};
use crate::mode::{Chosen, Mode, ModeFrom, judged};
use crate::names::{self, Protocol};
use crate::recovery::StreamSecrets;

/// Both directions, in the order of all arrays by direction.
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::ClientToServer, Direction::ServerToClient];

/// A connection and what is known of it.
pub(crate) struct Subject<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) mode: Mode,
    pub(crate) mode_from: ModeFrom,
    chosen: Option<Chosen>,
    /// By path, whether anything crossed it or not.
    pub(crate) places: Vec<Place<'a>>,
}

/// A connection on a path.
pub(crate) struct Place<'a> {
    pub(crate) path: PathId,
    /// MPTCP's keys, of client and server, as captured on this path.
    keys: [Option<&'a Key>; 2],
    pub(crate) looks: [Looks; 2],
}

/// What payload looks like.
#[derive(Default)]
pub(crate) struct Looks {
    pub(crate) kind: &'static str,
    pub(crate) entropy: Option<f64>,
    pub(crate) random: bool,
    /// What the application itself encrypted, as far as that is known.
    pub(crate) encrypted: ByteRanges,
}

impl<'a> Subject<'a> {
    pub(crate) fn of(connection: &'a Connection, paths: &[PathId], headers: &'a [Headers]) -> Self {
        let (client, server) = (connection.client(), connection.server());
        let opened = || connection.subflows.first().is_some_and(|subflow| !subflow.joined);
        let agreed = headers.iter().filter(|_| opened()).find_map(|headers| headers.agreed(client, server));
        let chosen = match agreed {
            Some(Agreed::On(chosen)) => Some(chosen),
            Some(Agreed::Plain) | None => None,
        };
        let contents: Vec<[Content; 2]> = paths
            .iter()
            .map(|path| DIRECTIONS.map(|direction| Content::of(connection.stream(direction).payload(*path))))
            .collect();
        let protocol = protocol(connection, paths, &contents);
        let (mode, mode_from) = match agreed {
            Some(Agreed::On(chosen)) => (chosen.mode(), ModeFrom::Handshake),
            Some(Agreed::Plain) => (Mode::Off, ModeFrom::Handshake),
            None if protocol == Protocol::Sealed => (Mode::Sealed, ModeFrom::Bytes),
            None if protocol == Protocol::Encrypted => (Mode::Off, ModeFrom::Bytes),
            None => (judge(&contents), ModeFrom::Bytes),
        };
        let encrypted = mode == Mode::Off && protocol == Protocol::Encrypted;
        let places = paths.iter().zip(contents).zip(headers);
        let places = places.map(|((path, contents), headers)| Place {
            path: *path,
            keys: [headers.key(client, server), headers.key(server, client)]
                .map(|key| key.filter(|_| opened())),
            looks: contents.map(|content| Looks::of(content, encrypted)),
        });
        Self { connection, mode, mode_from, chosen, places: places.collect() }
    }

    /// What stands before the first byte of a direction, as a listener on one path knows it.
    pub(crate) fn seed(&self, place: &Place<'_>, direction: Direction) -> Vec<Option<u8>> {
        let [client, server] = place.keys;
        let (sender, receiver) = match direction {
            Direction::ClientToServer => (client, server),
            Direction::ServerToClient => (server, client),
        };
        match (self.chosen, sender, receiver) {
            (Some(Chosen::Xor64Key), Some(sender), _) => sender.as_bytes().map(Some).to_vec(),
            (Some(Chosen::Xor64Key), None, _) => vec![None; 8],
            (Some(Chosen::Xor64Hmac), Some(sender), Some(receiver)) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, sender.as_bytes());
                hmac::sign(&key, receiver.as_bytes()).as_ref().iter().copied().map(Some).collect()
            }
            // Of any seed that plait uses, no more is known.
            _ => vec![None; 32],
        }
    }

    /// What mode `stream` rests on, if all of it was captured on a path.
    pub(crate) fn secrets(&self, place: &Place<'_>, direction: Direction) -> Option<StreamSecrets> {
        let cipher = match self.chosen? {
            Chosen::StreamChaCha20 => Cipher::ChaCha20,
            Chosen::StreamAes => Cipher::Aes256Ctr,
            _ => return None,
        };
        let [Some(client), Some(server)] = place.keys else { return None };
        let forth = self.connection.stream(Direction::ClientToServer);
        let random = beginning(forth, forth.payload(place.path), RANDOM_LEN as u64);
        let random: [u8; RANDOM_LEN] = random.try_into().ok()?;
        let direction = match direction {
            Direction::ClientToServer => Way::Forth,
            Direction::ServerToClient => Way::Back,
        };
        Some(StreamSecrets {
            secret: Secret::new(client.as_bytes(), server.as_bytes(), &random),
            cipher,
            direction,
        })
    }
}

impl Place<'_> {
    /// Whether both keys were captured here.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.iter().all(Option::is_some)
    }
}

impl Looks {
    fn of(content: Content, encrypted: bool) -> Self {
        let total = content.bytes.total();
        Self {
            kind: content.kind(),
            entropy: (total > 0).then(|| content.bytes.entropy()),
            random: total > 0 && content.bytes.looks_random(),
            encrypted: if encrypted { content.random } else { ByteRanges::new() },
        }
    }
}

/// Up to `length` bytes of a stream from its first one on, as far as they were captured without a gap.
pub(crate) fn beginning(stream: &Stream, payload: &Payload, length: u64) -> Vec<u8> {
    if !stream.starts_at_its_first_byte() {
        return Vec::new();
    }
    let bytes = payload.bytes(0..length);
    bytes.into_iter().map_while(|byte| byte).collect()
}

/// What the beginnings of both directions, wherever they were captured, say of the content.
fn protocol(connection: &Connection, paths: &[PathId], contents: &[[Content; 2]]) -> Protocol {
    let streams = DIRECTIONS.map(|direction| connection.stream(direction));
    let starts = streams.iter().flat_map(|stream| {
        paths.iter().map(|path| beginning(stream, stream.payload(*path), names::LOOKED_AT))
    });
    let known = starts.map(|start| names::read(&start).0).find(|protocol| *protocol != Protocol::Other);
    let records = contents.iter().flatten().any(|content| content.tls_records);
    known.unwrap_or(if records { Protocol::Encrypted } else { Protocol::Other })
}

fn judge(contents: &[[Content; 2]]) -> Mode {
    let mut all = Content::default();
    contents.iter().flatten().for_each(|content| all.merge(content));
    judged(&all.bytes, &all.steps)
}
