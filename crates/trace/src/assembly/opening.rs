//! The opening of flows, and their assignment to connections.

use std::net::SocketAddr;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{Join, Token, Version};
use plait_wire::tcp::Flags;

use super::flow::{Flow, FlowKind, Signals};
use super::live::State;
use super::observation::Observation;
use crate::connection::{Fallback, Protocol, Subflow};
use crate::direction::Direction;

/// Maximum number of subflows of a connection: more joins than that are an attack.
const MAX_SUBFLOWS: usize = 10_000;

impl State {
    /// Creates a flow from its first captured segment.
    pub(super) fn open(&mut self, segment: &Segment<'_>, signals: &Signals, at: Observation) -> Box<Flow> {
        let flags = segment.tcp.flags();
        let mut flow = if flags.contains(Flags::SYN) && !flags.contains(Flags::ACK) {
            self.open_by_syn(segment, signals, at.time)
        } else {
            self.open_midway(segment, signals, at.time)
        };
        flow.last_seen = at.time;
        flow.liveness = self.liveness(at.path, segment.source.ip(), segment.destination.ip());
        Box::new(flow)
    }

    fn open_by_syn(&mut self, segment: &Segment<'_>, signals: &Signals, time: Timestamp) -> Flow {
        let (source, destination) = (segment.source, segment.destination);
        if let (None, Some(Join::Syn { token, .. })) = (&signals.capable, signals.join) {
            let mut flow = Flow::new(source, FlowKind::Join(token));
            // A join with an unknown token belongs to no connection until it is accepted.
            if let Some((index, owner)) = self.tokens.get(&token).copied() {
                self.joined(&mut flow, index, owner, destination, time);
            }
            return flow;
        }
        let (kind, protocol) = match &signals.capable {
            Some(capable) => (FlowKind::Initial, Protocol::Mptcp(capable.version)),
            // The capture lacks the options that would tell.
            None if signals.cut => (FlowKind::MidStream, Protocol::Tcp),
            None => (FlowKind::Plain, Protocol::Tcp),
        };
        let mut flow = Flow::new(source, kind);
        let index = self.start(&mut flow, destination, protocol, time);
        self.live[index].connection.partial = kind == FlowKind::MidStream;
        flow
    }

    /// Creates a flow whose SYN was not captured.
    fn open_midway(&mut self, segment: &Segment<'_>, signals: &Signals, time: Timestamp) -> Flow {
        let syn_ack = segment.tcp.flags().contains(Flags::SYN);
        let (kind, protocol) = match (&signals.capable, signals.join) {
            (Some(capable), _) if syn_ack => (FlowKind::Initial, Protocol::Mptcp(capable.version)),
            (Some(capable), _) => (FlowKind::MidStream, Protocol::Mptcp(capable.version)),
            (None, Some(_)) => (FlowKind::MidStream, Protocol::Mptcp(Version::V1)),
            (None, None) if syn_ack => (FlowKind::Plain, Protocol::Tcp),
            (None, None) => (FlowKind::MidStream, Protocol::Tcp),
        };
        // Without a SYN/ACK, the sender of the first segment is taken to be the opener.
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

    /// Creates a connection whose first subflow is `flow`.
    fn start(&mut self, flow: &mut Flow, acceptor: SocketAddr, protocol: Protocol, time: Timestamp) -> usize {
        let index = self.add_connection(protocol);
        flow.connection = Some(index);
        self.added_flow(index);
        self.live[index].connection.subflows.push(Subflow::new(flow.opener, acceptor, false, time));
        index
    }

    /// Processes a SYN/ACK, which decides whether the flow is MPTCP.
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

    /// The connection of a token and the side that owns it. For an unknown token that was accepted, a new connection: its
    /// version is a guess, and the owner of the token is taken to be the server.
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

    /// Adds a flow to the connection whose token its SYN carried.
    fn joined(
        &mut self,
        flow: &mut Flow,
        index: usize,
        owner: Direction,
        acceptor: SocketAddr,
        time: Timestamp,
    ) {
        // RFC 8684 3.2: the SYN carries the token of its receiver.
        flow.set_opener_direction(owner.reverse());
        if self.live[index].connection.subflows.len() == MAX_SUBFLOWS {
            return;
        }
        flow.connection = Some(index);
        self.added_flow(index);
        let (client, server) = match flow.opener_direction() {
            Direction::ClientToServer => (flow.opener, acceptor),
            Direction::ServerToClient => (acceptor, flow.opener),
        };
        let subflows = &mut self.live[index].connection.subflows;
        flow.subflow = subflows.len();
        subflows.push(Subflow::new(client, server, true, time));
    }
}
