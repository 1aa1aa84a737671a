//! What a capture lacks for a verdict: packets or payload that were not captured, or not attacked.
//!
//! "Nothing was recovered" is a result only if everything that crossed was captured and attacked. What is missing is
//! listed in words beside each verdict.

use plait_config::{grouped, pluralize};
use plait_trace::Direction;

use crate::document::{Attack, Conclusion, ConnectionView, PathView};
use crate::headers::{Completeness, Gaps};
use crate::mode::Mode;
use crate::xor64::MIN_RUN;

/// What was read of the capture of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CaptureEvidence {
    pub(crate) completeness: Completeness,
    pub(crate) gaps: Gaps,
    /// Payload bytes whose place in a stream is unknown.
    pub(crate) unmapped_bytes: u64,
    /// Whether the memory limit was reached.
    pub(crate) exceeds_memory: bool,
}

impl CaptureEvidence {
    pub(crate) fn not_captured_bytes(&self) -> u64 {
        let Completeness { wire_bytes, captured_bytes, .. } = self.completeness;
        wire_bytes.saturating_sub(captured_bytes)
    }

    pub(crate) fn not_captured_fraction(&self) -> f64 {
        match self.completeness.wire_bytes {
            0 => 0.0,
            wire => self.not_captured_bytes() as f64 / wire as f64,
        }
    }
}

/// Everything that is missing, in words.
pub(crate) fn missing(view: &PathView, capture: &CaptureEvidence) -> Vec<String> {
    let mut missing = missing_in_capture(view, capture);
    let is_complete = missing.is_empty();
    missing.extend(missing_in_attack(view, is_complete));
    missing.extend(missing_ends(&capture.gaps));
    if missing.is_empty() && view.mode.is_none() && capture.completeness.wire_bytes > 0 {
        missing.push("payload crossed the path, but none of it has a known place in a stream".into());
    }
    missing
}

/// What a path's capture and the attacks on it allow to conclude.
pub(crate) fn conclude(view: &PathView) -> Conclusion {
    match view.mode {
        _ if view.recovered_bytes > 0 => Conclusion::Read,
        _ if !view.missing_evidence.is_empty() => Conclusion::CannotJudge,
        None => Conclusion::NothingCrossed,
        Some(_) => Conclusion::NothingRead,
    }
}

fn missing_in_capture(view: &PathView, capture: &CaptureEvidence) -> Vec<String> {
    let mut missing = Vec::new();
    let Completeness { unreadable_packets, untracked_packets, damaged, .. } = capture.completeness;
    if capture.not_captured_bytes() > 0 {
        missing.push(format!("{} of the payload was not captured", percent(capture.not_captured_fraction())));
    }
    if unreadable_packets > 0 {
        let packets = pluralize(unreadable_packets, "packet");
        missing.push(format!("{packets} could not be read: truncated or invalid headers, or IP fragments"));
    }
    if damaged {
        missing.push("the capture is damaged, and what follows the damage was not read".into());
    }
    if capture.gaps.missing_bytes > 0 {
        let bytes = grouped(capture.gaps.missing_bytes);
        missing
            .push(format!("{bytes} bytes are missing in the capture, by gaps in the TCP sequence numbers"));
    }
    if untracked_packets > 0 {
        let packets = pluralize(untracked_packets, "packet");
        missing.push(format!(
            "{packets} could not be checked for gaps before them: too many connections or gaps"
        ));
    }
    if capture.unmapped_bytes > 0 {
        let bytes = grouped(capture.unmapped_bytes);
        missing.push(format!("{bytes} bytes have no known place in a stream: no DSS mapping was captured"));
    }
    if capture.exceeds_memory {
        missing.push("part of the payload exceeds the memory limit".into());
    }
    let evicted = view.connections.iter().filter(|connection| connection.evicted).count();
    if evicted > 0 {
        let connections = pluralize(evicted, "connection");
        missing.push(format!("{connections} ended early here, because too many were open at once"));
    }
    missing
}

/// Connections of which the capture lacks the beginning, the end or the keys: what else crossed then is unknown.
fn missing_ends(gaps: &Gaps) -> impl Iterator<Item = String> {
    let ends = [
        ("no opening", gaps.unopened),
        ("no end", gaps.unclosed),
        ("only one of the MPTCP keys", gaps.without_keys),
    ];
    let ends = ends.into_iter().filter(|(_, count)| *count > 0);
    ends.map(|(what, count)| format!("{what} was captured of {}", pluralize(count, "TCP connection")))
}

/// Reasons that follow from an incomplete capture are left out.
fn missing_in_attack(view: &PathView, capture_is_complete: bool) -> Vec<String> {
    let mut missing = Vec::new();
    let scrambled = Attacked::on(view, &[Mode::Xor64]);
    if scrambled.attack.skipped.runs > 0 {
        missing.push(skipped(&scrambled.attack));
    }
    let controls = Attacked::on(view, &[Mode::Stream, Mode::Sealed, Mode::Unknown]);
    for attacked in [&scrambled, &controls] {
        let Attack { runs, structured, .. } = attacked.attack;
        if attacked.crossed == 0 || attacked.recovered > 0 {
            continue;
        }
        if runs == 0 && capture_is_complete {
            missing.push(format!("no run was attacked: none has {MIN_RUN} contiguous bytes, or --runs is 0"));
        }
        if structured > 0 {
            let runs = pluralize(structured, "attacked run");
            missing.push(format!("{runs} contain structured data in no language known to the attack"));
        }
    }
    let unknown = view.connections.iter().filter(|connection| {
        connection.mode == Mode::Unknown && recovered(connection) == 0 && crossed(connection) > 0
    });
    let unknown = unknown.count();
    if unknown > 0 && capture_is_complete {
        let connections = pluralize(unknown, "connection");
        missing.push(format!(
            "the bytes of {connections} look random: encrypted, or only compressed, and no captured handshake tells which"
        ));
    }
    missing
}

fn skipped(attack: &Attack) -> String {
    let attacked = match attack.runs {
        1 => "only the longest run was attacked".into(),
        runs => format!("only the longest {} were attacked", pluralize(runs, "run")),
    };
    let (runs, bytes) = (pluralize(attack.skipped.runs, "run"), grouped(attack.skipped.bytes));
    format!("{attacked}; skipped: {runs} with {bytes} bytes")
}

/// The attacks on a path's connections of some modes.
#[derive(Default)]
struct Attacked {
    attack: Attack,
    crossed: u64,
    recovered: u64,
}

impl Attacked {
    fn on(view: &PathView, modes: &[Mode]) -> Self {
        let mut sum = Self::default();
        for connection in view.connections.iter().filter(|connection| modes.contains(&connection.mode)) {
            sum.crossed += crossed(connection);
            sum.recovered += recovered(connection);
            for direction in Direction::BOTH {
                if let Some(attack) = &connection.directions.in_direction(direction).attack {
                    sum.attack.merge(attack);
                }
            }
        }
        sum
    }
}

fn recovered(connection: &ConnectionView) -> u64 {
    let recovered = |direction| connection.directions.in_direction(direction).recovered_bytes;
    Direction::BOTH.into_iter().map(recovered).sum()
}

fn crossed(connection: &ConnectionView) -> u64 {
    let crossed = |direction| connection.directions.in_direction(direction).exposure.bytes;
    Direction::BOTH.into_iter().map(crossed).sum()
}

/// A fraction in percent. Rounding turns a part neither into all nor into nothing.
pub(crate) fn percent(fraction: f64) -> String {
    let percent = (fraction * 1000.0).round() / 10.0;
    match percent {
        100.0 if fraction < 1.0 => "more than 99.9 %".into(),
        0.0 if fraction > 0.0 => "less than 0.1 %".into(),
        _ => format!("{percent} %"),
    }
}
