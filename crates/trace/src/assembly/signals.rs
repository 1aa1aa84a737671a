//! MPTCP options other than data mappings: keys, joins and events.

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{AddAddress, AddAddressForm, Capable, CapableKeys, Join, JoinHmac, Key, Version};

use super::flow::{Flow, FlowKind, Signals};
use super::live::{LiveConnection, State};
use crate::connection::{Close, Protocol};
use crate::direction::Direction;
use crate::event::{Event, EventKind};

impl State {
    /// Processes the MPTCP options of a segment, apart from its data. `sender` is the direction of the segment.
    pub(super) fn signals(
        &mut self,
        index: usize,
        flow: &mut Flow,
        sender: Direction,
        signals: &mut Signals,
        time: Timestamp,
    ) {
        self.live[index].last_seen = time;
        self.keys(index, sender, signals);
        if let Some(join) = signals.join {
            self.join(index, flow, sender, join);
        }
        if flow.kind == FlowKind::MidStream && (signals.dss.is_some() || !signals.events.is_empty()) {
            // The first MPTCP option; the version is unknown.
            let connection = &mut self.live[index].connection;
            if connection.protocol == Protocol::Tcp {
                connection.protocol = Protocol::Mptcp(Version::V1);
            }
        }
        if !signals.events.is_empty() {
            self.events(index, flow, sender, signals, time);
        }
    }

    fn events(
        &mut self,
        index: usize,
        flow: &mut Flow,
        sender: Direction,
        signals: &mut Signals,
        time: Timestamp,
    ) {
        let subflow = flow.subflow;
        let authentic = signals.announced.as_ref().and_then(|add| self.live[index].announced(sender, add));
        let connection = &mut self.live[index].connection;
        for mut kind in signals.events.drain(..) {
            match (&mut kind, flow.close) {
                (EventKind::AddAddress { echo: false, authentic: verdict, .. }, _) => *verdict = authentic,
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
            connection.push_event(Event { time, subflow, sender, kind });
        }
    }

    /// Records the keys in a segment.
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

    /// Records the key of the side that sends in `direction`.
    pub(super) fn learn_key(&mut self, index: usize, direction: Direction, key: &Key) {
        let LiveConnection { connection, keys, .. } = &mut self.live[index];
        let Protocol::Mptcp(version) = connection.protocol else { return };
        if connection.tokens[direction as usize].is_some() {
            return;
        }
        let token = key.token(version);
        connection.tokens[direction as usize] = Some(token);
        keys[direction as usize] = Some(key.clone());
        connection.stream_mut(direction).learn_origin(key.idsn(version).advance(1));
        self.tokens.insert(token, (index, direction));
    }

    /// Processes MP_JOIN and verifies its HMAC.
    fn join(&mut self, index: usize, flow: &mut Flow, sender: Direction, join: Join) {
        let opens = flow.opener_direction();
        let LiveConnection { connection, .. } = &mut self.live[index];
        let subflow = &mut connection.subflows[flow.subflow];
        let verdict = match join {
            Join::Syn { backup, nonce, .. } => {
                subflow.backup |= backup;
                flow.side(opens).nonce = Some(nonce);
                return;
            }
            Join::SynAck { backup, nonce, hmac, .. } => {
                subflow.backup |= backup;
                flow.side(opens.reverse()).nonce = Some(nonce);
                self.live[index].expected(flow, opens.reverse()).map(|right| right.matches_syn_ack(&hmac))
            }
            // Both keys of a version 1 connection are known only after its first data; the HMAC of an earlier join is
            // not checked.
            Join::Ack { hmac } if sender == opens => {
                self.live[index].expected(flow, opens).map(|right| right.matches_ack(&hmac))
            }
            Join::Ack { .. } => return,
        };
        let subflow = &mut self.live[index].connection.subflows[flow.subflow];
        subflow.authentic = match (subflow.authentic, verdict) {
            (Some(before), Some(now)) => Some(before && now),
            (before, now) => now.or(before),
        };
    }
}

impl LiveConnection {
    /// The HMAC expected in a join from the side that sends in `sender`.
    fn expected(&self, flow: &mut Flow, sender: Direction) -> Option<JoinHmac> {
        let Protocol::Mptcp(version) = self.connection.protocol else { return None };
        let (own, peer) = self.keys(sender)?;
        let (own_nonce, peer_nonce) = (flow.side(sender).nonce?, flow.side(sender.reverse()).nonce?);
        Some(JoinHmac::of(version, own, peer, own_nonce, peer_nonce))
    }

    /// Whether the HMAC of an ADD_ADDR is valid, if the keys are known.
    fn announced(&self, sender: Direction, add: &AddAddress) -> Option<bool> {
        let (own, peer) = self.keys(sender)?;
        matches!(add.form, AddAddressForm::Announce { .. }).then(|| add.is_authentic(own, peer))
    }

    /// The keys of the side that sends in `sender` and of its peer.
    fn keys(&self, sender: Direction) -> Option<(&Key, &Key)> {
        let [client, server] = &self.keys;
        let (client, server) = (client.as_ref()?, server.as_ref()?);
        Some(match sender {
            Direction::ClientToServer => (client, server),
            Direction::ServerToClient => (server, client),
        })
    }
}
