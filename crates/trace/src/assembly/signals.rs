use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{AddAddress, AddAddressForm, Capable, CapableKeys, Join, JoinHmac, Key, Version};

use super::live::{Live, State};
use crate::flow::{Flow, FlowKind, Signals};
use crate::{Close, Direction, Event, EventKind, Protocol};

impl State {
    /// What a segment from the side that sends in `sender` says about the connection, besides its data.
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
            // The first sign of MPTCP; which version it is cannot be known.
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
    pub(super) fn learn_key(&mut self, index: usize, direction: Direction, key: &Key) {
        let Live { connection, keys, .. } = &mut self.live[index];
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

    /// MP_JOIN from the side that sends in `sender`.
    fn join(&mut self, index: usize, flow: &mut Flow, sender: Direction, join: Join) {
        let opens = flow.opener_sends();
        let Live { connection, .. } = &mut self.live[index];
        let subflow = &mut connection.subflows[flow.subflow];
        let verdict = match join {
            Join::Syn { backup, nonce, .. } => {
                subflow.backup |= backup;
                flow.half(opens).nonce = Some(nonce);
                return;
            }
            Join::SynAck { backup, nonce, hmac, .. } => {
                subflow.backup |= backup;
                flow.half(opens.reverse()).nonce = Some(nonce);
                self.live[index].expected(flow, opens.reverse()).map(|right| right.matches_syn_ack(&hmac))
            }
            // Both keys of a version 1 connection are known only after its first data: that of an early join is not
            // checked then.
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

impl Live {
    /// The HMAC that the side of a join that sends in `sender` should send.
    fn expected(&self, flow: &mut Flow, sender: Direction) -> Option<JoinHmac> {
        let Protocol::Mptcp(version) = self.connection.protocol else { return None };
        let (own, peer) = self.keys(sender)?;
        let (own_nonce, peer_nonce) = (flow.half(sender).nonce?, flow.half(sender.reverse()).nonce?);
        Some(JoinHmac::of(version, own, peer, own_nonce, peer_nonce))
    }

    /// Whether an address was announced by who knows the keys, where that can be told.
    fn announced(&self, sender: Direction, add: &AddAddress) -> Option<bool> {
        let (own, peer) = self.keys(sender)?;
        matches!(add.form, AddAddressForm::Announce { .. }).then(|| add.is_authentic(own, peer))
    }

    /// The key of the side that sends in `sender`, and that of the other.
    fn keys(&self, sender: Direction) -> Option<(&Key, &Key)> {
        let [client, server] = &self.keys;
        let (client, server) = (client.as_ref()?, server.as_ref()?);
        Some(match sender {
            Direction::ClientToServer => (client, server),
            Direction::ServerToClient => (server, client),
        })
    }
}
