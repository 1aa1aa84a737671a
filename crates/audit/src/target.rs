//! A connection before it is attacked: its mode, which of its secrets each path captured, and statistics of its payload.

use plait_proto::codec::stream::{Direction as StreamDirection, RANDOM_LEN, StreamCipher, StreamSecret};
use plait_proto::option::Variant;
use plait_trace::{ByteRanges, Connection, Direction, PathId, Payload, Stream};
use plait_wire::mptcp::Key;
use ring::hmac;

use crate::content::Content;
use crate::headers::{Headers, Negotiated};
use crate::identifiers::{self, Protocol};
use crate::mode::{Mode, ModeSource, classify};
use crate::recovery::StreamSecrets;

/// A connection to attack.
pub(crate) struct Target<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) mode: Mode,
    pub(crate) mode_source: ModeSource,
    variant: Option<Variant>,
    /// One per path, including paths that carried nothing of it.
    pub(crate) observations: Vec<Observation<'a>>,
}

/// What one path's capture has of a connection.
pub(crate) struct Observation<'a> {
    pub(crate) path: PathId,
    /// The MPTCP keys of client and server, if captured on this path.
    keys: [Option<&'a Key>; 2],
    /// By direction.
    pub(crate) payload: [PayloadStats; 2],
}

/// Statistics of the payload of one direction.
#[derive(Default)]
pub(crate) struct PayloadStats {
    pub(crate) kind: &'static str,
    /// In bits per byte; `None` without payload.
    pub(crate) entropy: Option<f64>,
    pub(crate) looks_random: bool,
    /// The positions that the application itself encrypted, as far as that is known.
    pub(crate) encrypted: ByteRanges,
}

impl<'a> Target<'a> {
    pub(crate) fn new(connection: &'a Connection, paths: &[PathId], headers: &'a [Headers]) -> Self {
        let (client, server) = (connection.client(), connection.server());
        let opened = || connection.subflows.first().is_some_and(|subflow| !subflow.joined);
        let negotiated =
            headers.iter().filter(|_| opened()).find_map(|headers| headers.negotiated(client, server));
        let variant = match negotiated {
            Some(Negotiated::Variant(variant)) => Some(variant),
            Some(Negotiated::Plain) | None => None,
        };
        let contents: Vec<[Content; 2]> = paths
            .iter()
            .map(|path| {
                Direction::BOTH.map(|direction| Content::of(connection.stream(direction).payload(*path)))
            })
            .collect();
        let protocol = protocol(connection, paths, &contents);
        let (mode, mode_source) = match negotiated {
            Some(Negotiated::Variant(variant)) => (variant.mode().into(), ModeSource::Handshake),
            Some(Negotiated::Plain) => (Mode::Off, ModeSource::Handshake),
            None if protocol == Protocol::Sealed => (Mode::Sealed, ModeSource::Bytes),
            None if protocol == Protocol::Encrypted => (Mode::Off, ModeSource::Bytes),
            None => (classify_all(&contents), ModeSource::Bytes),
        };
        let encrypted = mode == Mode::Off && protocol == Protocol::Encrypted;
        let observations = paths.iter().zip(contents).zip(headers);
        let observations = observations.map(|((path, contents), headers)| Observation {
            path: *path,
            keys: [headers.key(client, server), headers.key(server, client)]
                .map(|key| key.filter(|_| opened())),
            payload: contents.map(|content| PayloadStats::new(content, encrypted)),
        });
        Self { connection, mode, mode_source, variant, observations: observations.collect() }
    }

    /// The `xor64` seed of a direction, as far as an eavesdropper on one path knows it.
    pub(crate) fn seed(&self, observation: &Observation<'_>, direction: Direction) -> Vec<Option<u8>> {
        let [client, server] = observation.keys;
        let (sender, receiver) = match direction {
            Direction::ClientToServer => (client, server),
            Direction::ServerToClient => (server, client),
        };
        match (self.variant, sender, receiver) {
            (Some(Variant::Xor64Key), Some(sender), _) => sender.as_bytes().map(Some).to_vec(),
            (Some(Variant::Xor64Key), None, _) => vec![None; 8],
            (Some(Variant::Xor64Hmac), Some(sender), Some(receiver)) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, sender.as_bytes());
                hmac::sign(&key, receiver.as_bytes()).as_ref().iter().copied().map(Some).collect()
            }
            // Every seed that plait uses has at most 32 bytes.
            _ => vec![None; 32],
        }
    }

    /// The secrets of mode `stream`, if one path captured all of them.
    pub(crate) fn secrets(
        &self,
        observation: &Observation<'_>,
        direction: Direction,
    ) -> Option<StreamSecrets> {
        let cipher = match self.variant? {
            Variant::StreamChaCha20 => StreamCipher::ChaCha20,
            Variant::StreamAes256 => StreamCipher::Aes256Ctr,
            _ => return None,
        };
        let [Some(client), Some(server)] = observation.keys else { return None };
        let forth = self.connection.stream(Direction::ClientToServer);
        let random = stream_prefix(forth, forth.payload(observation.path), RANDOM_LEN as u64);
        let random: [u8; RANDOM_LEN] = random.try_into().ok()?;
        let direction = match direction {
            Direction::ClientToServer => StreamDirection::ToResponder,
            Direction::ServerToClient => StreamDirection::ToInitiator,
        };
        Some(StreamSecrets {
            secret: StreamSecret::new(client.as_bytes(), server.as_bytes(), &random),
            cipher,
            direction,
        })
    }
}

impl Observation<'_> {
    /// Whether both keys were captured on this path.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.iter().all(Option::is_some)
    }
}

impl PayloadStats {
    fn new(content: Content, encrypted: bool) -> Self {
        let total = content.bytes.total();
        Self {
            kind: content.kind(),
            entropy: (total > 0).then(|| content.bytes.entropy()),
            looks_random: total > 0 && content.bytes.looks_random(),
            encrypted: if encrypted { content.random } else { ByteRanges::new() },
        }
    }
}

/// Up to `length` bytes from the start of a stream, up to the first gap in the capture.
pub(crate) fn stream_prefix(stream: &Stream, payload: &Payload, length: u64) -> Vec<u8> {
    if !stream.has_known_start() {
        return Vec::new();
    }
    let bytes = payload.bytes(0..length);
    bytes.into_iter().map_while(|byte| byte).collect()
}

/// The application protocol, from the start of either direction on any path.
fn protocol(connection: &Connection, paths: &[PathId], contents: &[[Content; 2]]) -> Protocol {
    let streams = Direction::BOTH.map(|direction| connection.stream(direction));
    let starts = streams.iter().flat_map(|stream| {
        paths.iter().map(|path| stream_prefix(stream, stream.payload(*path), identifiers::MAX_PREFIX))
    });
    let known =
        starts.map(|start| identifiers::parse(&start).0).find(|protocol| *protocol != Protocol::Other);
    let records = contents.iter().flatten().any(|content| content.tls_records);
    known.unwrap_or(if records { Protocol::Encrypted } else { Protocol::Other })
}

fn classify_all(contents: &[[Content; 2]]) -> Mode {
    let mut all = Content::default();
    contents.iter().flatten().for_each(|content| all.merge(content));
    classify(&all.bytes, &all.deltas)
}
