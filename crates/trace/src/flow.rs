use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{AddAddress, Capable, Dss, Join, MptcpOption, Nonce, Token};
use plait_wire::tcp::{Flags, Seq, TcpOption};
use plait_wire::{ParseError, Segment, tcp};

use crate::checksum::Verifier;
use crate::life::LifeId;
use crate::sender::{Sender, Stamps};
use crate::series::Current;
use crate::silence::Silence;
use crate::unwrap::Unwrap;
use crate::{Close, Direction, EventKind, Failover, PathId};

/// What is known of one TCP connection while captures are read.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) opener: SocketAddr,
    /// The direction of the connection in which the opener sends.
    opener_sends: Direction,
    /// The connection it belongs to; unknown for a join that was not accepted yet.
    pub(crate) connection: Option<usize>,
    /// Which of the connection's subflows it is.
    pub(crate) subflow: usize,
    pub(crate) kind: FlowKind,
    pub(crate) handshake: Handshake,
    pub(crate) close: Close,
    pub(crate) last_seen: Timestamp,
    pub(crate) life: Option<LifeId>,
    /// A silence that is over, and after which no data was carried yet.
    pub(crate) recovering: Option<Box<Failover>>,
    /// A time without a packet, since which only data came that had come before.
    pub(crate) back: Option<Range<Timestamp>>,
    /// What the sides send, by direction.
    halves: [Half; 2],
    /// The capture that had the first packet of this flow.
    first_at: Option<PathId>,
    /// The captures that hold packets of this flow which are in others too.
    copies: Vec<PathId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowKind {
    /// Opened with MP_CAPABLE.
    Initial,
    /// Opened with MP_JOIN that named this token.
    Join(Token),
    /// Plain TCP.
    Plain,
    /// Its opening was not captured.
    MidStream,
}

impl Flow {
    pub(crate) fn new(opener: SocketAddr, kind: FlowKind) -> Self {
        Self {
            opener,
            opener_sends: Direction::ClientToServer,
            connection: None,
            subflow: 0,
            kind,
            handshake: Handshake::default(),
            close: Close::Open,
            last_seen: Timestamp::default(),
            life: None,
            recovering: None,
            back: None,
            halves: Default::default(),
            first_at: None,
            copies: Vec::new(),
        }
    }

    /// Whether a segment in this direction, in the capture of `path`, is in that of another path too, at which the flow is
    /// observed. Captures that show different directions of a flow are both needed. Of two that show the same one, the
    /// first that had any packet of the flow is kept to. `continues` tells whether the capture of `path` only begins
    /// where that of another ended.
    pub(crate) fn is_observed_elsewhere(
        &mut self,
        direction: Direction,
        path: PathId,
        continues: impl Fn(PathId) -> bool,
    ) -> bool {
        let first = *self.first_at.get_or_insert(path);
        let is_copy = self.copies.contains(&path);
        let half = self.half(direction);
        let observed_at = match half.observed_at {
            Some(observed_at) => observed_at,
            None if is_copy => return true,
            None => *half.observed_at.insert(path),
        };
        if observed_at == path {
            return false;
        }
        if continues(observed_at) {
            half.observed_at = Some(path);
            self.copies.retain(|copy| *copy != path);
            if first == observed_at {
                self.first_at = Some(path);
            }
            return false;
        }
        if is_copy {
            return true;
        }
        let (kept, copy) = if path == first { (path, observed_at) } else { (observed_at, path) };
        self.copies.push(copy);
        for half in &mut self.halves {
            half.observed_at = half.observed_at.filter(|at| *at != copy);
        }
        self.half(direction).observed_at = Some(kept);
        path == copy
    }

    /// Whether the opener's SYN had this number. Where that is unknown, it was sent before the captures began.
    pub(crate) fn opened_by(&self, isn: Seq) -> bool {
        self.halves[self.opener_sends as usize].isn == Some(isn)
    }

    /// The direction in which `source` sends.
    pub(crate) fn direction(&self, source: SocketAddr) -> Direction {
        if source == self.opener { self.opener_sends } else { self.opener_sends.reverse() }
    }

    /// The direction in which the opener sends: to the server, unless the server opened a further subflow.
    pub(crate) fn opener_sends(&self) -> Direction {
        self.opener_sends
    }

    /// Sets [`opener_sends`](Self::opener_sends), which a join tells.
    pub(crate) fn turn_to(&mut self, opener_sends: Direction) {
        if opener_sends != self.opener_sends {
            self.opener_sends = opener_sends;
            self.halves.swap(0, 1);
        }
    }

    /// What is sent in a direction.
    #[inline]
    pub(crate) fn half(&mut self, direction: Direction) -> &mut Half {
        &mut self.halves[direction as usize]
    }

    /// The receive window that a segment announces, in bytes, where both sides' SYNs were seen: the scale counts only
    /// if both offered one, and in a SYN not at all (RFC 7323 2.2).
    pub(crate) fn window(&self, segment: &Segment<'_>, direction: Direction) -> Option<u64> {
        let flags = segment.tcp.flags();
        if flags.contains(Flags::RST) {
            return None;
        }
        let [own, other] = [direction, direction.reverse()].map(|way| self.halves[way as usize].window_shift);
        let shift = match (own?, other) {
            _ if flags.contains(Flags::SYN) => 0,
            (_, None) => return None,
            (Some(own), Some(Some(_))) => own,
            (_, Some(_)) => 0,
        };
        Some(u64::from(segment.tcp.window()) << shift)
    }
}

/// The times of a flow's opening.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handshake {
    syn: Option<Timestamp>,
    answered: bool,
    repeated: bool,
    rtt: Option<Duration>,
}

impl Handshake {
    /// A segment of the flow.
    pub(crate) fn saw(&mut self, flags: Flags, from_opener: bool, time: Timestamp) {
        match (flags.contains(Flags::SYN), from_opener) {
            (true, true) => {
                self.repeated |= self.syn.is_some();
                self.syn.get_or_insert(time);
            }
            (true, false) => {
                self.repeated |= self.answered;
                self.answered = true;
            }
            (false, true) if self.answered && self.rtt.is_none() && flags.contains(Flags::ACK) => {
                self.rtt = self.syn.and_then(|syn| time.since(syn));
            }
            (false, _) => {}
        }
    }

    /// Whether the opener got an answer, or a segment without SYN was seen.
    pub(crate) fn answered(&self) -> bool {
        self.answered || self.syn.is_none()
    }

    /// From the SYN to the acknowledgement of its answer, where neither was repeated.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.rtt.filter(|_| !self.repeated)
    }
}

/// One direction of a flow. Places in it count from the SYN, so that the first byte is at 1, as relative subflow
/// sequence numbers do.
#[derive(Debug, Default)]
pub(crate) struct Half {
    isn: Option<Seq>,
    places: Unwrap,
    observed_at: Option<PathId>,
    /// What this side sent.
    pub(crate) sender: Sender,
    pub(crate) silence: Silence,
    pub(crate) interval: Current,
    pub(crate) checksum: Verifier,
    /// By how many bits this side shifts the windows that it announces.
    /// `Some(None)` where its SYN offered none.
    pub(crate) window_shift: Option<Option<u8>>,
    /// What this side contributes to the HMACs of a join.
    pub(crate) nonce: Option<Nonce>,
    mappings: VecDeque<Mapped>,
    mapped_ever: bool,
}

/// Places from `start` on belong at positions of the stream from `position` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) start: i64,
    /// Behind the last; `i64::MAX` without end.
    pub(crate) end: i64,
    pub(crate) position: u64,
}

/// How many mappings of a half are kept: segments carry their own, so only a segment without, or one that a network
/// card made longer than its mapping, needs an older one.
const MAPPINGS_KEPT: usize = 256;

impl Half {
    pub(crate) fn isn(&self) -> Option<Seq> {
        self.isn
    }

    pub(crate) fn learn_isn(&mut self, isn: Seq) {
        self.isn.get_or_insert(isn);
    }

    /// The place of a sequence number, where the SYN's is known.
    pub(crate) fn place(&mut self, seq: Seq) -> Option<i64> {
        let isn = self.isn?;
        Some(self.places.advance(seq.since(isn)))
    }

    /// The place of a relative subflow sequence number.
    pub(crate) fn place_of(&self, relative: u32) -> i64 {
        self.places.near(relative)
    }

    pub(crate) fn map(&mut self, mapped: Mapped) {
        self.mapped_ever = true;
        if self.mappings.back() == Some(&mapped) {
            return;
        }
        if self.mappings.len() == MAPPINGS_KEPT {
            self.mappings.pop_front();
        }
        self.mappings.push_back(mapped);
    }

    /// Whether a mapping is the last that was taken note of.
    pub(crate) fn is_mapped(&self, mapped: &Mapped) -> bool {
        self.mappings.back() == Some(mapped)
    }

    pub(crate) fn mapped_ever(&self) -> bool {
        self.mapped_ever
    }

    /// The part of `from..to` that starts at `from` and is alike: mapped by one mapping, the newest that holds it, or
    /// by none. Gives its end, and the position of `from`.
    pub(crate) fn next_part(&self, from: i64, to: i64) -> (i64, Option<u64>) {
        let newest = self.mappings.iter().rev();
        for (index, mapped) in newest.clone().enumerate() {
            if mapped.start <= from && from < mapped.end {
                // A newer mapping that starts within the part takes over there.
                let newer = newest.clone().take(index).map(|newer| newer.start);
                let end = newer.filter(|start| *start > from).fold(mapped.end.min(to), i64::min);
                return (end, Some(mapped.position.wrapping_add_signed(from - mapped.start)));
            }
        }
        let end = newest.map(|mapped| mapped.start).filter(|start| *start > from).fold(to, i64::min);
        (end, None)
    }
}

/// The options of a segment that tell something, each the last of its kind.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) capable: Option<Capable>,
    pub(crate) join: Option<Join>,
    pub(crate) dss: Option<Dss>,
    pub(crate) stamps: Option<Stamps>,
    pub(crate) events: Vec<EventKind>,
    pub(crate) announced: Option<AddAddress>,
    pub(crate) window_shift: Option<u8>,
    /// Options are missing because the capture cut the header.
    pub(crate) cut: bool,
}

impl Signals {
    pub(crate) fn of(packet: &tcp::Packet<'_>) -> Self {
        let mut signals = Self::default();
        for option in packet.options() {
            match option {
                Ok(TcpOption::Mptcp(MptcpOption::Capable(capable))) => signals.capable = Some(capable),
                Ok(TcpOption::Mptcp(MptcpOption::Join(join))) => signals.join = Some(join),
                Ok(TcpOption::Mptcp(MptcpOption::Dss(dss))) => signals.dss = Some(dss),
                Ok(TcpOption::Mptcp(other)) => {
                    if let MptcpOption::AddAddress(add) = other {
                        signals.announced = Some(add);
                    }
                    signals.events.extend(EventKind::of(&other));
                }
                // RFC 7323 2.3: a greater shift counts as 14.
                Ok(TcpOption::WindowScale(shift)) => signals.window_shift = Some(shift.min(14)),
                Ok(TcpOption::Timestamps { value, echo }) => signals.stamps = Some((value, echo)),
                Ok(_) => {}
                Err(ParseError::Truncated { .. }) => signals.cut = true,
                Err(_) => {}
            }
        }
        signals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Against an array in which each mapping overwrites what it covers.
        #[test]
        fn the_newest_mapping_holds(
            mappings in vec((0..60i64, 0..30i64, 0..1000u64), 0..8),
            from in 0..60i64,
            len in 1..40i64,
        ) {
            let (mut half, mut array) = (Half::default(), [None; 200]);
            for (start, len, position) in mappings {
                half.map(Mapped { start, end: start + len, position });
                for offset in 0..len {
                    array[(start + offset) as usize] = Some(position + offset as u64);
                }
            }
            let (mut at, to) = (from, from + len);
            while at < to {
                let (end, position) = half.next_part(at, to);
                prop_assert!(at < end && end <= to);
                for place in at..end {
                    let expected = position.map(|position| position + (place - at) as u64);
                    prop_assert_eq!(array[place as usize], expected);
                }
                at = end;
            }
        }
    }
}
