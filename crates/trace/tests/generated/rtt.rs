//! Round-trip times and jitter, by the place of the capture: only what the path takes counts.

use std::collections::VecDeque;
use std::time::Duration;

use plait_trace::{Connections, Direction, RttSource, Subflow};
use plait_wire::tcp::{Flags, TcpOption};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::captures::{CaptureBuilder, MILLISECOND, Packet, handshake, read};

const CLIENT: usize = 0;
const SERVER: usize = 1;
const MIDDLE: usize = 2;

const ONE_WAY: u64 = 10 * MILLISECOND;
/// How long a host takes to answer.
const ANSWER: u64 = MILLISECOND / 30;
const LENGTH: u32 = 1000;

/// A download over one path, captured at both ends and in the middle.
#[derive(Default)]
struct Download {
    builder: CaptureBuilder,
}

impl Download {
    fn new() -> Self {
        let mut download = Self::default();
        let [syn, syn_ack, ack] = handshake(0);
        let answered = 2 * ONE_WAY + ANSWER;
        download.send(0, syn);
        download.send(ONE_WAY + ANSWER, syn_ack);
        download.send(answered + ANSWER, ack);
        download
    }

    /// Sends a packet at a time, and returns when it arrives.
    fn send(&mut self, time: u64, packet: Packet<'_>) -> u64 {
        let value = (time / MILLISECOND) as u32;
        let echo = if packet.ack.is_some() { (time.saturating_sub(ONE_WAY) / MILLISECOND) as u32 } else { 0 };
        self.send_with(time, packet.option(TcpOption::Timestamps { value, echo }))
    }

    fn send_with(&mut self, time: u64, packet: Packet<'_>) -> u64 {
        let [from, to] = if packet.side == 0 { [CLIENT, SERVER] } else { [SERVER, CLIENT] };
        self.builder.at(from, time, &packet);
        self.builder.at(MIDDLE, time + ONE_WAY / 2, &packet);
        self.builder.at(to, time + ONE_WAY, &packet);
        time + ONE_WAY
    }

    /// The subflow, as seen by one capture.
    fn seen_at(&self, capture: usize) -> Subflow {
        subflow(&read(&self.builder.files()[capture..=capture]))
    }
}

fn subflow(found: &Connections) -> Subflow {
    assert_eq!(found.connections.len(), 1);
    found.connections[0].subflows[0].clone()
}

/// Data that the window holds back: each acknowledgement lets the server send the next segment.
fn bulk() -> Download {
    let mut download = Download::new();
    let start = 3 * ONE_WAY;
    // When a segment may be sent, and the client's timestamp that allowed it.
    let mut allowed: VecDeque<(u64, u32)> = (0..20).map(|number| (start + number * 50_000, 20)).collect();
    for number in 0..1000u32 {
        let Some((time, echo)) = allowed.pop_front() else { break };
        let value = (time / MILLISECOND) as u32;
        // The application writes four segments at a time.
        let flags = if number % 4 == 3 { Flags::ACK | Flags::PSH } else { Flags::ACK };
        let seq = 1 + number * LENGTH;
        let data = Packet::new(0, 1, seq, 1).flags(flags).data(&[b'x'; LENGTH as usize]);
        let arrived = download.send_with(time, data.option(TcpOption::Timestamps { value, echo }));
        let acked = arrived + ANSWER;
        let stamp = (acked / MILLISECOND) as u32;
        let ack =
            Packet::new(0, 0, 1, seq + LENGTH).option(TcpOption::Timestamps { value: stamp, echo: value });
        allowed.push_back((download.send_with(acked, ack) + ANSWER, stamp));
    }
    download
}

fn milliseconds(time: Option<Duration>) -> f64 {
    time.expect("samples").as_secs_f64() * 1e3
}

#[test]
fn rtt_is_that_of_the_path_at_either_end() {
    let download = bulk();
    for (capture, source) in [(SERVER, RttSource::Acks), (CLIENT, RttSource::Timestamps)] {
        let seen = download.seen_at(capture);
        let rtt = seen.rtt(Direction::ServerToClient).expect("is shown at an end");
        assert_eq!(rtt.source, source);
        assert!(rtt.times.count() > 20, "{}", rtt.times.count());
        for time in [rtt.times.min(), rtt.times.mean(), rtt.times.quantile(0.95)] {
            assert!((20.0..20.4).contains(&milliseconds(time)), "{source:?}: {time:?}");
        }
    }
    let at_client = download.seen_at(CLIENT);
    assert!(milliseconds(at_client.sent(Direction::ServerToClient).ack_rtt.max()) < 0.1);
}

#[test]
fn no_rtt_is_shown_between_the_ends_or_without_a_handshake_and_timestamps() {
    let download = bulk();
    let seen = download.seen_at(MIDDLE);
    assert_eq!(seen.rtt(Direction::ServerToClient), None);
    assert!((10.0..10.2).contains(&milliseconds(seen.sent(Direction::ServerToClient).ack_rtt.mean())));

    // One segment, acknowledged at once: at the receiver, or on a short path.
    let mut builder = CaptureBuilder::default();
    builder.at(0, 0, &Packet::new(0, 1, 1, 1).data(&[0; 100]));
    builder.at(0, 35_000, &Packet::new(0, 0, 1, 101));
    let seen = subflow(&read(&builder.files()));
    assert_eq!(seen.sent(Direction::ClientToServer).ack_rtt.count(), 1);
    assert_eq!((seen.rtt(Direction::ClientToServer), seen.rtt(Direction::ServerToClient)), (None, None));
}

#[test]
fn waiting_for_the_application_is_not_part_of_the_rtt() {
    let mut download = Download::new();
    for number in 0..40u64 {
        let time = 3 * ONE_WAY + number * 400 * MILLISECOND;
        let seq = 1 + number as u32 * LENGTH;
        let data = Packet::new(0, 1, seq, 1).flags(Flags::ACK | Flags::PSH).data(&[0; LENGTH as usize]);
        let acked = (time + ONE_WAY + ANSWER).saturating_sub(400 * MILLISECOND);
        let echo = (acked / MILLISECOND) as u32;
        let value = (time / MILLISECOND) as u32;
        let arrived = download.send_with(time, data.option(TcpOption::Timestamps { value, echo }));
        download.send(arrived + ANSWER, Packet::new(0, 0, 1, seq + LENGTH));
    }
    assert_eq!(download.seen_at(CLIENT).rtt(Direction::ServerToClient), None);
    let at_server = download.seen_at(SERVER);
    let rtt = at_server.rtt(Direction::ServerToClient).expect("acknowledgements measure it");
    assert!((20.0..20.2).contains(&milliseconds(rtt.times.mean())));
}

/// A periodic flow whose packets take `delays`, in microseconds, and arrive in order. Returns the arrivals, and when they
/// were sent, in seconds.
fn periodic(builder: &mut CaptureBuilder, capture: usize, delays: &[u64], period_ms: u64) -> Vec<(f64, f64)> {
    let mut times = Vec::new();
    let mut last = 0;
    for (number, delay) in (0u64..).zip(delays) {
        let sent = 1000 * MILLISECOND + number * period_ms * MILLISECOND;
        let arrived = (sent + delay * 1000).max(last);
        last = arrived;
        let stamp = TcpOption::Timestamps { value: (sent / MILLISECOND) as u32, echo: 0 };
        builder.at(
            capture,
            arrived,
            &Packet::new(0, 0, 1 + 160 * number as u32, 1).data(&[0; 160]).option(stamp),
        );
        times.push((sent as f64 / 1e9, arrived as f64 / 1e9));
    }
    times
}

/// RFC 3550 A.8 on lists, in milliseconds.
fn rfc3550(times: &[(f64, f64)]) -> Vec<f64> {
    let mut jitter = 0.0;
    let step = |pair: &[(f64, f64)]| {
        let transit = |(sent, arrived): (f64, f64)| arrived - sent;
        jitter += ((transit(pair[1]) - transit(pair[0])).abs() - jitter) / 16.0;
        jitter * 1e3
    };
    times.windows(2).map(step).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Equals the definition on lists, also when another capture, at the sender, has the same packets.
    #[test]
    fn jitter_equals_its_definition(
        delays in vec(2_000..60_000u64, 30..200), period in 5..50u64, captured_at_sender: bool,
    ) {
        let mut builder = CaptureBuilder::default();
        let times = periodic(&mut builder, 0, &delays, period);
        if captured_at_sender {
            periodic(&mut builder, 1, &vec![0; delays.len()], period);
        }
        let found = subflow(&read(&builder.files()));
        let arrivals = found.sent(Direction::ClientToServer).arrivals.as_ref().expect("many packets");
        let jitter = arrivals.jitter.expect("timestamps in milliseconds");
        let expected = rfc3550(&times);
        let close = |found: Duration, expected: f64| (found.as_secs_f64() * 1e3 - expected).abs() < 1e-3;
        prop_assert_eq!(jitter.samples() as usize, expected.len());
        prop_assert!(close(jitter.last(), expected[expected.len() - 1]));
        prop_assert!(close(jitter.max(), expected.iter().copied().fold(0.0, f64::max)));
        prop_assert!(close(jitter.mean(), expected.iter().sum::<f64>() / expected.len() as f64));
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1].1 - pair[0].1) * 1e3).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        prop_assert!(close(arrivals.interarrival.stddev().expect("samples"), variance.sqrt()));
    }
}

#[test]
fn a_capture_at_the_sender_shows_no_jitter() {
    let download = bulk();
    assert_eq!(download.seen_at(SERVER).sent(Direction::ServerToClient).arrivals, None);
    assert!(download.seen_at(CLIENT).sent(Direction::ServerToClient).arrivals.is_some());
    let both = subflow(&read(&download.builder.files()[CLIENT..=SERVER]));
    let arrivals = both.sent(Direction::ServerToClient).arrivals.clone().expect("the client's capture");
    assert_eq!(Some(arrivals), download.seen_at(CLIENT).sent(Direction::ServerToClient).arrivals);
}
