//! Measures the arrivals of one side's data, at every capture that contains it.

use plait_wire::capture::Timestamp;

use super::sender::EchoedTimestamps;
use crate::arrivals::{Arrivals, Jitter};
use crate::moments::Moments;
use crate::path::PathId;
use crate::vantage::Vantage;

/// The arrivals of one side's data at every capture that contains it.
#[derive(Debug, Default)]
pub(crate) struct ArrivalMeters {
    /// Where the flow is observed.
    observed: Option<ArrivalMeter>,
    /// In captures with copies of what is observed.
    copies: Vec<(PathId, ArrivalMeter)>,
}

/// Which capture of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureOfFlow {
    Observed,
    Copy(PathId),
}

/// Maximum number of captures with copies that are measured: of the other end, and what is between.
const MAX_COPIES: usize = 4;

impl ArrivalMeters {
    /// Adds a packet with data.
    pub(crate) fn add(
        &mut self,
        capture: CaptureOfFlow,
        time: Timestamp,
        timestamps: Option<EchoedTimestamps>,
    ) {
        let meter = match capture {
            CaptureOfFlow::Observed => Some(self.observed.get_or_insert_with(|| ArrivalMeter::new(time))),
            CaptureOfFlow::Copy(path) => self.copy(path, time),
        };
        if let Some(meter) = meter {
            meter.add(time, timestamps.map(|(value, _)| value));
        }
    }

    fn copy(&mut self, path: PathId, time: Timestamp) -> Option<&mut ArrivalMeter> {
        let found = self.copies.iter().position(|(at, _)| *at == path);
        if found.is_none() && self.copies.len() < MAX_COPIES {
            self.copies.push((path, ArrivalMeter::new(time)));
        }
        let index = found.unwrap_or(self.copies.len().saturating_sub(1));
        self.copies.get_mut(index).filter(|(at, _)| *at == path).map(|(_, meter)| meter)
    }

    /// The meter of the capture nearest the receiver, if that is `capture` and not at the sender. `vantage` is where the flow
    /// is observed.
    pub(crate) fn of(&self, capture: CaptureOfFlow, vantage: Option<Vantage>) -> Option<&ArrivalMeter> {
        self.nearest(vantage).filter(|(nearest, _)| *nearest == capture).map(|(_, meter)| meter)
    }

    /// What was measured nearest the receiver.
    pub(crate) fn finish(&self, vantage: Option<Vantage>) -> Option<Arrivals> {
        self.nearest(vantage).and_then(|(_, meter)| meter.arrivals())
    }

    /// The capture at which packets arrive last.
    fn nearest(&self, vantage: Option<Vantage>) -> Option<(CaptureOfFlow, &ArrivalMeter)> {
        let observed = self.observed.as_ref().map(|meter| (CaptureOfFlow::Observed, meter));
        let copies = self.copies.iter().map(|(path, meter)| (CaptureOfFlow::Copy(*path), meter));
        let nearest = copies.chain(observed).max_by_key(|(_, meter)| meter.first)?;
        let at_sender = nearest.0 == CaptureOfFlow::Observed && vantage == Some(Vantage::Sender);
        (!at_sender).then_some(nearest)
    }
}

/// Units of TCP timestamps, in nanoseconds: of Linux by default and most other systems; with microseconds (Linux 6.7 on); of
/// older systems.
const CLOCKS: [u64; 4] = [1_000_000, 1_000, 4_000_000, 10_000_000];

/// Up to this factor, a clock may differ from one of [`CLOCKS`], as far as the first and the last packet tell.
const MAX_CLOCK_ERROR: f64 = 1.5;

/// The arrivals at one capture.
#[derive(Debug)]
pub(crate) struct ArrivalMeter {
    first: Timestamp,
    last: Option<Arrival>,
    /// Ticks of the sender's clock since the first packet.
    ticks: i64,
    interarrival: Moments,
    /// For each of [`CLOCKS`], because it takes many packets to tell which it is.
    jitters: [Jitter; CLOCKS.len()],
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    time: Timestamp,
    /// TSval.
    sent: Option<u32>,
}

impl ArrivalMeter {
    fn new(first: Timestamp) -> Self {
        Self { first, last: None, ticks: 0, interarrival: Moments::default(), jitters: Default::default() }
    }

    fn add(&mut self, time: Timestamp, sent: Option<u32>) {
        let Some(last) = self.last.replace(Arrival { time, sent }) else { return };
        self.interarrival.add(time.0.saturating_sub(last.time.0));
        let (Some(before), Some(sent)) = (last.sent, sent) else { return };
        // As of RTP, the spacing of packets that overtook each other is negative.
        let ticks = i64::from(sent.wrapping_sub(before) as i32);
        self.ticks += ticks;
        let arrived = time.0 as f64 - last.time.0 as f64;
        for (jitter, unit) in self.jitters.iter_mut().zip(CLOCKS) {
            jitter.add(arrived - ticks as f64 * unit as f64);
        }
    }

    /// The RFC 3550 jitter, if the unit of the sender's clock is known by now.
    pub(crate) fn jitter(&self) -> Option<&Jitter> {
        let elapsed = self.last?.time.since(self.first)?.as_nanos() as f64;
        let ratio = |unit: u64| self.ticks as f64 * unit as f64 / elapsed;
        let error = |unit: u64| ratio(unit).max(1.0 / ratio(unit));
        let units = CLOCKS.iter().zip(&self.jitters).filter(|(unit, _)| error(**unit) <= MAX_CLOCK_ERROR);
        units.min_by(|one, two| error(*one.0).total_cmp(&error(*two.0))).map(|(_, jitter)| jitter)
    }

    /// `None` for a single packet.
    pub(crate) fn arrivals(&self) -> Option<Arrivals> {
        (self.interarrival.count() > 0)
            .then(|| Arrivals { interarrival: self.interarrival, jitter: self.jitter().copied() })
    }
}
