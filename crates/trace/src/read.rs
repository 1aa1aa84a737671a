use std::collections::HashMap;
use std::io::{self, Read};
use std::net::SocketAddr;

use plait_wire::capture::{CaptureError, PcapReader, Record, Timestamp};
use plait_wire::mptcp::{Capable, CapableKeys, DataSeq, Dss, Join, Key, Mapping, Token, Version};
use plait_wire::tcp::Flags;
use plait_wire::{Segment, Skip};
use thiserror::Error;

use crate::flow::{Flow, FlowKind, Half, Mapped, Signals};
use crate::{Connection, Direction, Protocol, Stream, Subflow};

/// A path that a capture was taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// What the user calls it.
    pub name: String,
    /// Whether somebody may listen on it.
    pub role: Role,
}

/// What a path is held to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nobody listens there.
    Trusted,
    /// Somebody may listen there.
    Untrusted,
}

/// A path by its place among the captures that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathId(usize);

impl PathId {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// A capture of one path.
#[derive(Debug)]
pub struct Capture<R> {
    /// The path.
    pub path: Path,
    /// Its packets.
    pub reader: PcapReader<R>,
}

/// How to read captures.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// How much payload to keep of all connections and paths together, in bytes of memory (rounded to pages of
    /// 4 KiB). What does not fit is counted in [`Connections::payload_dropped`]; exposure is not affected.
    pub payload_limit: u64,
    /// Keys of connections whose opening is in none of the captures, as when only a joined subflow was listened to.
    pub known: Vec<KnownKeys>,
}

impl Default for ReadOptions {
    /// Up to 1 GiB of payload, and no keys.
    fn default() -> Self {
        Self { payload_limit: 1 << 30, known: Vec::new() }
    }
}

/// The keys of a connection, known from elsewhere.
#[derive(Clone, Debug)]
pub struct KnownKeys {
    /// The connection's version, which says how numbers are derived from keys.
    pub version: Version,
    /// The key of the side that opened it.
    pub client: Key,
    /// The key of the side that accepted it.
    pub server: Key,
}

/// The connections found in captures.
#[derive(Debug)]
pub struct Connections {
    /// In the order in which they were first seen.
    pub connections: Vec<Connection>,
    /// How many packets were read.
    pub packets: u64,
    /// Which of them told nothing about a connection.
    pub skipped: Skipped,
    /// Payload bytes in no known mapping, which therefore count nowhere.
    pub unmapped: u64,
    /// Captured payload bytes that were beyond [`ReadOptions::payload_limit`].
    pub payload_dropped: u64,
    /// Captures that could not be read to their end.
    pub cut: Vec<Cut>,
    paths: Vec<Path>,
}

/// Packets that gave no TCP segment, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Something other than IP.
    pub not_ip: u64,
    /// IP with something other than TCP.
    pub not_tcp: u64,
    /// Fragments after the first.
    pub fragments: u64,
    /// Headers that were cut short or wrong.
    pub malformed: u64,
}

/// A capture that is damaged; what came before the damage was used.
#[derive(Debug)]
pub struct Cut {
    /// Whose capture.
    pub path: PathId,
    /// What is wrong with it.
    pub error: CaptureError,
}

/// A capture that could not be read.
#[derive(Debug, Error)]
#[error("capture of path {path}: {source}")]
pub struct ReadError {
    /// The path's name.
    pub path: String,
    /// What failed.
    pub source: io::Error,
}

impl Connections {
    /// Reads captures, one per path, and merges them by time. Their clocks must agree to within a handshake, as they
    /// do when all were taken on one host: a join is recognised by the keys of a connection opened before it.
    ///
    /// # Errors
    /// The input of a capture fails. A capture that is truncated or has a corrupt record ends there and is listed in
    /// [`cut`](Self::cut).
    pub fn read<R: Read>(captures: Vec<Capture<R>>, options: ReadOptions) -> Result<Self, ReadError> {
        let (paths, mut readers): (Vec<_>, Vec<_>) =
            captures.into_iter().map(|capture| (capture.path, capture.reader)).unzip();
        let mut assembly = Assembly::new(paths, options);
        let mut next: Vec<Option<Timestamp>> = Vec::new();
        for (index, reader) in readers.iter_mut().enumerate() {
            next.push(assembly.or_cut(index, reader.peek_time())?.flatten());
        }
        while let Some((_, index)) =
            next.iter().enumerate().filter_map(|(index, time)| time.map(|time| (time, index))).min()
        {
            let reader = &mut readers[index];
            if let Some(Some(record)) = assembly.or_cut(index, reader.next_record())? {
                assembly.packet(PathId(index), &record);
            }
            next[index] = assembly.or_cut(index, reader.peek_time())?.flatten();
        }
        Ok(assembly.finish())
    }

    /// The paths, in the order in which their captures were given.
    pub fn paths(&self) -> impl Iterator<Item = (PathId, &Path)> {
        self.paths.iter().enumerate().map(|(index, path)| (PathId(index), path))
    }

    /// The first path of this name.
    pub fn path(&self, name: &str) -> Option<PathId> {
        self.paths.iter().position(|path| path.name == name).map(PathId)
    }
}

/// Builds connections packet by packet.
struct Assembly {
    found: Connections,
    flows: HashMap<(SocketAddr, SocketAddr), Flow>,
    /// The connection that a token names, and the side it names it towards, as the direction in which that side
    /// sends.
    tokens: HashMap<Token, (usize, Direction)>,
    budget: u64,
}

impl Assembly {
    fn new(paths: Vec<Path>, options: ReadOptions) -> Self {
        let found = Connections {
            connections: Vec::new(),
            packets: 0,
            skipped: Skipped::default(),
            unmapped: 0,
            payload_dropped: 0,
            cut: Vec::new(),
            paths,
        };
        let mut assembly =
            Self { found, flows: HashMap::new(), tokens: HashMap::new(), budget: options.payload_limit };
        for KnownKeys { version, client, server } in options.known {
            let connection = assembly.add_connection(Protocol::Mptcp(version));
            assembly.learn_key(connection, Direction::ClientToServer, &client);
            assembly.learn_key(connection, Direction::ServerToClient, &server);
        }
        assembly
    }

    /// Turns damage of a capture into `None`, and takes note of it.
    fn or_cut<T>(&mut self, path: usize, result: Result<T, CaptureError>) -> Result<Option<T>, ReadError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(CaptureError::Io(source)) => {
                Err(ReadError { path: self.found.paths[path].name.clone(), source })
            }
            Err(error) => {
                self.found.cut.push(Cut { path: PathId(path), error });
                Ok(None)
            }
        }
    }

    fn finish(self) -> Connections {
        let mut found = self.found;
        // Known keys that no capture has to do with.
        found.connections.retain(|connection| !connection.subflows.is_empty());
        found.connections.iter_mut().flat_map(|connection| &mut connection.streams).for_each(Stream::seal);
        found
    }

    fn packet(&mut self, path: PathId, record: &Record<'_>) {
        self.found.packets += 1;
        let segment = match record.segment() {
            Ok(segment) => segment,
            Err(skip) => {
                let skipped = &mut self.found.skipped;
                match skip {
                    Skip::NotIp => skipped.not_ip += 1,
                    Skip::NotTcp => skipped.not_tcp += 1,
                    Skip::LaterFragment => skipped.fragments += 1,
                    Skip::Malformed(_) => skipped.malformed += 1,
                }
                return;
            }
        };
        let (source, destination) = (segment.source, segment.destination);
        let key = if source <= destination { (source, destination) } else { (destination, source) };
        let signals = Signals::of(&segment.tcp);
        let flags = segment.tcp.flags();
        // Taken out and put back, so that it can be changed together with its connection.
        let mut flow = match self.flows.remove(&key) {
            Some(flow) if !reopens(&flow, &segment) => flow,
            _ => self.open(&segment, &signals, record.time),
        };
        if flags.contains(Flags::SYN) {
            flow.half(source).learn_isn(segment.tcp.seq());
            if flags.contains(Flags::ACK) {
                flow.other_half(source).learn_isn(segment.tcp.ack().advance(u32::MAX));
                self.accepted(&mut flow, &segment, &signals, record.time);
            }
        }
        if let Some(index) = flow.connection {
            self.keys(index, flow.direction(source), &signals);
            self.data(index, &mut flow, &segment, &signals, path, record.time);
        }
        self.flows.insert(key, flow);
    }

    /// A flow seen for the first time.
    fn open(&mut self, segment: &Segment<'_>, signals: &Signals, time: Timestamp) -> Flow {
        let flags = segment.tcp.flags();
        if flags.contains(Flags::SYN) && !flags.contains(Flags::ACK) {
            let kind = match (&signals.capable, signals.join) {
                (Some(_), _) => FlowKind::Initial,
                (None, Some(Join::Syn { token, .. })) => FlowKind::Join(token),
                _ => FlowKind::Plain,
            };
            let mut flow = Flow::new(segment.source, kind);
            match (&signals.capable, kind) {
                (Some(capable), _) => {
                    self.start(&mut flow, segment.destination, Protocol::Mptcp(capable.version), time);
                }
                (None, FlowKind::Plain) => {
                    self.start(&mut flow, segment.destination, Protocol::Tcp, time);
                }
                (None, FlowKind::Join(token)) => {
                    // One that names no known connection belongs nowhere until it is accepted.
                    if let Some((index, owner)) = self.tokens.get(&token).copied() {
                        self.joined(&mut flow, index, owner, segment.destination, time);
                    }
                }
                (None, FlowKind::Initial | FlowKind::MidStream) => {}
            }
            return flow;
        }
        // A SYN/ACK tells who opened; without it, who is seen first is held to have.
        let (opener, acceptor) = match flags.contains(Flags::SYN) {
            true => (segment.destination, segment.source),
            false => (segment.source, segment.destination),
        };
        let mut flow = Flow::new(opener, FlowKind::MidStream);
        if flags.contains(Flags::SYN) {
            flow.kind = match (&signals.capable, signals.join) {
                (Some(_), _) => FlowKind::Initial,
                (None, Some(_)) => FlowKind::MidStream,
                (None, None) => FlowKind::Plain,
            };
        }
        let protocol = match &signals.capable {
            Some(capable) => Protocol::Mptcp(capable.version),
            None if signals.join.is_some() => Protocol::Mptcp(Version::V1),
            None => Protocol::Tcp,
        };
        let index = self.start(&mut flow, acceptor, protocol, time);
        self.found.connections[index].partial = true;
        self.found.connections[index].subflows[0].accepted = true;
        flow
    }

    /// Makes a connection of which `flow` is the first subflow.
    fn start(&mut self, flow: &mut Flow, acceptor: SocketAddr, protocol: Protocol, time: Timestamp) -> usize {
        let index = self.add_connection(protocol);
        flow.connection = Some(index);
        let connection = &mut self.found.connections[index];
        connection.subflows.push(Subflow {
            client: flow.opener,
            server: acceptor,
            joined: false,
            accepted: false,
            first_seen: time,
        });
        index
    }

    fn add_connection(&mut self, protocol: Protocol) -> usize {
        self.found.connections.push(Connection::new(protocol, self.found.paths.len()));
        self.found.connections.len() - 1
    }

    /// A SYN/ACK decides what the flow is.
    fn accepted(&mut self, flow: &mut Flow, segment: &Segment<'_>, signals: &Signals, time: Timestamp) {
        if let (FlowKind::Join(token), None, Some(_)) = (flow.kind, flow.connection, signals.join) {
            let (index, owner) = self.connection_of(token);
            self.joined(flow, index, owner, segment.source, time);
        }
        let Some(index) = flow.connection else { return };
        let connection = &mut self.found.connections[index];
        let accepted = match (flow.kind, &signals.capable) {
            (FlowKind::Join(_), _) => signals.join.is_some(),
            (FlowKind::Initial, Some(capable)) => {
                connection.protocol = Protocol::Mptcp(capable.version);
                true
            }
            (FlowKind::Initial, None) if !signals.cut => {
                // RFC 8684 3.1: without MP_CAPABLE in the SYN/ACK, this is a regular TCP connection.
                connection.protocol = Protocol::Tcp;
                connection.fell_back = true;
                flow.kind = FlowKind::Plain;
                true
            }
            _ => true,
        };
        connection.subflows[flow.subflow].accepted |= accepted;
    }

    /// The connection that a token names, and the side whose token it is. For an unknown token that was accepted, a
    /// new connection whose version is a guess and whose server is held to be the side that has the token.
    fn connection_of(&mut self, token: Token) -> (usize, Direction) {
        if let Some(found) = self.tokens.get(&token) {
            return *found;
        }
        let owner = Direction::ServerToClient;
        let index = self.add_connection(Protocol::Mptcp(Version::V1));
        self.found.connections[index].partial = true;
        self.found.connections[index].tokens[owner as usize] = Some(token);
        self.tokens.insert(token, (index, owner));
        (index, owner)
    }

    /// Adds a flow to a connection whose `owner`'s token its SYN carried.
    fn joined(
        &mut self,
        flow: &mut Flow,
        index: usize,
        owner: Direction,
        acceptor: SocketAddr,
        time: Timestamp,
    ) {
        // RFC 8684 3.2: the SYN carries the token of its receiver.
        flow.opener_sends = owner.reverse();
        flow.connection = Some(index);
        let (client, server) = match flow.opener_sends {
            Direction::ClientToServer => (flow.opener, acceptor),
            Direction::ServerToClient => (acceptor, flow.opener),
        };
        let subflows = &mut self.found.connections[index].subflows;
        flow.subflow = subflows.len();
        subflows.push(Subflow { client, server, joined: true, accepted: false, first_seen: time });
    }

    /// Keys in a segment that goes in `direction`.
    fn keys(&mut self, connection: usize, direction: Direction, signals: &Signals) {
        match &signals.capable {
            Some(Capable { keys: CapableKeys::Sender(sender), .. }) => {
                self.learn_key(connection, direction, sender);
            }
            Some(Capable { keys: CapableKeys::Both { sender, receiver, .. }, .. }) => {
                self.learn_key(connection, direction, sender);
                self.learn_key(connection, direction.reverse(), receiver);
            }
            Some(Capable { keys: CapableKeys::None, .. }) | None => {}
        }
    }

    /// The key of the side that sends in `direction`.
    fn learn_key(&mut self, index: usize, direction: Direction, key: &Key) {
        let connection = &mut self.found.connections[index];
        let Protocol::Mptcp(version) = connection.protocol else { return };
        if connection.tokens[direction as usize].is_some() {
            return;
        }
        let token = key.token(version);
        connection.tokens[direction as usize] = Some(token);
        connection.stream_mut(direction).learn_origin(key.idsn(version).advance(1));
        self.tokens.insert(token, (index, direction));
    }

    /// What a segment acknowledges, maps and carries.
    fn data(
        &mut self,
        index: usize,
        flow: &mut Flow,
        segment: &Segment<'_>,
        signals: &Signals,
        path: PathId,
        time: Timestamp,
    ) {
        let connection = &mut self.found.connections[index];
        let direction = flow.direction(segment.source);
        if flow.kind == FlowKind::MidStream && (signals.dss.is_some() || segment.payload_len > 0) {
            let mptcp = matches!(connection.protocol, Protocol::Mptcp(_)) || signals.dss.is_some();
            match (mptcp, connection.protocol) {
                (true, Protocol::Tcp) => connection.protocol = Protocol::Mptcp(Version::V1),
                (false, _) => flow.kind = FlowKind::Plain,
                _ => {}
            }
        }
        if let Some(Dss { data_ack: Some(data_ack), .. }) = signals.dss {
            let acknowledged = connection.stream_mut(direction.reverse());
            if let Some(position) = acknowledged.position(data_ack) {
                acknowledged.acknowledged(position, time);
            }
        }
        let syn = segment.tcp.flags().contains(Flags::SYN);
        let seq = segment.tcp.seq().advance(u32::from(syn));
        let stream = connection.stream_mut(direction);
        let kind = flow.kind;
        let half = flow.half(segment.source);
        if half.isn().is_none() {
            match (kind, mapping(signals)) {
                // The first byte seen becomes the first of the stream.
                (FlowKind::Plain, _) => half.learn_isn(seq.advance(u32::MAX)),
                // Right unless the packet is a later part of what the mapping covers.
                (_, Some((Mapping { subflow_seq, .. }, _))) if subflow_seq.0 != 0 => {
                    half.learn_isn(seq.advance(subflow_seq.0.wrapping_neg()));
                }
                _ => {}
            }
        }
        let Some(place) = half.place(seq) else {
            self.found.unmapped += u64::from(segment.payload_len);
            return;
        };
        map(half, stream, kind, signals, segment.payload_len > 0);
        // What a reset carries is a remark for people (RFC 9293 3.5.3), not data.
        if segment.payload_len == 0 || segment.tcp.flags().contains(Flags::RST) {
            return;
        }
        connection.first_payload[path.index()].get_or_insert(time);
        let stream = connection.stream_mut(direction);
        let (mut at, end) = (place, place + i64::from(segment.payload_len));
        while at < end {
            let (part_end, position) = half.next_part(at, end);
            let length = (part_end - at) as u64;
            match position {
                Some(position) => {
                    let payload = segment.payload();
                    let from = payload.len().min((at - place) as usize);
                    let to = payload.len().min((part_end - place) as usize);
                    let range = position..position + length;
                    let dropped = stream.crossed(path, range, &payload[from..to], &mut self.budget);
                    self.found.payload_dropped += dropped as u64;
                }
                None => self.found.unmapped += length,
            }
            at = part_end;
        }
    }
}

/// Whether a segment opens a new connection between the flow's two endpoints.
fn reopens(flow: &Flow, segment: &Segment<'_>) -> bool {
    let flags = segment.tcp.flags();
    flags.contains(Flags::SYN)
        && !flags.contains(Flags::ACK)
        && (segment.source != flow.opener || !flow.opened_by(segment.tcp.seq()))
}

/// The mapping in a segment, and whether its last number stands for a DATA_FIN.
fn mapping(signals: &Signals) -> Option<(Mapping, bool)> {
    signals.dss.and_then(|dss| dss.mapping.map(|mapping| (mapping, dss.data_fin)))
}

/// Takes note of what a segment says about where the data of its half belongs.
fn map(half: &mut Half, stream: &mut Stream, kind: FlowKind, signals: &Signals, has_payload: bool) {
    if let Some(Capable { keys: CapableKeys::Both { data: Some(data), .. }, .. }) = &signals.capable
        && let Some(position) = stream.origin_position()
    {
        half.map(Mapped { start: 1, end: 1 + i64::from(data.length), position });
        stream.reaches(position + u64::from(data.length));
    } else if let Some((mapping, data_fin)) = mapping(signals) {
        let Some(position) = stream.position(mapping.data_seq) else { return };
        let length = i64::from(mapping.length) - i64::from(data_fin);
        let start = half.place_of(mapping.subflow_seq.0);
        if mapping.is_infinite() {
            half.map(Mapped { start, end: i64::MAX, position });
        } else if length > 0 {
            half.map(Mapped { start, end: start + length, position });
        }
        stream.reaches(position.saturating_add_signed(length.max(0)));
    } else if has_payload && !half.mapped_ever() {
        let origin = match kind {
            FlowKind::Plain => {
                stream.learn_origin(DataSeq(1));
                stream.origin_position()
            }
            // RFC 8684 3.7: data without a mapping at the start of a connection is plain TCP from there on.
            FlowKind::Initial if !signals.cut => stream.origin_position(),
            _ => None,
        };
        if let Some(position) = origin {
            half.map(Mapped { start: 1, end: i64::MAX, position });
        }
    }
}
