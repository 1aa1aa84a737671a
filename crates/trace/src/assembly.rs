mod data;
mod live;
mod opening;
mod signals;
mod silences;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use plait_wire::Segment;
use plait_wire::capture::Timestamp;
use plait_wire::tcp::Flags;

use crate::flow::{Flow, Half, Signals};
use crate::{PathId, ReadOptions, Window};
use live::State;

pub(crate) use live::Found;

/// Builds connections from segments in the order of time. What is known for good is handed out by
/// [`found`](Assembly::found) and forgotten.
pub(crate) struct Assembly {
    /// Boxed, because the map has room for twice as many as there are.
    flows: HashMap<(SocketAddr, SocketAddr), Box<Flow>, foldhash::quality::RandomState>,
    state: State,
    /// The most flows that may be alive at once.
    live_limit: usize,
    segments: u64,
}

/// Where and when a segment was captured.
#[derive(Clone, Copy)]
struct Seen {
    path: PathId,
    time: Timestamp,
}

/// What was counted besides connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside {
    pub(crate) unmapped: u64,
    pub(crate) payload_dropped: u64,
    pub(crate) unanswered_joins: u64,
    pub(crate) other_side: u64,
}

/// After so many segments it is looked for flows that are over.
const SEGMENTS_BETWEEN_SWEEPS: u64 = 1 << 16;

/// How long a closed flow is kept, for retransmissions: two maximum segment lifetimes as Linux has them.
const LINGER: Duration = Duration::from_secs(60);

/// How long a SYN without answer is kept: Linux gives up after 127 s.
const OPENING: Duration = Duration::from_secs(130);

impl Assembly {
    pub(crate) fn new(captures: usize, options: ReadOptions) -> Self {
        let live_limit = options.live_limit.max(1);
        Self { flows: HashMap::default(), state: State::new(captures, options), live_limit, segments: 0 }
    }

    /// A segment that crossed a path.
    pub(crate) fn segment(&mut self, path: PathId, time: Timestamp, segment: &Segment<'_>) {
        self.segments += 1;
        if self.segments.is_multiple_of(SEGMENTS_BETWEEN_SWEEPS) {
            self.sweep();
        }
        let (source, destination) = (segment.source, segment.destination);
        let key = if source <= destination { (source, destination) } else { (destination, source) };
        let mut signals = Signals::of(&segment.tcp);
        let seen = Seen { path, time };
        if self.flows.len() >= self.live_limit && !self.flows.contains_key(&key) {
            self.evict();
        }
        let state = &mut self.state;
        state.saw(seen);
        let flow: &mut Flow = match self.flows.entry(key) {
            Entry::Vacant(entry) => entry.insert(state.open(segment, &signals, seen)),
            Entry::Occupied(entry) => {
                let flow = entry.into_mut();
                if reopens(flow, segment) {
                    let new = state.open(segment, &signals, seen);
                    state.retire(*mem::replace(flow, new), false);
                }
                flow
            }
        };
        if state.is_observed_elsewhere(flow, source, path) {
            state.crossed_again(flow, segment, &signals, path);
        } else {
            state.segment(flow, segment, &mut signals, seen);
        }
    }

    /// A packet that is not TCP: a sign of life of a path.
    pub(crate) fn other_packet(
        &mut self,
        path: PathId,
        time: Timestamp,
        source: IpAddr,
        destination: IpAddr,
    ) {
        self.state.saw(Seen { path, time });
        if let Some(life) = self.state.life(path, source, destination) {
            self.state.lives.heard(life, source, destination, time);
        }
    }

    /// The next thing that is known for good, in order.
    pub(crate) fn found(&mut self) -> Option<Found> {
        self.state.found.pop_front()
    }

    /// A capture is at its end.
    pub(crate) fn ended(&mut self, path: PathId) {
        self.state.ended(path);
    }

    /// All captures are at their ends. What was not handed out yet can be fetched now.
    pub(crate) fn finish(&mut self) -> Beside {
        self.retire(|_| true, false);
        self.state.end_all();
        self.state.beside
    }

    /// Retires the flows that are over.
    fn sweep(&mut self) {
        let now = self.state.now;
        let over = |flow: &Flow| {
            let quiet = now.since(flow.last_seen).unwrap_or_default();
            quiet >= LINGER && flow.close.is_final() || quiet >= OPENING && !flow.handshake.answered()
        };
        self.retire(over, false);
    }

    /// Makes room by giving up the quarter of the flows that were quiet for longest, those that were never answered
    /// first.
    fn evict(&mut self) {
        self.sweep();
        if self.flows.len() < self.live_limit {
            return;
        }
        let rank = |flow: &Flow| (flow.handshake.answered(), flow.last_seen);
        let mut ranks: Vec<_> = self.flows.values().map(|flow| rank(flow)).collect();
        let middle = ranks.len() / 4;
        let (_, limit, _) = ranks.select_nth_unstable(middle);
        let limit = *limit;
        self.retire(|flow| rank(flow) <= limit, true);
    }

    fn retire(&mut self, over: impl Fn(&Flow) -> bool, evicted: bool) {
        let mut retired: Vec<Box<Flow>> =
            self.flows.extract_if(|_, flow| over(flow)).map(|(_, flow)| flow).collect();
        // So that what is handed out does not depend on hashes.
        retired.sort_by_key(|flow| self.state.rank(flow));
        retired.into_iter().for_each(|flow| self.state.retire(*flow, evicted));
    }
}

impl State {
    /// A segment of a flow, where the flow is observed.
    fn segment(&mut self, flow: &mut Flow, segment: &Segment<'_>, signals: &mut Signals, seen: Seen) {
        let Seen { time, .. } = seen;
        let (source, destination) = (segment.source, segment.destination);
        let flags = segment.tcp.flags();
        if let Some(life) = flow.life {
            self.lives.heard(life, source.ip(), destination.ip(), time);
        }
        if flags.contains(Flags::SYN) {
            let direction = flow.direction(source);
            let half = flow.half(direction);
            half.learn_isn(segment.tcp.seq());
            half.window_shift = Some(signals.window_shift);
            if flags.contains(Flags::ACK) {
                flow.half(direction.reverse()).learn_isn(segment.tcp.ack().advance(u32::MAX));
                self.accepted(flow, segment, signals, time);
            }
        }
        let carries = carries(segment);
        let direction = flow.direction(source);
        flow.last_seen = flow.last_seen.max(time);
        flow.handshake.saw(flags, direction == flow.opener_sends(), time);
        flow.close = flow.close.after(direction, flags.contains(Flags::FIN), flags.contains(Flags::RST));
        let acknowledged = match flags.contains(Flags::ACK) {
            true => {
                flow.half(direction.reverse()).sender.acknowledged(segment.tcp.ack(), signals.stamps, time)
            }
            false => Default::default(),
        };
        let window = flow.window(segment, direction);
        let connection = flow.connection;
        let Half { sender, interval, .. } = flow.half(direction);
        let again = sender.sent(segment, carries, signals.stamps, time);
        if let Some(window) = window {
            sender.tally.window = Some(Window::after(sender.tally.window, window));
        }
        let Some(index) = connection else {
            self.beside.unmapped += carries;
            sender.tally.unmapped += carries;
            if let Some(length) = self.interval {
                let counts = interval.begun(length, time);
                counts.packets += 1;
                counts.bytes += carries;
                counts.retransmitted += again;
            }
            return;
        };
        if let Some(length) = self.interval {
            let counts = self.counts(flow, index, direction, length, time);
            counts.packets += 1;
            counts.bytes += carries;
            counts.retransmitted += again;
            counts.window = window.or(counts.window);
            if let Some(sample) = acknowledged.round_trip {
                self.counts(flow, index, direction.reverse(), length, time).round_trip(sample);
            }
        }
        self.signals(index, flow, direction, signals, time);
        let novelty = self.data(index, flow, direction, segment, signals, seen);
        self.listen(index, flow, segment, acknowledged, novelty, time);
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
