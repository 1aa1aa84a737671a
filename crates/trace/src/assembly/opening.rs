use std::net::SocketAddr;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Join, Token, Version};
use plait_wire::tcp::Flags;

use super::Seen;
use super::live::State;
use crate::flow::{Flow, FlowKind, Signals};
use crate::{Direction, Fallback, Protocol, Subflow};

/// How many subflows of a connection are told of; who sends more joins than that means harm.
const SUBFLOWS_KEPT: usize = 10_000;

impl State {
    /// A flow seen for the first time.
    pub(super) fn open(&mut self, segment: &Segment<'_>, signals: &Signals, seen: Seen) -> Box<Flow> {
        let flags = segment.tcp.flags();
        let mut flow = if flags.contains(Flags::SYN) && !flags.contains(Flags::ACK) {
            self.open_by_syn(segment, signals, seen.time)
        } else {
            self.open_midway(segment, signals, seen.time)
        };
        flow.last_seen = seen.time;
        flow.life = self.life(seen.path, segment.source.ip(), segment.destination.ip());
        Box::new(flow)
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
        let connection = &mut self.live[index].connection;
        connection.partial = true;
        connection.subflows[0].accepted = true;
        flow
    }

    /// Makes a connection of which `flow` is the first subflow.
    fn start(&mut self, flow: &mut Flow, acceptor: SocketAddr, protocol: Protocol, time: Timestamp) -> usize {
        let index = self.add_connection(protocol);
        flow.connection = Some(index);
        self.added_flow(index);
        self.live[index].connection.subflows.push(Subflow::new(flow.opener, acceptor, false, time));
        index
    }

    /// A SYN/ACK decides what the flow is.
    pub(super) fn accepted(
        &mut self,
        flow: &mut Flow,
        segment: &Segment<'_>,
        signals: &Signals,
        time: Timestamp,
    ) {
        if let (FlowKind::Join(token), None, Some(_)) = (flow.kind, flow.connection, signals.join) {
            let (index, owner) = self.connection_of(token);
            self.joined(flow, index, owner, segment.source, time);
        }
        let Some(index) = flow.connection else { return };
        let connection = &mut self.live[index].connection;
        let accepted = match (flow.kind, &signals.capable) {
            (FlowKind::Join(_), _) => signals.join.is_some(),
            (FlowKind::Initial, Some(capable)) => {
                connection.protocol = Protocol::Mptcp(capable.version);
                true
            }
            (FlowKind::Initial, None) if !signals.cut => {
                // RFC 8684 3.1: without MP_CAPABLE in the SYN/ACK, this is a regular TCP connection.
                connection.protocol = Protocol::Tcp;
                connection.fallback = Some(Fallback::NoCapable);
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
        let connection = &mut self.live[index].connection;
        connection.partial = true;
        connection.tokens[owner as usize] = Some(token);
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
        flow.turn_to(owner.reverse());
        if self.live[index].connection.subflows.len() == SUBFLOWS_KEPT {
            return;
        }
        flow.connection = Some(index);
        self.added_flow(index);
        let (client, server) = match flow.opener_sends() {
            Direction::ClientToServer => (flow.opener, acceptor),
            Direction::ServerToClient => (acceptor, flow.opener),
        };
        let subflows = &mut self.live[index].connection.subflows;
        flow.subflow = subflows.len();
        subflows.push(Subflow::new(client, server, true, time));
    }
}
