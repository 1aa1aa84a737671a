//! Builds the views of each path, connection and direction from the outcomes of the attacks.

use std::collections::{HashMap, HashSet};

use plait_trace::document::{Exposure, PerDirection};
use plait_trace::{Direction, PathId, Payload};
use plait_wire::capture::Timestamp;

use crate::document::{Attack, Conclusion, ConnectionView, DirectionView, Excerpt, Packets, PathView};
use crate::evidence::{CaptureEvidence, conclude, missing};
use crate::ground_truth::{GroundTruth, Score};
use crate::headers::{Headers, Traffic};
use crate::identifiers::{self, Identifier, Protocol};
use crate::mode::Mode;
use crate::plan::{Outcome, StreamIndex};
use crate::recovery::Recovery;
use crate::target::{Observation, Target, stream_prefix};
use crate::verdict::verdict;
use crate::xor64::Method;

/// The length of an excerpt in bytes.
const EXCERPT_LEN: usize = 240;

/// Builds the views of all paths.
pub(crate) fn build(
    names: &[&str],
    paths: &[PathId],
    targets: &[Target<'_>],
    headers: &[Headers],
    mut outcomes: HashMap<StreamIndex, Outcome>,
    payload_dropped: bool,
    truth: Option<&GroundTruth<'_>>,
) -> Vec<PathView> {
    let mut summaries: Vec<PathSummary> = paths.iter().map(|_| PathSummary::default()).collect();
    for (number, target) in targets.iter().enumerate() {
        let mut take = |path, way| outcomes.remove(&(path, number, way)).unwrap_or_default();
        let results: Vec<[DirectionResult; 2]> = (target.observations.iter().enumerate())
            .map(|(path, observation)| {
                [0, 1].map(|way| DirectionResult::new(target, observation, way, take(path, way)))
            })
            .collect();
        let starts = Direction::BOTH.map(|direction| locate_truth(target, direction, &results, truth));
        for ((path, observation), results) in target.observations.iter().enumerate().zip(&results) {
            let connection = ConnectionOnPath { target, observation, headers: &headers[path], truth, starts };
            summaries[path].add(&connection, results);
        }
    }
    let evidence = headers.iter().map(|capture| capture_evidence(capture, headers, targets));
    let summaries = names.iter().zip(summaries).zip(evidence);
    summaries
        .map(|((name, summary), evidence)| {
            let exceeds_memory = payload_dropped && summary.captured < summary.exposure.bytes;
            summary.view(name, &CaptureEvidence { exceeds_memory, ..evidence })
        })
        .collect()
}

/// What a path's capture, one of `all`, contains, and how much of it has a place in a stream.
fn capture_evidence(headers: &Headers, all: &[Headers], targets: &[Target<'_>]) -> CaptureEvidence {
    let (mut known, mut unmapped_bytes) = (HashSet::new(), 0);
    for subflow in targets.iter().flat_map(|target| &target.connection.subflows) {
        known.insert((subflow.client, subflow.server));
        for direction in Direction::BOTH {
            let (from, to) = subflow.ends(direction);
            if headers.traffic(from, to).is_some_and(|traffic| traffic.packets > 0) {
                let sent = subflow.sent(direction);
                unmapped_bytes += sent.unmapped - sent.discarded;
            }
        }
    }
    unmapped_bytes += headers.bytes_of_others(&known);
    let gaps = headers.gaps(all);
    CaptureEvidence { completeness: headers.completeness, gaps, unmapped_bytes, exceeds_memory: false }
}

/// The position of the ground truth in a direction's stream, from what was recovered on all paths.
fn locate_truth(
    target: &Target<'_>,
    direction: Direction,
    results: &[[DirectionResult; 2]],
    truth: Option<&GroundTruth<'_>>,
) -> Option<i64> {
    let stream = target.connection.stream(direction);
    let recovered = (target.observations.iter().zip(results)).map(|(observation, results)| {
        (&results[direction as usize].recovery, stream.payload(observation.path))
    });
    truth?.locate(stream, recovered)
}

/// What the attacks recovered of one direction of a connection on a path.
struct DirectionResult {
    recovery: Recovery,
    attack: Option<Attack>,
    seconds: f64,
}

impl DirectionResult {
    fn new(target: &Target<'_>, observation: &Observation<'_>, way: usize, outcome: Outcome) -> Self {
        let seconds = outcome.time.as_secs_f64();
        let attack = summarize(&outcome);
        let recovery = match target.mode {
            Mode::Off => Recovery::AsSent { encrypted: observation.payload[way].encrypted.clone() },
            Mode::Stream => match target.secrets(observation, Direction::BOTH[way]) {
                Some(secrets) => Recovery::KeyStream(secrets),
                None => Recovery::Attacked(outcome.runs),
            },
            Mode::Xor64 | Mode::Sealed | Mode::Unknown => Recovery::Attacked(outcome.runs),
            Mode::Mixed => Recovery::Nothing,
        };
        Self { recovery, attack, seconds }
    }

    /// The probability that recovered bytes are correct: the mean over runs, weighted by their recovered bytes.
    fn confidence(&self, recovered: u64) -> f64 {
        match &self.recovery {
            _ if recovered == 0 => 0.0,
            Recovery::Attacked(runs) => {
                let (sum, weight) = runs.iter().fold((0.0, 0.0), |(sum, weight), (run, result)| {
                    let claimed = (run.end - run.start) as f64 * result.keys.iter().flatten().count() as f64;
                    (sum + claimed * f64::from(result.confidence), weight + claimed)
                });
                if weight > 0.0 { sum / weight } else { 0.0 }
            }
            _ => 1.0,
        }
    }
}

/// `None` if there was nothing to attack.
fn summarize(outcome: &Outcome) -> Option<Attack> {
    let Outcome { runs, bytes_before_runs, too_short, skipped, .. } = outcome;
    if runs.is_empty() && too_short.runs == 0 && skipped.runs == 0 {
        return None;
    }
    let mut sum = Attack {
        runs: runs.len(),
        bytes_before_runs: *bytes_before_runs,
        too_short: *too_short,
        skipped: *skipped,
        ..Attack::default()
    };
    for (_, result) in runs {
        sum.broken += usize::from(result.method.is_some());
        sum.structured += usize::from(result.structured);
        match result.method {
            Some(Method::Seed) => sum.by_seed += 1,
            Some(Method::StreamStart) => sum.by_stream_start += 1,
            Some(Method::KnownText(name)) => {
                sum.by_known_text += 1;
                sum.known_texts.push(name);
            }
            Some(Method::Language) => sum.by_language += 1,
            None => {}
        }
        let evidence = result.evidence.map(f64::from);
        sum.best_evidence_bits = match (sum.best_evidence_bits, evidence) {
            (Some(best), Some(evidence)) => Some(best.max(evidence)),
            (best, evidence) => best.or(evidence),
        };
    }
    sum.known_texts.sort_unstable();
    sum.known_texts.dedup();
    Some(sum)
}

/// A connection on a path, with everything its view is built from.
struct ConnectionOnPath<'a> {
    target: &'a Target<'a>,
    observation: &'a Observation<'a>,
    headers: &'a Headers,
    truth: Option<&'a GroundTruth<'a>>,
    /// The position of the ground truth in each direction.
    starts: [Option<i64>; 2],
}

impl ConnectionOnPath<'_> {
    fn direction(&self, direction: Direction, result: &DirectionResult) -> (DirectionView, Option<Score>) {
        let way = direction as usize;
        let stream = self.target.connection.stream(direction);
        let payload = stream.payload(self.observation.path);
        let exposure = stream.exposure(self.observation.path);
        let (recovered, excerpt) = count_recovered(&result.recovery, payload);
        let score = self
            .truth
            .zip(self.starts[way])
            .map(|(truth, start)| truth.score(start, &result.recovery, payload));
        let score = score.filter(|score| score.crossed > 0);
        let stats = &self.observation.payload[way];
        let view = DirectionView {
            stream_bytes: stream.length(),
            exposure,
            captured_bytes: payload.present().total(),
            recovered_bytes: recovered,
            recovered_fraction: ratio(recovered, exposure.bytes),
            correct_fraction: score.map(|score| ratio(score.correct, score.crossed)),
            confidence: result.confidence(recovered),
            content: stats.kind,
            entropy_bits: stats.entropy,
            looks_random: stats.looks_random,
            packets: self.packets(direction),
            attack: result.attack.clone(),
            excerpt,
        };
        (view, score)
    }

    /// The packets of all subflows in this path's capture.
    fn packets(&self, direction: Direction) -> Packets {
        let mut all = Traffic::default();
        for subflow in &self.target.connection.subflows {
            let (from, to) = subflow.ends(direction);
            if let Some(traffic) = self.headers.traffic(from, to) {
                all.merge(traffic);
            }
        }
        let seconds = |time: Timestamp| time.0 as f64 / 1e9;
        Packets {
            count: all.packets,
            bytes: all.bytes,
            min_bytes: all.min_bytes,
            max_bytes: all.max_bytes,
            first: all.span.map(|(first, _)| seconds(first)),
            last: all.span.map(|(_, last)| seconds(last)),
        }
    }

    /// Identifiers at the start of both directions that were recovered or crossed in clear.
    fn identifiers(&self, results: &[DirectionResult; 2]) -> Vec<Identifier> {
        let mut found = Vec::new();
        for direction in Direction::BOTH {
            let stream = self.target.connection.stream(direction);
            let payload = stream.payload(self.observation.path);
            let wire = stream_prefix(stream, payload, identifiers::MAX_PREFIX);
            if wire.is_empty() {
                continue;
            }
            let mut start = Vec::new();
            results[direction as usize].recovery.for_each_chunk(payload, |position, _, plain| {
                if position == start.len() as u64 && start.len() < wire.len() {
                    start.extend(plain.iter().copied().map_while(|byte| byte));
                }
            });
            let content = start.get(results[direction as usize].recovery.prefix()..).unwrap_or_default();
            let (protocol, identifiers) = identifiers::parse(if start.is_empty() { &wire } else { content });
            // Protected streams have no other identifiers in clear.
            if !start.is_empty() || protocol == Protocol::Sealed {
                found.extend(identifiers);
            }
        }
        found.dedup();
        found
    }
}

/// The number of recovered bytes, and the excerpt with the most readable text.
fn count_recovered(recovery: &Recovery, payload: &Payload) -> (u64, Option<Excerpt>) {
    let mut recovered = 0;
    let mut best: Option<(usize, Excerpt)> = None;
    recovery.for_each_chunk(payload, |position, wire, plain| {
        recovered += plain.iter().flatten().count() as u64;
        let (wire, plain) = (&wire[..wire.len().min(EXCERPT_LEN)], &plain[..plain.len().min(EXCERPT_LEN)]);
        let text = plain.iter().flatten().filter(|byte| matches!(byte, b' '..=b'~' | b'\n')).count();
        let readability = plain.len() + 4 * text;
        if best.as_ref().is_none_or(|(best, _)| readability > *best) {
            best = Some((readability, Excerpt { position, wire: wire.to_vec(), plain: plain.to_vec() }));
        }
    });
    (recovered, best.map(|(_, excerpt)| excerpt))
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The view of a path, built up connection by connection.
#[derive(Default)]
struct PathSummary {
    exposure: Exposure,
    /// The length of all streams of connections that this path carried part of.
    stream_bytes: u64,
    captured: u64,
    recovered: u64,
    /// Summed over recovered bytes.
    confidence: f64,
    score: Option<Score>,
    seconds: f64,
    attack: Option<Attack>,
    connections: Vec<ConnectionView>,
}

impl PathSummary {
    fn add(&mut self, connection: &ConnectionOnPath<'_>, results: &[DirectionResult; 2]) {
        let target = connection.target;
        let mut stream_bytes = 0;
        let directions = PerDirection::from_fn(|direction| {
            let result = &results[direction as usize];
            let (view, score) = connection.direction(direction, result);
            stream_bytes += view.stream_bytes;
            self.exposure.bytes += view.exposure.bytes;
            self.exposure.runs += view.exposure.runs;
            self.exposure.longest_run = self.exposure.longest_run.max(view.exposure.longest_run);
            self.captured += view.captured_bytes;
            self.recovered += view.recovered_bytes;
            self.confidence += view.confidence * view.recovered_bytes as f64;
            self.seconds += result.seconds;
            if let Some(score) = score {
                *self.score.get_or_insert_default() += score;
            }
            if let Some(attack) = &view.attack {
                self.attack.get_or_insert_default().merge(attack);
            }
            view
        });
        if Direction::BOTH.iter().all(|direction| directions.in_direction(*direction).exposure.bytes == 0) {
            return;
        }
        self.stream_bytes += stream_bytes;
        self.connections.push(ConnectionView {
            id: target.connection.id,
            client: target.connection.client(),
            server: target.connection.server(),
            mode: target.mode,
            mode_source: target.mode_source,
            partial: target.connection.partial,
            evicted: target.connection.evicted,
            keys_captured: connection.observation.has_keys(),
            identifiers: connection.identifiers(results),
            directions,
        });
    }

    fn view(self, name: &str, evidence: &CaptureEvidence) -> PathView {
        let mut modes: Vec<Mode> = self.connections.iter().map(|connection| connection.mode).collect();
        modes.dedup();
        let mode = match modes.as_slice() {
            [] => None,
            [mode] => Some(*mode),
            _ => Some(Mode::Mixed),
        };
        let mut view = PathView {
            path: name.to_owned(),
            exposure: Exposure { fraction: ratio(self.exposure.bytes, self.stream_bytes), ..self.exposure },
            mode,
            recovered_bytes: self.recovered,
            recovered_fraction: ratio(self.recovered, self.exposure.bytes),
            correct_fraction: self.score.map(|score| ratio(score.correct, score.crossed)),
            confidence: if self.recovered == 0 { 0.0 } else { self.confidence / self.recovered as f64 },
            attack_seconds: self.seconds,
            conclusion: Conclusion::CannotJudge,
            missing_evidence: Vec::new(),
            wire_bytes: evidence.completeness.wire_bytes,
            not_captured_bytes: evidence.not_captured_bytes(),
            not_captured_fraction: evidence.not_captured_fraction(),
            missing_bytes: evidence.gaps.missing_bytes,
            verdict: String::new(),
            attack: self.attack,
            connections: self.connections,
        };
        view.missing_evidence = missing(&view, evidence);
        view.conclusion = conclude(&view);
        view.verdict = verdict(&view);
        view
    }
}
