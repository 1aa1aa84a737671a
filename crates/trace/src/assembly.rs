use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Capable, CapableKeys, DataSeq, Dss, Join, Key, Mapping, Token, Version};
use plait_wire::tcp::Flags;

use crate::flow::{Flow, FlowKind, Half, Mapped, Signals};
use crate::read::KnownKeys;
use crate::stream::Novelty;
use crate::{Close, Connection, Direction, Event, EventKind, PathId, Protocol, ReadOptions, Stream, Subflow};

/// Builds connections from segments in the order of time.
pub(crate) struct Assembly {
    flows: HashMap<(SocketAddr, SocketAddr), Flow>,
    state: State,
}

/// What [`Assembly::finish`] gives, as [`Connections`](crate::Connections) has it.
pub(crate) struct Assembled {
    pub(crate) connections: Vec<Connection>,
    pub(crate) unmapped: u64,
    pub(crate) payload_dropped: u64,
}

/// Where and when a segment was captured.
#[derive(Clone, Copy)]
struct Seen {
    path: PathId,
    time: Timestamp,
}

struct State {
    assembled: Assembled,
    /// The connection that a token names, and the side it names it towards, as the direction in which that side
    /// sends.
    tokens: HashMap<Token, (usize, Direction)>,
    paths: usize,
    /// What is left of [`ReadOptions::payload_limit`].
    budget: u64,
    interval: Option<Duration>,
}

impl Assembly {
    pub(crate) fn new(paths: usize, options: ReadOptions) -> Self {
        let assembled = Assembled { connections: Vec::new(), unmapped: 0, payload_dropped: 0 };
        let mut state = State {
            assembled,
            tokens: HashMap::new(),
            paths,
            budget: options.payload_limit,
            interval: options.interval,
        };
        for KnownKeys { version, client, server } in options.known {
            let connection = state.add_connection(Protocol::Mptcp(version));
            state.learn_key(connection, Direction::ClientToServer, &client);
            state.learn_key(connection, Direction::ServerToClient, &server);
        }
        Self { flows: HashMap::new(), state }
    }

    /// A segment that crossed a path.
    pub(crate) fn segment(&mut self, path: PathId, time: Timestamp, segment: &Segment<'_>) {
        let (source, destination) = (segment.source, segment.destination);
        let key = if source <= destination { (source, destination) } else { (destination, source) };
        let mut signals = Signals::of(&segment.tcp);
        let state = &mut self.state;
        let flow = match self.flows.entry(key) {
            Entry::Vacant(entry) => entry.insert(state.open(segment, &signals, time)),
            Entry::Occupied(entry) => {
                let flow = entry.into_mut();
                if reopens(flow, segment) {
                    let new = state.open(segment, &signals, time);
                    state.retire(mem::replace(flow, new));
                }
                flow
            }
        };
        let flags = segment.tcp.flags();
        if flags.contains(Flags::SYN) {
            flow.half(source).learn_isn(segment.tcp.seq());
            if flags.contains(Flags::ACK) {
                flow.other_half(source).learn_isn(segment.tcp.ack().advance(u32::MAX));
                state.accepted(flow, segment, &signals, time);
            }
        }
        let carries = carries(segment);
        let direction = flow.direction(source);
        flow.last_seen = flow.last_seen.max(time);
        flow.handshake.saw(flags, source == flow.opener, time);
        flow.close = flow.close.after(direction, flags.contains(Flags::FIN), flags.contains(Flags::RST));
        if flags.contains(Flags::ACK) {
            flow.other_half(source).sender.acknowledged(segment.tcp.ack(), signals.stamps, time);
        }
        flow.half(source).sender.sent(segment, carries, signals.stamps, time);
        match flow.connection {
            Some(index) => {
                state.events(index, flow, direction, &mut signals, time);
                state.keys(index, flow.direction(source), &signals);
                state.data(index, flow, segment, &signals, Seen { path, time });
            }
            None => state.unmapped(flow.half(source), carries, time),
        }
    }

    pub(crate) fn finish(mut self) -> Assembled {
        for (_, flow) in self.flows.drain() {
            self.state.retire(flow);
        }
        let mut assembled = self.state.assembled;
        let connections = &mut assembled.connections;
        // Known keys that no capture has to do with.
        connections.retain(|connection| !connection.subflows.is_empty());
        connections.iter_mut().flat_map(|connection| &mut connection.streams).for_each(Stream::seal);
        assembled
    }
}

impl State {
    /// A flow seen for the first time.
    fn open(&mut self, segment: &Segment<'_>, signals: &Signals, time: Timestamp) -> Flow {
        let flags = segment.tcp.flags();
        if flags.contains(Flags::SYN) && !flags.contains(Flags::ACK) {
            self.open_by_syn(segment, signals, time)
        } else {
            self.open_midway(segment, signals, time)
        }
    }

    fn open_by_syn(&mut self, segment: &Segment<'_>, signals: &Signals, time: Timestamp) -> Flow {
        let (source, destination) = (segment.source, segment.destination);
        if let (None, Some(Join::Syn { token, .. })) = (&signals.capable, signals.join) {
            let mut flow = Flow::new(source, FlowKind::Join(token));
            // One that names no known connection belongs nowhere until it is accepted.
            if let Some((index, owner)) = self.tokens.get(&token).copied() {
                self.joined(&mut flow, index, owner, destination, time);
            }
            return flow;
        }
        let (kind, protocol) = match &signals.capable {
            Some(capable) => (FlowKind::Initial, Protocol::Mptcp(capable.version)),
            None => (FlowKind::Plain, Protocol::Tcp),
        };
        let mut flow = Flow::new(source, kind);
        self.start(&mut flow, destination, protocol, time);
        flow
    }

    /// A flow whose SYN was not captured.
    fn open_midway(&mut self, segment: &Segment<'_>, signals: &Signals, time: Timestamp) -> Flow {
        let syn_ack = segment.tcp.flags().contains(Flags::SYN);
        let (kind, protocol) = match (&signals.capable, signals.join) {
            (Some(capable), _) if syn_ack => (FlowKind::Initial, Protocol::Mptcp(capable.version)),
            (Some(capable), _) => (FlowKind::MidStream, Protocol::Mptcp(capable.version)),
            (None, Some(_)) => (FlowKind::MidStream, Protocol::Mptcp(Version::V1)),
            (None, None) if syn_ack => (FlowKind::Plain, Protocol::Tcp),
            (None, None) => (FlowKind::MidStream, Protocol::Tcp),
        };
        // A SYN/ACK tells who opened; without it, who is seen first is held to have.
        let (opener, acceptor) = match syn_ack {
            true => (segment.destination, segment.source),
            false => (segment.source, segment.destination),
        };
        let mut flow = Flow::new(opener, kind);
        let index = self.start(&mut flow, acceptor, protocol, time);
        let connection = &mut self.assembled.connections[index];
        connection.partial = true;
        connection.subflows[0].accepted = true;
        flow
    }

    /// Makes a connection of which `flow` is the first subflow.
    fn start(&mut self, flow: &mut Flow, acceptor: SocketAddr, protocol: Protocol, time: Timestamp) -> usize {
        let index = self.add_connection(protocol);
        flow.connection = Some(index);
        let connection = &mut self.assembled.connections[index];
        connection.subflows.push(Subflow::new(flow.opener, acceptor, false, time));
        index
    }

    fn add_connection(&mut self, protocol: Protocol) -> usize {
        self.assembled.connections.push(Connection::new(protocol, self.paths));
        self.assembled.connections.len() - 1
    }

    /// A SYN/ACK decides what the flow is.
    fn accepted(&mut self, flow: &mut Flow, segment: &Segment<'_>, signals: &Signals, time: Timestamp) {
        if let (FlowKind::Join(token), None, Some(_)) = (flow.kind, flow.connection, signals.join) {
            let (index, owner) = self.connection_of(token);
            self.joined(flow, index, owner, segment.source, time);
        }
        let Some(index) = flow.connection else { return };
        let connection = &mut self.assembled.connections[index];
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
        self.assembled.connections[index].partial = true;
        self.assembled.connections[index].tokens[owner as usize] = Some(token);
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
        let subflows = &mut self.assembled.connections[index].subflows;
        flow.subflow = subflows.len();
        subflows.push(Subflow::new(client, server, true, time));
    }

    /// A flow of which no more segments come.
    fn retire(&mut self, mut flow: Flow) {
        let Some(index) = flow.connection else { return };
        let (opener, sends) = (flow.opener, flow.opener_sends);
        let subflow = &mut self.assembled.connections[index].subflows[flow.subflow];
        subflow.last_seen = flow.last_seen;
        subflow.syn_rtt = flow.handshake.rtt();
        subflow.close = flow.close;
        subflow.sent[sends as usize] = mem::take(&mut flow.half(opener).sender.tally);
        subflow.sent[sends.reverse() as usize] = mem::take(&mut flow.other_half(opener).sender.tally);
    }

    /// What a segment from the side that sends in `sender` signals.
    fn events(
        &mut self,
        index: usize,
        flow: &mut Flow,
        sender: Direction,
        signals: &mut Signals,
        time: Timestamp,
    ) {
        let connection = &mut self.assembled.connections[index];
        let subflow = flow.subflow;
        if let Some(Join::Syn { backup, .. } | Join::SynAck { backup, .. }) = signals.join {
            connection.subflows[subflow].backup |= backup;
        }
        for kind in signals.events.drain(..) {
            match (&kind, flow.close) {
                (EventKind::Priority { backup, id: None }, _) => {
                    connection.subflows[subflow].backup = *backup;
                }
                (EventKind::FastClose, Close::Open | Close::HalfClosed(_) | Close::Reset { .. }) => {
                    flow.close = Close::FastClose(sender);
                }
                (EventKind::Reset { reason }, Close::Reset { by, .. }) if by == sender => {
                    flow.close = Close::Reset { by, reason: Some(*reason) };
                }
                _ => {}
            }
            connection.happened(Event { time, subflow, sender, kind });
        }
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
        let connection = &mut self.assembled.connections[index];
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
    fn data(&mut self, index: usize, flow: &mut Flow, segment: &Segment<'_>, signals: &Signals, seen: Seen) {
        let Seen { path, time } = seen;
        let connection = &mut self.assembled.connections[index];
        let direction = flow.direction(segment.source);
        let (bytes, carries) = (carries(segment), carries(segment) > 0);
        if carries {
            connection.first_payload[path.index()].get_or_insert(time);
        }
        if flow.kind == FlowKind::MidStream && connection.protocol == Protocol::Tcp {
            // The first sign tells; which version it is cannot be known.
            if signals.dss.is_some() {
                connection.protocol = Protocol::Mptcp(Version::V1);
            } else if carries {
                flow.kind = FlowKind::Plain;
            }
        }
        if let Some(Dss { data_ack: Some(data_ack), .. }) = signals.dss {
            let acknowledged = connection.stream_mut(direction.reverse());
            if let Some(position) = acknowledged.position(data_ack) {
                acknowledged.acknowledged(position, time);
            }
        }
        let kind = flow.kind;
        let half = flow.half(segment.source);
        match place(half, kind, segment, signals) {
            Some(place) => {
                map(half, connection.stream_mut(direction), kind, signals, carries);
                if carries {
                    self.carry(index, direction, flow, place, segment, seen);
                }
            }
            None if carries => self.unmapped(half, bytes, time),
            None => {}
        }
    }

    /// Payload bytes without a place in a stream.
    fn unmapped(&mut self, half: &mut Half, bytes: u64, time: Timestamp) {
        self.assembled.unmapped += bytes;
        half.sender.tally.unmapped += bytes;
        if let Some(interval) = self.interval.filter(|_| bytes > 0) {
            half.sender.tally.series.add(interval, time, bytes, 0);
        }
    }

    /// Moves the payload of a segment, which starts at `place` of its half, to where it belongs in the stream.
    fn carry(
        &mut self,
        index: usize,
        direction: Direction,
        flow: &mut Flow,
        place: i64,
        segment: &Segment<'_>,
        Seen { path, time }: Seen,
    ) {
        let subflow = flow.subflow;
        let half = flow.half(segment.source);
        let mut sum = Novelty::default();
        let Assembled { connections, unmapped, payload_dropped } = &mut self.assembled;
        let stream = connections[index].stream_mut(direction);
        let captured = segment.payload();
        let (mut at, end) = (place, place + i64::from(segment.payload_len));
        while at < end {
            let (part_end, position) = half.next_part(at, end);
            let length = (part_end - at) as u64;
            match position {
                Some(position) => {
                    let from = captured.len().min((at - place) as usize);
                    let to = captured.len().min((part_end - place) as usize);
                    let range = position..position + length;
                    let novelty = stream.carry(subflow, range.clone());
                    sum.new += novelty.new;
                    sum.reinjected += novelty.reinjected;
                    sum.repeated += novelty.repeated;
                    *payload_dropped += stream.crossed(path, range, &captured[from..to], &mut self.budget);
                }
                None => {
                    *unmapped += length;
                    half.sender.tally.unmapped += length;
                }
            }
            at = part_end;
        }
        let tally = &mut half.sender.tally;
        tally.new += sum.new;
        tally.reinjected.add(sum.reinjected);
        tally.repeated += sum.repeated;
        if let Some(interval) = self.interval {
            tally.series.add(interval, time, carries(segment), sum.new);
        }
    }
}

/// How many bytes of data a segment carries: what a reset carries is a remark for people (RFC 9293 3.5.3).
fn carries(segment: &Segment<'_>) -> u64 {
    if segment.tcp.flags().contains(Flags::RST) { 0 } else { segment.payload_len.into() }
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

/// The place in its half at which a segment's data starts; `None` when nothing tells.
fn place(half: &mut Half, kind: FlowKind, segment: &Segment<'_>, signals: &Signals) -> Option<i64> {
    let syn = segment.tcp.flags().contains(Flags::SYN);
    let seq = segment.tcp.seq().advance(u32::from(syn));
    if half.isn().is_none() {
        match (kind, mapping(signals)) {
            // The first byte seen becomes the first of the stream.
            (FlowKind::Plain, _) => half.learn_isn(seq.advance(u32::MAX)),
            // Right unless the segment is a later part of what the mapping covers.
            (_, Some((Mapping { subflow_seq, .. }, _))) if subflow_seq.0 != 0 => {
                half.learn_isn(seq.advance(subflow_seq.0.wrapping_neg()));
            }
            _ => {}
        }
    }
    half.place(seq)
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
