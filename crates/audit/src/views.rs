//! From what was tried to what is shown: the view of each path, connection and direction.

use std::collections::HashMap;

use plait_trace::document::{Both, Exposure};
use plait_trace::{Direction, PathId, Payload};
use plait_wire::capture::Timestamp;

use crate::attacks::{Attacked, Where};
use crate::document::{Attack, ConnectionView, DirectionView, Excerpt, Packets, PathView};
use crate::handshake::{Headers, Traffic};
use crate::mode::Mode;
use crate::names::{self, Name, Protocol};
use crate::recovery::Recovery;
use crate::subject::{DIRECTIONS, Place, Subject, beginning};
use crate::truth::{Score, Truth};
use crate::verdict::verdict;
use crate::xor64::Means;

/// The length of an excerpt.
const EXCERPT: usize = 240;

/// The views of all paths.
pub(crate) fn of(
    names: &[&str],
    paths: &[PathId],
    subjects: &[Subject<'_>],
    headers: &[Headers],
    mut attacked: HashMap<Where, Attacked>,
    truth: Option<&Truth<'_>>,
) -> Vec<PathView> {
    let mut summaries: Vec<Summary> = paths.iter().map(|_| Summary::default()).collect();
    for (number, subject) in subjects.iter().enumerate() {
        let mut take = |path, way| attacked.remove(&(path, number, way)).unwrap_or_default();
        let tried: Vec<[Tried; 2]> = (subject.places.iter().enumerate())
            .map(|(path, place)| [0, 1].map(|way| Tried::of(subject, place, way, take(path, way))))
            .collect();
        let starts = DIRECTIONS.map(|direction| start_of_truth(subject, direction, &tried, truth));
        for ((path, place), tried) in subject.places.iter().enumerate().zip(&tried) {
            let seen = Seen { subject, place, headers: &headers[path], truth, starts };
            summaries[path].add(&seen, tried);
        }
    }
    names.iter().zip(summaries).map(|(name, summary)| summary.view(name)).collect()
}

/// Where the real content begins in a direction, by what was recovered on all paths.
fn start_of_truth(
    subject: &Subject<'_>,
    direction: Direction,
    tried: &[[Tried; 2]],
    truth: Option<&Truth<'_>>,
) -> Option<i64> {
    let stream = subject.connection.stream(direction);
    let recovered = subject.places.iter().zip(tried);
    let recovered =
        recovered.map(|(place, tried)| (&tried[direction as usize].recovery, stream.payload(place.path)));
    truth?.place(stream, recovered)
}

/// What was tried on one direction of a connection on a path.
struct Tried {
    recovery: Recovery,
    attack: Option<Attack>,
    seconds: f64,
}

impl Tried {
    fn of(subject: &Subject<'_>, place: &Place<'_>, way: usize, attacked: Attacked) -> Self {
        let seconds = attacked.time.as_secs_f64();
        let attack = summed_up(&attacked);
        let recovery = match subject.mode {
            Mode::Off => Recovery::AsSent { encrypted: place.looks[way].encrypted.clone() },
            Mode::Stream => match subject.secrets(place, DIRECTIONS[way]) {
                Some(secrets) => Recovery::KeyStream(secrets),
                None => Recovery::Attacked(attacked.runs),
            },
            Mode::Xor64 | Mode::Sealed | Mode::Unknown => Recovery::Attacked(attacked.runs),
            Mode::Mixed => Recovery::Nothing,
        };
        Self { recovery, attack, seconds }
    }

    /// How probable the recovered bytes are, on average, weighted by how many each run has.
    fn confidence(&self, recovered: u64) -> f64 {
        match &self.recovery {
            _ if recovered == 0 => 0.0,
            Recovery::Attacked(runs) => {
                let (sum, weight) = runs.iter().fold((0.0, 0.0), |(sum, weight), (run, attempt)| {
                    let claimed = (run.end - run.start) as f64 * attempt.keys.iter().flatten().count() as f64;
                    (sum + claimed * f64::from(attempt.confidence), weight + claimed)
                });
                if weight > 0.0 { sum / weight } else { 0.0 }
            }
            _ => 1.0,
        }
    }
}

/// `None` where nothing was attacked, and nothing could have been.
fn summed_up(attacked: &Attacked) -> Option<Attack> {
    let Attacked { runs, before, too_short, left_out, .. } = attacked;
    if runs.is_empty() && too_short.runs == 0 && left_out.runs == 0 {
        return None;
    }
    let mut sum = Attack {
        runs: runs.len(),
        bytes_before_runs: *before,
        too_short: *too_short,
        left_out: *left_out,
        ..Attack::default()
    };
    for (_, attempt) in runs {
        sum.broken += usize::from(attempt.by.is_some());
        sum.structured += usize::from(attempt.structured);
        match attempt.by {
            Some(Means::Seed) => sum.by_seed += 1,
            Some(Means::Beginning) => sum.by_beginning += 1,
            Some(Means::KnownText(what)) => {
                sum.by_known_text += 1;
                sum.known_texts.push(what);
            }
            Some(Means::Language) => sum.by_language += 1,
            None => {}
        }
        let evidence = attempt.evidence.map(f64::from);
        sum.best_evidence_bits = match (sum.best_evidence_bits, evidence) {
            (Some(best), Some(evidence)) => Some(best.max(evidence)),
            (best, evidence) => best.or(evidence),
        };
    }
    sum.known_texts.sort_unstable();
    sum.known_texts.dedup();
    Some(sum)
}

/// A connection on a path, with all that its view is made of.
struct Seen<'a> {
    subject: &'a Subject<'a>,
    place: &'a Place<'a>,
    headers: &'a Headers,
    truth: Option<&'a Truth<'a>>,
    /// Where the real content begins in each direction.
    starts: [Option<i64>; 2],
}

impl Seen<'_> {
    fn direction(&self, direction: Direction, tried: &Tried) -> (DirectionView, Option<Score>) {
        let way = direction as usize;
        let stream = self.subject.connection.stream(direction);
        let payload = stream.payload(self.place.path);
        let exposure = Exposure::from(stream.exposure(self.place.path));
        let (recovered, excerpt) = count(&tried.recovery, payload);
        let score = self
            .truth
            .zip(self.starts[way])
            .map(|(truth, start)| truth.score(start, &tried.recovery, payload));
        let score = score.filter(|score| score.crossed > 0);
        let looks = &self.place.looks[way];
        let view = DirectionView {
            stream_bytes: stream.length(),
            exposure,
            captured_bytes: payload.present().total(),
            recovered_bytes: recovered,
            recovered_fraction: share(recovered, exposure.bytes),
            correct_fraction: score.map(|score| share(score.right, score.crossed)),
            confidence: tried.confidence(recovered),
            content: looks.kind,
            entropy_bits: looks.entropy,
            looks_random: looks.random,
            packets: self.packets(direction),
            attack: tried.attack.clone(),
            excerpt,
        };
        (view, score)
    }

    /// Of all subflows, as this path's capture has them.
    fn packets(&self, direction: Direction) -> Packets {
        let mut all = Traffic::default();
        for subflow in &self.subject.connection.subflows {
            let (from, to) = match direction {
                Direction::ClientToServer => (subflow.client, subflow.server),
                Direction::ServerToClient => (subflow.server, subflow.client),
            };
            if let Some(traffic) = self.headers.traffic(from, to) {
                all.merge(traffic);
            }
        }
        let seconds = |time: Timestamp| time.0 as f64 / 1e9;
        Packets {
            count: all.packets,
            bytes: all.bytes,
            shortest: all.shortest,
            longest: all.longest,
            first: all.span.map(|(first, _)| seconds(first)),
            last: all.span.map(|(_, last)| seconds(last)),
        }
    }

    /// Names at the beginnings of both directions, as far as they were recovered, or crossed in clear.
    fn names(&self, tried: &[Tried; 2]) -> Vec<Name> {
        let mut found = Vec::new();
        for direction in DIRECTIONS {
            let stream = self.subject.connection.stream(direction);
            let payload = stream.payload(self.place.path);
            let wire = beginning(stream, payload, names::LOOKED_AT);
            if wire.is_empty() {
                continue;
            }
            let mut start = Vec::new();
            tried[direction as usize].recovery.pieces(payload, |position, _, plain| {
                if position == start.len() as u64 && start.len() < wire.len() {
                    start.extend(plain.iter().copied().map_while(|byte| byte));
                }
            });
            let content = start.get(tried[direction as usize].recovery.prefix()..).unwrap_or_default();
            let (protocol, names) = names::read(if start.is_empty() { &wire } else { content });
            // Nothing else is in clear in what is protected.
            if !start.is_empty() || protocol == Protocol::Sealed {
                found.extend(names);
            }
        }
        found.dedup();
        found
    }
}

/// How many bytes were recovered, and the piece that shows most.
fn count(recovery: &Recovery, payload: &Payload) -> (u64, Option<Excerpt>) {
    let mut recovered = 0;
    let mut best: Option<(usize, Excerpt)> = None;
    recovery.pieces(payload, |position, wire, plain| {
        recovered += plain.iter().flatten().count() as u64;
        let (wire, plain) = (&wire[..wire.len().min(EXCERPT)], &plain[..plain.len().min(EXCERPT)]);
        let text = plain.iter().flatten().filter(|byte| matches!(byte, b' '..=b'~' | b'\n')).count();
        let shown = plain.len() + 4 * text;
        if best.as_ref().is_none_or(|(most, _)| shown > *most) {
            best = Some((shown, Excerpt { position, wire: wire.to_vec(), plain: plain.to_vec() }));
        }
    });
    (recovered, best.map(|(_, excerpt)| excerpt))
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A path's view as connections are added to it.
#[derive(Default)]
struct Summary {
    exposure: Exposure,
    /// Of all streams of connections that the path carries something of.
    stream_bytes: u64,
    recovered: u64,
    /// The sum over recovered bytes.
    confidence: f64,
    score: Option<Score>,
    seconds: f64,
    attack: Option<Attack>,
    connections: Vec<ConnectionView>,
}

impl Summary {
    fn add(&mut self, seen: &Seen<'_>, tried: &[Tried; 2]) {
        let subject = seen.subject;
        let mut stream_bytes = 0;
        let directions = Both::of(|direction| {
            let tried = &tried[direction as usize];
            let (view, score) = seen.direction(direction, tried);
            stream_bytes += view.stream_bytes;
            self.exposure.bytes += view.exposure.bytes;
            self.exposure.runs += view.exposure.runs;
            self.exposure.longest_run = self.exposure.longest_run.max(view.exposure.longest_run);
            self.recovered += view.recovered_bytes;
            self.confidence += view.confidence * view.recovered_bytes as f64;
            self.seconds += tried.seconds;
            if let Some(score) = score {
                *self.score.get_or_insert_default() += score;
            }
            if let Some(attack) = &view.attack {
                self.attack.get_or_insert_default().merge(attack);
            }
            view
        });
        if DIRECTIONS.iter().all(|direction| directions.in_direction(*direction).exposure.bytes == 0) {
            return;
        }
        self.stream_bytes += stream_bytes;
        self.connections.push(ConnectionView {
            id: subject.connection.id,
            client: subject.connection.client(),
            server: subject.connection.server(),
            mode: subject.mode,
            mode_from: subject.mode_from,
            keys_captured: seen.place.has_keys(),
            names: seen.names(tried),
            directions,
        });
    }

    fn view(self, name: &str) -> PathView {
        let mut modes: Vec<Mode> = self.connections.iter().map(|connection| connection.mode).collect();
        modes.dedup();
        let mode = match modes.as_slice() {
            [] => None,
            [mode] => Some(*mode),
            _ => Some(Mode::Mixed),
        };
        let mut view = PathView {
            path: name.to_owned(),
            exposure: Exposure { fraction: share(self.exposure.bytes, self.stream_bytes), ..self.exposure },
            mode,
            recovered_bytes: self.recovered,
            recovered_fraction: share(self.recovered, self.exposure.bytes),
            correct_fraction: self.score.map(|score| share(score.right, score.crossed)),
            confidence: if self.recovered == 0 { 0.0 } else { self.confidence / self.recovered as f64 },
            seconds: self.seconds,
            verdict: String::new(),
            attack: self.attack,
            connections: self.connections,
        };
        view.verdict = verdict(&view);
        view
    }
}
