//! Builds connections from packets.
//!
//! [`Assembly`] takes segments in order of time, finds the [flow](flow) and the [connection](live) of each, and places its
//! [data](data) in the connection's streams. Results that can no longer change are handed out and forgotten, so that
//! memory holds only what is alive.

mod arrival_meters;
mod checksum;
mod data;
mod echo;
mod flow;
mod interval_counter;
mod live;
mod mappings;
mod observation;
mod opening;
mod sender;
mod seq_unwrap;
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

use crate::direction::Direction;
use crate::options::ReadOptions;
use crate::path::PathId;
use crate::sender_stats::Window;
use crate::vantage::Vantage;
use arrival_meters::CaptureOfFlow;
use flow::{Flow, FlowSide, Signals};
use interval_counter::IntervalLength;
use live::State;
use observation::{Observation, data_length};
use sender::{Acknowledged, Sent};

pub(crate) use observation::{AssemblyTotals, Finished};

/// Assembles segments into connections.
pub(crate) struct Assembly {
    /// Boxed, because the map allocates up to twice as many slots as it has entries.
    flows: HashMap<(SocketAddr, SocketAddr), Box<Flow>, foldhash::quality::RandomState>,
    state: State,
    /// Maximum number of flows that are alive at once.
    live_limit: usize,
    segments: u64,
}

/// Number of segments between two searches for flows that have ended.
const SWEEP_INTERVAL: u64 = 1 << 16;

/// How long a closed flow is kept for late retransmissions: two maximum segment lifetimes on Linux.
const CLOSED_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an unanswered SYN is kept: Linux gives up after 127 s.
const SYN_TIMEOUT: Duration = Duration::from_secs(130);

impl Assembly {
    pub(crate) fn new(captures: usize, options: ReadOptions) -> Self {
        let live_limit = options.live_limit.max(1);
        Self { flows: HashMap::default(), state: State::new(captures, options), live_limit, segments: 0 }
    }

    /// Processes a segment that crossed a path.
    pub(crate) fn segment(&mut self, path: PathId, time: Timestamp, segment: &Segment<'_>) {
        self.segments += 1;
        if self.segments.is_multiple_of(SWEEP_INTERVAL) {
            self.sweep();
        }
        let (source, destination) = (segment.source, segment.destination);
        let key = if source <= destination { (source, destination) } else { (destination, source) };
        let mut signals = Signals::of(&segment.tcp);
        let at = Observation { path, time };
        if self.flows.len() >= self.live_limit && !self.flows.contains_key(&key) {
            self.evict();
        }
        let state = &mut self.state;
        state.observe(at);
        let flow: &mut Flow = match self.flows.entry(key) {
            Entry::Vacant(entry) => entry.insert(state.open(segment, &signals, at)),
            Entry::Occupied(entry) => {
                let flow = entry.into_mut();
                if reopens(flow, segment) {
                    let new = state.open(segment, &signals, at);
                    state.retire(*mem::replace(flow, new), false);
                }
                flow
            }
        };
        if state.is_observed_elsewhere(flow, source, path) {
            state.record_duplicate(flow, segment, &signals, at);
        } else {
            state.segment(flow, segment, &mut signals, at);
        }
    }

    /// Processes a packet other than TCP, which shows that its path is alive.
    pub(crate) fn other_packet(
        &mut self,
        path: PathId,
        time: Timestamp,
        source: IpAddr,
        destination: IpAddr,
    ) {
        self.state.observe(Observation { path, time });
        if let Some(liveness) = self.state.liveness(path, source, destination) {
            self.state.liveness.heard(liveness, source, destination, time);
        }
    }

    /// The next result that can no longer change, in order.
    pub(crate) fn next_finished(&mut self) -> Option<Finished> {
        self.state.finished.pop_front()
    }

    /// Marks the end of a capture.
    pub(crate) fn ended(&mut self, path: PathId) {
        self.state.ended(path);
    }

    /// Marks the end of all captures and finishes everything that is left.
    pub(crate) fn finish(&mut self) -> AssemblyTotals {
        self.retire(|_| true, false);
        self.state.end_all();
        self.state.totals
    }

    /// Retires flows that have ended.
    fn sweep(&mut self) {
        let now = self.state.now;
        let over = |flow: &Flow| {
            let quiet = now.since(flow.last_seen).unwrap_or_default();
            quiet >= CLOSED_TIMEOUT && flow.close.is_final()
                || quiet >= SYN_TIMEOUT && !flow.handshake.answered()
        };
        self.retire(over, false);
    }

    /// Makes room: drops the quarter of the flows that were idle longest, unanswered ones first.
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
        // The order of results must not depend on hashes.
        retired.sort_by_key(|flow| self.state.rank(flow));
        retired.into_iter().for_each(|flow| self.state.retire(*flow, evicted));
    }
}

impl State {
    /// Processes a segment in the capture in which its flow is observed.
    fn segment(&mut self, flow: &mut Flow, segment: &Segment<'_>, signals: &mut Signals, at: Observation) {
        let Observation { time, .. } = at;
        let (source, destination) = (segment.source, segment.destination);
        let flags = segment.tcp.flags();
        if let Some(liveness) = flow.liveness {
            self.liveness.heard(liveness, source.ip(), destination.ip(), time);
        }
        if flags.contains(Flags::SYN) {
            let direction = flow.direction(source);
            let side = flow.side(direction);
            side.learn_isn(segment.tcp.seq());
            side.window_shift = Some(signals.window_shift);
            if flags.contains(Flags::ACK) {
                flow.side(direction.reverse()).learn_isn(segment.tcp.ack().advance(u32::MAX));
                self.accepted(flow, segment, signals, time);
            }
        }
        let length = data_length(segment);
        let direction = flow.direction(source);
        flow.last_seen = flow.last_seen.max(time);
        flow.handshake.observe(flags, direction == flow.opener_direction(), time);
        flow.close = flow.close.after(direction, flags.contains(Flags::FIN), flags.contains(Flags::RST));
        let peer = &mut flow.side(direction.reverse()).sender;
        peer.peer_sent(signals.timestamps, time);
        let acknowledged = match flags.contains(Flags::ACK) {
            true => peer.acknowledged(segment.tcp.ack(), signals.timestamps, time),
            false => Default::default(),
        };
        let window = flow.window(segment, direction);
        let connection = flow.connection;
        let FlowSide { sender, interval, arrivals, .. } = flow.side(direction);
        let Sent { resent, echo_sample } = sender.sent(segment, length, signals.timestamps, time);
        if length > 0 {
            arrivals.add(CaptureOfFlow::Observed, time, signals.timestamps);
        }
        if let Some(window) = window {
            sender.stats.window = Some(Window::after(sender.stats.window, window));
        }
        let Some(index) = connection else {
            self.totals.unmapped += length;
            sender.stats.unmapped += length;
            if let Some(interval_length) = self.interval {
                let counts = interval.provisional(interval_length, time);
                counts.packets += 1;
                counts.bytes += length;
                counts.retransmitted += resent;
            }
            return;
        };
        if let Some(interval_length) = self.interval {
            let counts = self.counts(flow, index, direction, interval_length, time);
            counts.packets += 1;
            counts.bytes += length;
            counts.retransmitted += resent;
            counts.window = window.or(counts.window);
            self.count_times(flow, index, direction, (acknowledged, echo_sample), interval_length, time);
        }
        self.signals(index, flow, direction, signals, time);
        let carried = self.data(index, flow, direction, segment, signals, at);
        self.detect_silence(index, flow, segment, acknowledged, carried, time);
    }

    /// Adds the round trips and the arrival that a segment from the sender in `direction` completes to its interval, where
    /// they measure the path.
    fn count_times(
        &mut self,
        flow: &mut Flow,
        index: usize,
        direction: Direction,
        (acknowledged, echo): (Acknowledged, Option<Duration>),
        interval: IntervalLength,
        time: Timestamp,
    ) {
        let back = direction.reverse();
        if let Some(sample) = acknowledged.rtt_sample
            && flow.vantage(back) == Some(Vantage::Sender)
        {
            self.counts(flow, index, back, interval, time).add_rtt_sample(sample);
        }
        let vantage = flow.vantage(direction);
        if let Some(sample) = echo
            && vantage == Some(Vantage::Receiver)
        {
            self.counts(flow, index, direction, interval, time).add_rtt_sample(sample);
        }
        flow.side(direction).count_jitter(CaptureOfFlow::Observed, vantage);
    }
}

/// Whether a segment opens a new TCP connection between the flow's endpoints.
fn reopens(flow: &Flow, segment: &Segment<'_>) -> bool {
    let flags = segment.tcp.flags();
    flags.contains(Flags::SYN)
        && !flags.contains(Flags::ACK)
        && (segment.source != flow.opener || !flow.opened_by(segment.tcp.seq()))
}
