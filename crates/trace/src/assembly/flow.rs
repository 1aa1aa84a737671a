//! The state of a TCP connection while captures are being read.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use plait_wire::capture::Timestamp;
use plait_wire::mptcp::{AddAddress, Capable, Dss, Join, MptcpOption, Nonce, Token};
use plait_wire::tcp::{Flags, Seq, TcpOption};
use plait_wire::{ParseError, Segment, tcp};

use super::arrival_meters::{ArrivalMeters, CaptureOfFlow};
use super::checksum::ChecksumVerifier;
use super::interval_counter::IntervalCounter;
use super::mappings::Mappings;
use super::sender::{EchoedTimestamps, Sender};
use super::seq_unwrap::SeqUnwrapper;
use crate::arrivals::Jitter;
use crate::connection::Close;
use crate::direction::Direction;
use crate::event::EventKind;
use crate::failover::Failover;
use crate::failover::liveness::LivenessId;
use crate::failover::silence::ResponseState;
use crate::path::PathId;
use crate::vantage::{Vantage, reach};

/// A TCP connection while captures are being read.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) opener: SocketAddr,
    /// The direction of the connection in which the opener sends.
    opener_direction: Direction,
    /// The index of its connection; `None` for a join that has not been accepted.
    pub(crate) connection: Option<usize>,
    /// The index among the connection's subflows.
    pub(crate) subflow: usize,
    pub(crate) kind: FlowKind,
    pub(crate) handshake: Handshake,
    pub(crate) close: Close,
    pub(crate) last_seen: Timestamp,
    pub(crate) liveness: Option<LivenessId>,
    /// A silence that is over, before data crosses the path again.
    pub(crate) recovering: Option<Box<Failover>>,
    /// A span without packets, after which only repeated data has arrived.
    pub(crate) back: Option<Range<Timestamp>>,
    /// By direction.
    sides: [FlowSide; 2],
    /// The capture with the first packet of this flow.
    first_at: Option<PathId>,
    /// The captures whose packets of this flow are copies.
    copies: Vec<PathId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowKind {
    /// Opened with MP_CAPABLE.
    Initial,
    /// Opened with MP_JOIN and this token.
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
            opener_direction: Direction::ClientToServer,
            connection: None,
            subflow: 0,
            kind,
            handshake: Handshake::default(),
            close: Close::Open,
            last_seen: Timestamp::default(),
            liveness: None,
            recovering: None,
            back: None,
            sides: Default::default(),
            first_at: None,
            copies: Vec::new(),
        }
    }

    /// Whether this direction is observed in another capture than that of `path`. Captures of different directions of a flow
    /// are both needed; of two captures of the same direction, the one with the flow's first packet is used. `continues`
    /// returns whether the capture of `path` begins where that of another path ended.
    pub(crate) fn is_observed_elsewhere(
        &mut self,
        direction: Direction,
        path: PathId,
        continues: impl Fn(PathId) -> bool,
    ) -> bool {
        let first = *self.first_at.get_or_insert(path);
        let is_copy = self.copies.contains(&path);
        let side = self.side(direction);
        let observed_at = match side.observed_at {
            Some(observed_at) => observed_at,
            None if is_copy => return true,
            None => *side.observed_at.insert(path),
        };
        if observed_at == path {
            return false;
        }
        if continues(observed_at) {
            side.observed_at = Some(path);
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
        for side in &mut self.sides {
            side.observed_at = side.observed_at.filter(|at| *at != copy);
        }
        self.side(direction).observed_at = Some(kept);
        path == copy
    }

    /// Whether the opener's SYN had this sequence number.
    pub(crate) fn opened_by(&self, isn: Seq) -> bool {
        self.sides[self.opener_direction as usize].isn == Some(isn)
    }

    /// The direction in which `source` sends.
    pub(crate) fn direction(&self, source: SocketAddr) -> Direction {
        if source == self.opener { self.opener_direction } else { self.opener_direction.reverse() }
    }

    /// The direction in which the opener sends: to the server, unless the server opened an additional subflow.
    pub(crate) fn opener_direction(&self) -> Direction {
        self.opener_direction
    }

    /// Sets [`opener_direction`](Self::opener_direction), known from the token of a join.
    pub(crate) fn set_opener_direction(&mut self, opener_direction: Direction) {
        if opener_direction != self.opener_direction {
            self.opener_direction = opener_direction;
            self.sides.swap(0, 1);
        }
    }

    /// The side that sends in a direction.
    #[inline]
    pub(crate) fn side(&mut self, direction: Direction) -> &mut FlowSide {
        &mut self.sides[direction as usize]
    }

    /// Where a direction of this flow was captured, as far as that is known by now.
    pub(crate) fn vantage(&self, direction: Direction) -> Option<Vantage> {
        Vantage::of(self.reach(direction.reverse()), self.reach(direction))
    }

    /// The shortest round trip between the capture and the receiver in a direction.
    fn reach(&self, direction: Direction) -> Option<Duration> {
        let [there, back] =
            [direction, direction.reverse()].map(|way| &self.sides[way as usize].sender.stats);
        reach(self.handshake_reach(direction), there, back)
    }

    /// The round trip between the capture and the receiver in a direction, by the three-way handshake.
    pub(crate) fn handshake_reach(&self, direction: Direction) -> Option<Duration> {
        let (to_acceptor, to_opener) = self.handshake.parts();
        if direction == self.opener_direction { to_acceptor } else { to_opener }
    }

    /// The receive window that a segment announces, in bytes, if both SYNs were captured: the scale applies only if both
    /// sides offered one, and never to a SYN (RFC 7323 2.2).
    pub(crate) fn window(&self, segment: &Segment<'_>, direction: Direction) -> Option<u64> {
        let flags = segment.tcp.flags();
        if flags.contains(Flags::RST) {
            return None;
        }
        let [own, other] = [direction, direction.reverse()].map(|way| self.sides[way as usize].window_shift);
        let shift = match (own?, other) {
            _ if flags.contains(Flags::SYN) => 0,
            (_, None) => return None,
            (Some(own), Some(Some(_))) => own,
            (_, Some(_)) => 0,
        };
        Some(u64::from(segment.tcp.window()) << shift)
    }
}

/// The three-way handshake of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handshake {
    syn: Option<Timestamp>,
    answered: Option<Timestamp>,
    completed: Option<Timestamp>,
    repeated: bool,
}

impl Handshake {
    /// Processes a segment of the flow.
    pub(crate) fn observe(&mut self, flags: Flags, from_opener: bool, time: Timestamp) {
        match (flags.contains(Flags::SYN), from_opener) {
            (true, true) => {
                self.repeated |= self.syn.is_some();
                self.syn.get_or_insert(time);
            }
            (true, false) => {
                self.repeated |= self.answered.is_some();
                self.answered.get_or_insert(time);
            }
            (false, true) if self.answered.is_some() && flags.contains(Flags::ACK) => {
                self.completed.get_or_insert(time);
            }
            (false, _) => {}
        }
    }

    /// Whether the SYN was answered or not captured.
    pub(crate) fn answered(&self) -> bool {
        self.answered.is_some() || self.syn.is_none()
    }

    /// From the SYN to the acknowledgement of the SYN/ACK, if neither was retransmitted.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.between(self.syn, self.completed)
    }

    /// The round trip between the capture and the acceptor, and between the capture and the opener, likewise.
    pub(crate) fn parts(&self) -> (Option<Duration>, Option<Duration>) {
        (self.between(self.syn, self.answered), self.between(self.answered, self.completed))
    }

    fn between(&self, from: Option<Timestamp>, to: Option<Timestamp>) -> Option<Duration> {
        to?.since(from?).filter(|_| !self.repeated)
    }
}

/// One direction of a flow. Offsets are relative to the SYN like subflow sequence numbers: the first byte is at 1.
#[derive(Debug, Default)]
pub(crate) struct FlowSide {
    isn: Option<Seq>,
    offsets: SeqUnwrapper,
    observed_at: Option<PathId>,
    /// What this side sent.
    pub(crate) sender: Sender,
    pub(crate) responses: ResponseState,
    pub(crate) interval: IntervalCounter,
    pub(crate) arrivals: ArrivalMeters,
    pub(crate) checksum: ChecksumVerifier,
    /// The window scale in this side's SYN; `Some(None)` if it offered none.
    pub(crate) window_shift: Option<Option<u8>>,
    /// This side's nonce in a join.
    pub(crate) nonce: Option<Nonce>,
    pub(crate) mappings: Mappings,
}

impl FlowSide {
    pub(crate) fn isn(&self) -> Option<Seq> {
        self.isn
    }

    pub(crate) fn learn_isn(&mut self, isn: Seq) {
        self.isn.get_or_insert(isn);
    }

    /// Sets the jitter of the current interval, if this capture is the one that measures it.
    pub(crate) fn count_jitter(&mut self, capture: CaptureOfFlow, vantage: Option<Vantage>) {
        if let (Some(meter), Some(counts)) = (self.arrivals.of(capture, vantage), self.interval.counts()) {
            counts.jitter = meter.jitter().map(Jitter::last).or(counts.jitter);
        }
    }

    /// The offset of a sequence number, if that of the SYN is known.
    pub(crate) fn offset(&mut self, seq: Seq) -> Option<i64> {
        let isn = self.isn?;
        Some(self.offsets.advance(seq.since(isn)))
    }

    /// The offset of a relative subflow sequence number.
    pub(crate) fn offset_of(&self, relative: u32) -> i64 {
        self.offsets.near(relative)
    }
}

/// The options of a segment that matter; the last one of each kind.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) capable: Option<Capable>,
    pub(crate) join: Option<Join>,
    pub(crate) dss: Option<Dss>,
    pub(crate) timestamps: Option<EchoedTimestamps>,
    pub(crate) events: Vec<EventKind>,
    pub(crate) announced: Option<AddAddress>,
    pub(crate) window_shift: Option<u8>,
    /// Options are missing because the capture truncated the header.
    pub(crate) cut: bool,
}

impl Signals {
    pub(crate) fn of(packet: &tcp::Packet<'_>) -> Self {
        let mut signals = Self { cut: packet.has_truncated_options(), ..Self::default() };
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
                // RFC 7323 2.3: larger shifts count as 14.
                Ok(TcpOption::WindowScale(shift)) => signals.window_shift = Some(shift.min(14)),
                Ok(TcpOption::Timestamps { value, echo }) => signals.timestamps = Some((value, echo)),
                Ok(_) => {}
                Err(ParseError::Truncated { .. }) => signals.cut = true,
                Err(_) => {}
            }
        }
        signals
    }
}
